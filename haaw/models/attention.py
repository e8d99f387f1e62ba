"""Attention over a pack: each sequence looks at its own cache; heads all together or one by one.

The only place where sequences are told apart. Knows nothing of projections, norms or positions' encoding.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from haaw.arrays import Array, like
from haaw.caches.protocol import Window, forgets, positions_of, windows_of
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
from haaw.ops.recorder import declare, scope

BLOCK_TOKENS = 128
"""So many queries are taken at a time: each block skips the keys that lie behind its last token."""


@dataclass(frozen=True, slots=True)
class Block:
    """Queries of one sequence that are taken at once, and what they see.

    `tokens` are those of the sequence's rows in this step, `rows` those of the cache's view (None: all).
    `mask_TP` is the mask on the last P of these rows, None where each query sees them all.
    """

    tokens: slice
    rows: slice | None
    mask_TP: Array | None


Masks = Sequence[Sequence[Block]]
"""For each layer the blocks of a sequence; layers that see alike share theirs."""


def blocks(span: Span) -> list[slice]:
    """The tokens of a sequence in this step, cut into blocks as equal as can be, counted from its first."""
    tokens = span.stop - span.start
    count = -(-tokens // BLOCK_TOKENS)
    cuts = [tokens * block // count for block in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def causal_masks(pack: Pack, *, dtype: str) -> list[Masks]:
    """For each sequence what its tokens see in each layer; to be called before the first append."""
    masks: list[Masks] = []
    for number, span in enumerate(pack.spans):
        with scope(sequence=number if len(pack.spans) > 1 else None, part="mask"):
            windows = windows_of(span.cache)
            if windows is None:
                masks.append([_seeing_all(pack, span, dtype)] * span.cache.layout.layers)
            else:
                masks.append(_seeing_windows(pack, span, windows, dtype))
    return masks


def _own_mask(pack: Pack, span: Span, block: slice, dtype: str) -> Array | None:
    """The mask on the block's own tokens where all earlier keys are visible: none for a single token."""
    if block.stop - block.start == 1:
        return None
    positions_T = pack.positions_T[span.start + block.start : span.start + block.stop]
    return causal_mask(positions_T, positions_T, dtype=dtype)


def _seeing_all(pack: Pack, span: Span, dtype: str) -> list[Block]:
    cut, before = blocks(span), span.cache.length
    return [
        Block(
            block, slice(before + block.stop) if len(cut) > 1 else None, _own_mask(pack, span, block, dtype)
        )
        for block in cut
    ]


def _seeing_windows(pack: Pack, span: Span, windows: Sequence[Window | None], dtype: str) -> Masks:
    """Layers of the same window hold the same positions, and share their masks."""
    tokens = span.stop - span.start
    found: dict[Window | None, list[Block]] = {}
    for layer, window in enumerate(windows):
        if window in found:
            continue
        if window is None:
            found[window] = _seeing_all(pack, span, dtype)
        elif tokens == 1 and forgets(span.cache):  # keeps no row that the next token would not see
            found[window] = [Block(slice(1), None, None)]
        else:
            held = positions_of(span.cache, layer, more=tokens)
            found[window] = _seeing_window(pack, span, window, held, dtype)
    return [found[window] for window in windows]


def _seeing_window(pack: Pack, span: Span, window: Window, held: Sequence[int], dtype: str) -> list[Block]:
    """Blocks over rows in order of position: each skips the rows that none of its queries sees."""
    found: list[Block] = []
    after_sinks = bisect_left(held, window.sinks)
    for block in blocks(span):
        first, last = span.cache.length + block.start, span.cache.length + block.stop - 1
        start = 0 if after_sinks else bisect_left(held, first - window.tokens + 1)
        rows = slice(start, bisect_right(held, last))
        oldest = held[max(start, after_sinks)] if after_sinks < len(held) else last
        if last - oldest < window.tokens:
            mask_TP = _own_mask(pack, span, block, dtype)
        else:
            positions_T = pack.positions_T[span.start + block.start : span.start + block.stop]
            keys_P = like(np.asarray(held[rows], dtype=np.int64), positions_T)
            mask_TP = causal_mask(
                positions_T,
                declare("key positions", keys_P),
                dtype=dtype,
                window=window.tokens,
                sinks=window.sinks,
            )
        found.append(Block(block, rows, mask_TP))
    return found


def attend(
    query_THC: Array,
    key_TKC: Array,
    value_TKC: Array,
    pack: Pack,
    masks: Sequence[Masks],
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
    masks: Masks,
    layer: int,
    scale: float,
    heads: Heads,
) -> Array:
    """One sequence; its queries in blocks, each of which looks at the rows that it may see."""
    span.cache.append(layer, key_TKC, value_TKC)
    keys_KSC, values_KSC = span.cache.view(layer)
    form = _together if heads == "together" else _separate
    own = masks[layer]
    if len(own) == 1 and own[0].rows is None:
        return form(query_THC, keys_KSC, values_KSC, own[0].mask_TP, scale)
    parts = [
        form(
            query_THC[block.tokens], keys_KSC[:, block.rows], values_KSC[:, block.rows], block.mask_TP, scale
        )
        for block in own
    ]
    return parts[0] if len(parts) == 1 else merge_tokens(parts)


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
