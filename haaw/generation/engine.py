"""A step of a request as a plain function: the next ids of a sequence go through the model."""

from collections.abc import Callable, Sequence

import numpy as np

from haaw.arrays import Array
from haaw.caches.protocol import KVCache
from haaw.models.pack import pack_tokens
from haaw.models.protocol import Heads, Rows, Transformer


def advance(
    model: Transformer, cache: KVCache, ids: Sequence[int], *, heads: Heads = "together", rows: Rows = "last"
) -> Array:
    """Runs the next `ids` of one sequence through the model: logits (1, V), or (T, V) with rows="all".

    The cache grows by those ids when, and only when, the step succeeds.
    """
    pack = pack_tokens([(ids, cache)], model.prototype_Z)
    before = cache.length
    try:
        with np.errstate(
            all="ignore"
        ):  # an overflow shows in the scores, which are judged when one is chosen
            logits_TV = model.forward(pack, heads=heads, rows=rows)
        pack.commit()
    except BaseException:
        cache.crop_to(before)
        raise
    return logits_TV


def advance_without_cache(
    model: Transformer,
    make_cache: Callable[[], KVCache],
    ids: Sequence[int],
    *,
    chunk_tokens: int,
    heads: Heads = "together",
) -> Array:
    """Runs all `ids` of a sequence through the model and keeps nothing: logits (1, V) of the last.

    The same ids are computed anew in every step; within the step they share a cache that is dropped behind it.
    """
    cache = make_cache()
    try:
        for start in range(0, len(ids), chunk_tokens):
            logits_BV = advance(model, cache, ids[start : start + chunk_tokens], heads=heads)
    finally:
        cache.release()
    return logits_BV
