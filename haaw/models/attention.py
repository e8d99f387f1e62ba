"""Attention over a pack: each sequence looks at its own cache; heads all together or one by one.

The only place where sequences are told apart. Knows nothing of projections, norms or positions' encoding.
"""

from collections.abc import Sequence

import numpy as np

from haaw.arrays import Array, like
from haaw.models.pack import Pack, Span
from haaw.models.protocol import Heads
from haaw.ops.attention import (
    attention_mix,
    attention_scores,
    causal_mask,
    merge_heads,
    merge_sequences,
    softmax,
)
from haaw.ops.recorder import declare, scope


def causal_masks(pack: Pack) -> list[Array | None]:
    """One mask a sequence, the same for all layers; None for a single token, which sees all before it."""
    masks: list[Array | None] = []
    for number, span in enumerate(pack.spans):
        if span.stop - span.start == 1:
            masks.append(None)
            continue
        with scope(sequence=number, part="mask"):
            positions = span.cache.length + span.stop - span.start
            key_positions_S = declare("key_positions", like(np.arange(positions), pack.positions_T))
            masks.append(causal_mask(pack.positions_T[span.start : span.stop], key_positions_S))
    return masks


def attend(
    query_THC: Array,
    key_TKC: Array,
    value_TKC: Array,
    pack: Pack,
    masks: Sequence[Array | None],
    *,
    layer: int,
    scale: float,
    heads: Heads,
) -> Array:
    """Appends keys and values to each sequence's cache and mixes the values: (T, E), heads side by side."""
    parts: list[Array] = []
    for number, (span, visible_TS) in enumerate(zip(pack.spans, masks, strict=True)):
        rows = slice(span.start, span.stop)
        with scope(sequence=number if len(pack.spans) > 1 else None):
            span.cache.append(layer, key_TKC[rows], value_TKC[rows])
            form = _together if heads == "together" else _separate
            parts.append(form(query_THC[rows], span, visible_TS, layer, scale))
    return parts[0] if len(parts) == 1 else merge_sequences(parts)


def _together(query_THC: Array, span: Span, visible_TS: Array | None, layer: int, scale: float) -> Array:
    keys_KSC, values_KSC = span.cache.view(layer)
    scores_HTS = attention_scores(query_THC, keys_KSC, visible_TS, scale=scale)
    weights_HTS = softmax(scores_HTS)
    mixed_HTC = attention_mix(weights_HTS, values_KSC)
    merged_TE = merge_heads(mixed_HTC)
    return merged_TE


def _separate(query_THC: Array, span: Span, visible_TS: Array | None, layer: int, scale: float) -> Array:
    keys_KSC, values_KSC = span.cache.view(layer)
    group = query_THC.shape[1] // keys_KSC.shape[0]
    mixed: list[Array] = []
    for head in range(query_THC.shape[1]):
        kv_head = head // group
        with scope(head=head):
            scores_HTS = attention_scores(
                query_THC[:, head : head + 1], keys_KSC[kv_head : kv_head + 1], visible_TS, scale=scale
            )
            weights_HTS = softmax(scores_HTS)
            mixed_HTC = attention_mix(weights_HTS, values_KSC[kv_head : kv_head + 1])
            mixed.append(mixed_HTC)
    merged_TE = merge_heads(mixed)
    return merged_TE
