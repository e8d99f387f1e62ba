"""A step of a request as a plain function: the next ids of a sequence go through the model."""

from collections.abc import Sequence

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
