"""Running a model without a request: the logits of every position, in one piece or in chunks."""

from collections.abc import Sequence

import numpy as np

from haaw.arrays import to_host
from haaw.caches.dynamic import DynamicCache
from haaw.generation.engine import advance
from haaw.models.protocol import Heads, Transformer


def all_logits(
    model: Transformer, ids: Sequence[int], *, chunk: int | None = None, heads: Heads = "together"
) -> np.ndarray:
    """Logits (T, V) of all ids, taken in chunks of `chunk` (None: in one piece) over one growing cache."""
    cache = DynamicCache(model.cache_layout, model.prototype_Z)
    size = chunk or len(ids)
    pieces = [
        advance(model, cache, list(ids[start : start + size]), heads=heads, rows="all")
        for start in range(0, len(ids), size)
    ]
    return np.concatenate([to_host(piece) for piece in pieces])
