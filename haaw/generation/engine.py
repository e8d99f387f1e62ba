"""The steps of a request as plain functions: a chunk of the prompt, one decode step, the choice."""

from collections.abc import Sequence

from haaw.arrays import Array, to_host
from haaw.caches.protocol import KVCache
from haaw.errors import HaawError
from haaw.models.pack import pack_tokens
from haaw.models.protocol import Heads, Rows, Transformer
from haaw.ops.choosing import greedy
from haaw.ops.recorder import scope


class NumericalError(HaawError):
    """The scores are not numbers any more; nothing sensible can be chosen."""


def advance(
    model: Transformer, cache: KVCache, ids: Sequence[int], *, heads: Heads = "together", rows: Rows = "last"
) -> Array:
    """Runs the next `ids` of one sequence through the model: logits (1, V), or (T, V) with rows="all".

    The cache grows by those ids when, and only when, the step succeeds.
    """
    pack = pack_tokens([(ids, cache)], model.prototype_I)
    before = cache.length
    try:
        logits_TV = model.forward(pack, heads=heads, rows=rows)
        pack.commit()
    except BaseException:
        cache.crop_to(before)
        raise
    return logits_TV


def choose(logits_BV: Array) -> int:
    """The next id, greedily.

    Errors: `NumericalError` when the best score is NaN or infinite.
    """
    with scope(part="choose"):
        scores_V = logits_BV[-1]
        id_N = greedy(scores_V)
    token_id = int(to_host(id_N)[0])
    best = float(to_host(scores_V[token_id : token_id + 1])[0])
    if not abs(best) < float("inf"):
        raise NumericalError(f"the score of token {token_id} is {best}; a weight or an activation is damaged")
    return token_id
