"""Attention over a pack: each sequence looks at its own cache; heads all together or one by one.

The only place where sequences are told apart. Knows nothing of projections, norms or positions' encoding.
"""

from collections.abc import Sequence
from itertools import pairwise

from haaw.arrays import Array
from haaw.models.pack import Pack, Span
from haaw.models.protocol import Heads
from haaw.ops.attention import (
    attention_mix,
    attention_scores,
    causal_mask,
    merge_heads,
    merge_tokens,
    softmax,
)
from haaw.ops.recorder import scope

BLOCK_TOKENS = 128
"""So many queries are taken at a time: each block skips the keys that lie behind its last token."""


def blocks(span: Span) -> list[slice]:
    """The tokens of a sequence in this step, cut into blocks as equal as can be; slices of the pack."""
    tokens = span.stop - span.start
    count = -(-tokens // BLOCK_TOKENS)
    cuts = [span.start + tokens * block // count for block in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def causal_masks(pack: Pack, *, dtype: str) -> list[list[Array | None]]:
    """For each sequence one mask a block, on the block's own tokens: all earlier keys are visible.

    The same for all layers. None for a single token, which sees itself as well.
    """
    masks: list[list[Array | None]] = []
    for number, span in enumerate(pack.spans):
        with scope(sequence=number if len(pack.spans) > 1 else None, part="mask"):
            positions = [pack.positions_T[block] for block in blocks(span)]
            masks.append(
                [
                    causal_mask(each_T, each_T, dtype=dtype) if len(each_T) > 1 else None
                    for each_T in positions
                ]
            )
    return masks


def attend(
    query_THC: Array,
    key_TKC: Array,
    value_TKC: Array,
    pack: Pack,
    masks: Sequence[Sequence[Array | None]],
    *,
    layer: int,
    scale: float,
    heads: Heads,
) -> Array:
    """Appends keys and values to each sequence's cache and mixes the values: (T, E), heads side by side."""
    if len(pack.spans) == 1:
        return _attend(query_THC, key_TKC, value_TKC, pack.spans[0], masks[0], layer, scale, heads)
    parts: list[Array] = []
    for number, span in enumerate(pack.spans):
        own = slice(span.start, span.stop)
        with scope(sequence=number):
            parts.append(
                _attend(
                    query_THC[own], key_TKC[own], value_TKC[own], span, masks[number], layer, scale, heads
                )
            )
    return merge_tokens(parts)


def _attend(
    query_THC: Array,
    key_TKC: Array,
    value_TKC: Array,
    span: Span,
    masks: Sequence[Array | None],
    layer: int,
    scale: float,
    heads: Heads,
) -> Array:
    """One sequence; its queries in blocks, each of which sees the keys up to its own last token."""
    span.cache.append(layer, key_TKC, value_TKC)
    keys_KSC, values_KSC = span.cache.view(layer)
    form = _together if heads == "together" else _separate
    if len(masks) == 1:
        return form(query_THC, keys_KSC, values_KSC, masks[0], scale)
    parts: list[Array] = []
    for block, mask_TP in zip(blocks(span), masks, strict=True):
        own = slice(block.start - span.start, block.stop - span.start)
        seen = keys_KSC.shape[1] - (span.stop - block.stop)
        parts.append(form(query_THC[own], keys_KSC[:, :seen], values_KSC[:, :seen], mask_TP, scale))
    return merge_tokens(parts)


def _together(
    query_THC: Array, keys_KSC: Array, values_KSC: Array, mask_TP: Array | None, scale: float
) -> Array:
    scores_HTS = attention_scores(query_THC, keys_KSC, mask_TP, scale=scale)
    weights_HTS = softmax(scores_HTS)
    mixed_HTC = attention_mix(weights_HTS, values_KSC)
    merged_TE = merge_heads(mixed_HTC)
    return merged_TE


def _separate(
    query_THC: Array, keys_KSC: Array, values_KSC: Array, mask_TP: Array | None, scale: float
) -> Array:
    group = query_THC.shape[1] // keys_KSC.shape[0]
    mixed: list[Array] = []
    for head in range(query_THC.shape[1]):
        own, shared = slice(head, head + 1), slice(head // group, head // group + 1)
        with scope(head=head):
            scores_HTS = attention_scores(query_THC[:, own], keys_KSC[shared], mask_TP, scale=scale)
            weights_HTS = softmax(scores_HTS)
            mixed_HTC = attention_mix(weights_HTS, values_KSC[shared])
            mixed.append(mixed_HTC)
    merged_TE = merge_heads(mixed)
    return merged_TE
