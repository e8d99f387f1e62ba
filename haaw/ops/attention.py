"""Attention over one sequence, for all heads together or for one head: the same operations.

Query head h reads key/value head h // G, with G = H / K. One head alone is the case H = K = 1.
"""

from collections.abc import Sequence

from haaw.arrays import Array, as_stored, namespace, widened
from haaw.ops.card import Card, eps_of, nothing, product_error
from haaw.ops.op import op
from haaw.ops.threads import in_parts

LOWEST = -3e38
SMALLEST = 1e-30


@op(
    out="mask_TP",
    card=Card(
        meaning="Which of the last cached positions each token may look at: its own and the earlier ones.",
        formula="mask[t, p] = 0 if key position p ≤ query position t (and > t − window, or < sinks) else −∞",
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3",
        operations=nothing,
    ),
)
def causal_mask(
    query_positions_T: Array, key_positions_P: Array, *, dtype: str, window: int | None = None, sinks: int = 0
) -> Array:
    """What is added to scores: 0 where a key is visible, else minus infinity.

    With `window` W a token sees W keys, itself included, and the first `sinks` positions as well.
    """
    xp = namespace(query_positions_T)
    distance_TP = query_positions_T[:, None] - key_positions_P
    hidden_TP = distance_TP < 0
    if window is not None:
        hidden_TP |= (distance_TP >= window) & (key_positions_P >= sinks)
    mask_TP = xp.zeros(hidden_TP.shape, dtype=dtype)
    mask_TP[hidden_TP] = -xp.inf
    return mask_TP


def _scores_budget(query_THC: Array, keys_KSC: Array, mask_TP: Array | None, *, scale: float) -> Array:
    size_HTS = attention_scores(abs(query_THC), abs(keys_KSC), None, scale=abs(scale))
    product_HTS = attention_scores(query_THC, keys_KSC, None, scale=scale)
    return product_error(query_THC, query_THC.shape[-1], size_HTS, product_HTS)


@op(
    out="scores_HTS",
    card=Card(
        meaning="How well each token's query matches each key; keys that it may not see get minus infinity.",
        formula="scores[h, t, s] = scale · query[t, h] · keys[h // G, s] + mask[t, s]",
        source="Vaswani et al. 2017, arXiv:1706.03762, equation 1; groups: Ainslie et al. 2023, arXiv:2305.13245",
        operations=lambda n: 2 * n.H * n.T * n.S * n.C,
        budget=_scores_budget,
    ),
)
def attention_scores(query_THC: Array, keys_KSC: Array, mask_TP: Array | None, *, scale: float) -> Array:
    """Scaled products of queries and keys.

    `mask_TP` is the mask on the last P keys; every token sees the keys before them, or all where it is None.
    """
    tokens, heads, channels = query_THC.shape
    kv_heads, positions, _ = keys_KSC.shape
    keys_KCS = keys_KSC.transpose(0, 2, 1)
    query_TKGC = (query_THC * scale).reshape(tokens, kv_heads, -1, channels)
    if tokens == 1:  # one product a head: for few rows together BLAS would first copy all keys
        scores_KGTS = query_TKGC.reshape(kv_heads, -1, 1, channels) @ keys_KCS[:, None]
    else:
        scores_KGTS = query_TKGC.transpose(1, 2, 0, 3).reshape(kv_heads, -1, channels) @ keys_KCS
    scores_HTS = scores_KGTS.reshape(heads, tokens, positions)
    if mask_TP is not None:
        scores_HTS[:, :, positions - mask_TP.shape[1] :] += mask_TP
    return scores_HTS


def _softmax_budget(scores_HTS: Array) -> Array:
    # exp(x - max) errs by a few ulp plus |x - max| roundings of its argument; then a sum and a division.
    xp = namespace(scores_HTS)
    weights_HTS = softmax(scores_HTS)
    highest_HT1 = scores_HTS.max(axis=-1, keepdims=True)
    counted_HTS = xp.where(weights_HTS > 0, scores_HTS, 0)  # minus infinity less itself would be NaN
    distance_HTS = xp.where(weights_HTS > 0, highest_HT1 - counted_HTS, 0)
    factor_HTS = 8 + distance_HTS + scores_HTS.shape[-1].bit_length()
    return eps_of(scores_HTS) * factor_HTS * weights_HTS + float(xp.finfo(scores_HTS.dtype).tiny)


@op(
    out="weights_HTS",
    card=Card(
        meaning="Turns scores into weights that are positive and add up to one.",
        formula="weights = exp(scores − max) / sum(exp(scores − max))",
        source="Bridle 1990; shifted by the maximum: Blanchard, Higham and Higham 2021, doi:10.1093/imanum/draa038",
        operations=lambda n: 4 * n.H * n.T * n.S,
        budget=_softmax_budget,
    ),
)
def softmax(scores_HTS: Array) -> Array:
    """Softmax over the last axis; a row of nothing but minus infinity becomes zeros."""
    xp = namespace(scores_HTS)
    wide_HTS = widened(scores_HTS)
    weights_HTS = xp.empty(wide_HTS.shape, dtype=wide_HTS.dtype)

    def some_heads(scores_HTS: Array, weights_HTS: Array) -> None:
        highest_HT1 = scores_HTS.max(axis=-1, keepdims=True)
        xp.maximum(highest_HT1, LOWEST, out=highest_HT1)  # never minus infinity, whose difference is NaN
        xp.subtract(scores_HTS, highest_HT1, out=weights_HTS)
        xp.exp(weights_HTS, out=weights_HTS)
        total_HT1 = weights_HTS.sum(axis=-1, keepdims=True)
        xp.maximum(total_HT1, SMALLEST, out=total_HT1)  # at least 1 but for rows of zeros
        weights_HTS /= total_HT1

    in_parts(some_heads, wide_HTS, weights_HTS)
    return as_stored(weights_HTS, scores_HTS)


def _mix(weights_HTS: Array, values_KSC: Array) -> Array:
    heads, tokens, positions = weights_HTS.shape
    kv_heads, _, channels = values_KSC.shape
    grouped_KTS = weights_HTS.reshape(kv_heads, -1, positions)  # the query heads that share a key/value head
    return (grouped_KTS @ values_KSC).reshape(heads, tokens, channels)


@op(
    out="mixed_HTC",
    card=Card(
        meaning="Each head's mixture of the values, by its weights.",
        formula="mixed[h, t] = Σₛ weights[h, t, s] · values[h // G, s]",
        source="Vaswani et al. 2017, arXiv:1706.03762, equation 1",
        operations=lambda n: 2 * n.H * n.T * n.S * n.C,
        budget=lambda weights_HTS, values_KSC: product_error(
            weights_HTS,
            weights_HTS.shape[-1],
            _mix(weights_HTS, abs(values_KSC)),
            _mix(weights_HTS, values_KSC),
        ),
    ),
)
def attention_mix(weights_HTS: Array, values_KSC: Array) -> Array:
    """Weighted sums of the cached values, per query head."""
    return _mix(weights_HTS, values_KSC)


@op(
    out="merged_TE",
    card=Card(
        meaning="Puts the heads of each token side by side again.",
        formula="merged[t, h·C + c] = mixed[h, t, c]",
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2",
        operations=nothing,
    ),
)
def merge_heads(mixed_HTC: Array | Sequence[Array]) -> Array:
    """Heads back into one vector a token. Takes all heads in one array, or a sequence of parts (H, T, C)."""
    joined_HTC: Array = mixed_HTC
    if isinstance(mixed_HTC, list | tuple):
        joined_HTC = namespace(mixed_HTC[0]).concatenate(mixed_HTC, axis=0)
    heads, tokens, channels = joined_HTC.shape
    return joined_HTC.transpose(1, 0, 2).flatten().reshape(tokens, heads * channels)


@op(
    out="merged_TE",
    card=Card(
        meaning="Puts the tokens of several blocks or sequences back behind one another.",
        formula="merged = [part 0; part 1; …]",
        source="none: a copy",
        operations=nothing,
    ),
)
def merge_tokens(parts_TE: Sequence[Array]) -> Array:
    """Concatenates parts along the tokens, in the order of the pack."""
    return namespace(parts_TE[0]).concatenate(list(parts_TE), axis=0)


@op(
    out="rows_BD",
    card=Card(
        meaning="Takes the last token of each sequence, the only ones whose next token is asked for.",
        formula="rows[b] = x[last[b]]",
        source="none: a copy",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.B * n.D * itemsize,
    ),
)
def take_rows(x_TD: Array, rows: Sequence[int]) -> Array:
    """Copies the given rows of `x_TD`."""
    return namespace(x_TD).stack([x_TD[row] for row in rows])
