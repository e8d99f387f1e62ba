"""Attention over one sequence, for all heads together or for one head: the same operations.

Query head h reads key/value head h // G, with G = H / K. One head alone is the case H = K = 1.
"""

from collections.abc import Sequence

from haaw.arrays import Array, namespace, working_dtype
from haaw.ops.card import Card, eps_of, nothing
from haaw.ops.op import op


@op(
    out="visible_TS",
    card=Card(
        meaning="Which cached positions each token may look at: its own and the earlier ones.",
        formula="visible[t, s] = key position s ≤ query position t (and > query position t − window)",
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3",
        operations=nothing,
    ),
)
def causal_mask(query_positions_T: Array, key_positions_S: Array, *, window: int | None = None) -> Array:
    """Boolean mask, True where a key is visible. With `window` W a token sees W keys, itself included."""
    distance_TS = query_positions_T[:, None] - key_positions_S
    visible_TS = distance_TS >= 0
    if window is not None:
        visible_TS &= distance_TS < window
    return visible_TS


def _scores_budget(query_THC: Array, keys_KSC: Array, visible_TS: Array | None, *, scale: float) -> Array:
    size_HTS = _scores(abs(query_THC), abs(keys_KSC), abs(scale))
    return float(8 + query_THC.shape[-1] ** 0.5) * eps_of(query_THC) * size_HTS


def _scores(query_THC: Array, keys_KSC: Array, scale: float) -> Array:
    tokens, heads, channels = query_THC.shape
    kv_heads, positions, _ = keys_KSC.shape
    grouped_KGTC = (query_THC * scale).transpose(1, 0, 2).reshape(kv_heads, -1, channels)
    return (grouped_KGTC @ keys_KSC.transpose(0, 2, 1)).reshape(heads, tokens, positions)


@op(
    out="scores_HTS",
    card=Card(
        meaning="How well each token's query matches each key; keys that it may not see get minus infinity.",
        formula="scores[h, t, s] = scale · query[t, h] · keys[h // G, s] where visible, else −∞",
        source="Vaswani et al. 2017, arXiv:1706.03762, equation 1; groups: Ainslie et al. 2023, arXiv:2305.13245",
        operations=lambda n: 2 * n.H * n.T * n.S * n.C,
        budget=_scores_budget,
    ),
)
def attention_scores(query_THC: Array, keys_KSC: Array, visible_TS: Array | None, *, scale: float) -> Array:
    """Scaled products of queries and keys. `visible_TS` None means that every token sees every key."""
    xp = namespace(query_THC)
    scores_HTS = _scores(query_THC, keys_KSC, scale)
    if visible_TS is not None:
        xp.copyto(scores_HTS, -xp.inf, where=~visible_TS)
    return scores_HTS


def _softmax_budget(scores_HTS: Array) -> Array:
    # exp(x - max) errs by a few ulp plus |x - max| roundings of its argument; then a sum and a division.
    xp = namespace(scores_HTS)
    weights_HTS = softmax(scores_HTS)
    highest_HT1 = scores_HTS.max(axis=-1, keepdims=True)
    distance_HTS = xp.where(weights_HTS > 0, highest_HT1 - scores_HTS, 0)
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
    wide_HTS = scores_HTS.astype(working_dtype(scores_HTS.dtype), copy=False)
    highest_HT1 = wide_HTS.max(axis=-1, keepdims=True)
    highest_HT1 = xp.where(highest_HT1 == -xp.inf, xp.zeros_like(highest_HT1), highest_HT1)
    weights_HTS = wide_HTS - highest_HT1
    xp.exp(weights_HTS, out=weights_HTS)
    total_HT1 = weights_HTS.sum(axis=-1, keepdims=True)
    weights_HTS /= xp.where(total_HT1 == 0, xp.ones_like(total_HT1), total_HT1)
    return weights_HTS.astype(scores_HTS.dtype, copy=False)


def _mix(weights_HTS: Array, values_KSC: Array) -> Array:
    heads, tokens, positions = weights_HTS.shape
    kv_heads, _, channels = values_KSC.shape
    grouped_KGTS = weights_HTS.reshape(kv_heads, -1, positions)
    return (grouped_KGTS @ values_KSC).reshape(heads, tokens, channels)


@op(
    out="mixed_HTC",
    card=Card(
        meaning="Each head's mixture of the values, by its weights.",
        formula="mixed[h, t] = Σₛ weights[h, t, s] · values[h // G, s]",
        source="Vaswani et al. 2017, arXiv:1706.03762, equation 1",
        operations=lambda n: 2 * n.H * n.T * n.S * n.C,
        budget=lambda weights_HTS, values_KSC: (
            float(8 + weights_HTS.shape[-1] ** 0.5) * eps_of(weights_HTS) * _mix(weights_HTS, abs(values_KSC))
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
    parts = mixed_HTC if isinstance(mixed_HTC, list | tuple) else (mixed_HTC,)
    xp = namespace(parts[0])
    _, tokens, channels = parts[0].shape
    heads = sum(part.shape[0] for part in parts)
    merged_THC = xp.empty((tokens, heads, channels), dtype=parts[0].dtype)
    first = 0
    for part_HTC in parts:
        merged_THC[:, first : first + part_HTC.shape[0]] = part_HTC.transpose(1, 0, 2)
        first += part_HTC.shape[0]
    return merged_THC.reshape(tokens, heads * channels)


@op(
    out="merged_TE",
    card=Card(
        meaning="Puts the tokens of several sequences back behind one another.",
        formula="merged = [part 0; part 1; …]",
        source="none: a copy",
        operations=nothing,
    ),
)
def merge_sequences(parts_TE: Sequence[Array]) -> Array:
    """Concatenates the tokens of several sequences, in the order of the pack."""
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
