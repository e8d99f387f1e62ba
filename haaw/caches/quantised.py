"""The cache of few bits: positions that lie further back become codes of 8 or 4 bits, group by group.

Keys are quantised per channel, since some channels are large in every position; values per token. The latest
positions stay as they are. After Liu et al. 2024 (KIVI), arXiv:2402.02750.
"""

from math import gcd
from typing import Literal

import numpy as np

from haaw.arrays import Array
from haaw.caches.protocol import CacheError, CacheLayout, CacheMemory, CachePlan, check_rows, check_step
from haaw.caches.quantised_rows import Grouping, QuantisedRows
from haaw.ops.recorder import emit, scope


class QuantisedCache:
    """Whole groups as codes, and the latest `residual` positions, and those short of a group, as floats.

    After t tokens max(0, t − residual), rounded down to a group, are in codes; each group was quantised once.
    A value differs from what was appended by half a step at most, (max − min) / (2 · (2^bits − 1)) of its tile,
    and rounding (`kv_dequantise`). The price: every view brings all of a layer's codes back into a new array.

    A step becomes codes at its end, and its rows stay in the ring until others need the room, so that a
    step can be taken back exactly.
    """

    kind = "quantised"

    def __init__(
        self,
        layout: CacheLayout,
        prototype_Z: Array,
        *,
        bits: Literal[4, 8] = 8,
        group: int = 32,
        residual: int | None = None,
    ) -> None:
        """An empty cache. `residual`: positions kept as floats, at least a group (None: one group).

        Values are quantised in tiles of as many channels as divide the head evenly, `group` at most.
        """
        self.layout = layout
        self.grouping = Grouping(bits, group, group if residual is None else residual)
        self._prototype_Z = prototype_Z
        self._length = 0
        self._quantised = 0
        self._floats_from = 0  # from this position on, the rings of all layers still hold the rows as given
        self._appended = [0] * layout.layers
        key_tiles, value_tiles = (1, layout.head_dim), (group, layout.head_dim // self.value_tile_channels)
        self._layers = [
            (
                QuantisedRows(layout, self.grouping, prototype_Z, tiles=key_tiles),
                QuantisedRows(layout, self.grouping, prototype_Z, tiles=value_tiles),
            )
            for _ in range(layout.layers)
        ]

    @classmethod
    def plan(
        cls,
        layout: CacheLayout,
        *,
        context_length_tokens: int,
        bits: int = 8,
        group: int = 32,
        residual: int | None = None,
    ) -> CachePlan:
        """Errors: `CacheError` for a group, a residual or bits that cannot be."""
        grouping = Grouping(bits, group, group if residual is None else residual)
        return CachePlan(
            notes=(
                f"keys and values of all but the last {grouping.residual} to "
                f"{grouping.residual + group - 1} positions are rounded to {bits} bits",
            )
        )

    @property
    def value_tile_channels(self) -> int:
        """Channels of a value that share a scale: the largest divisor of the head that is no larger than a group."""
        channels = self.layout.head_dim
        return max(gcd(channels, width) for width in range(1, min(channels, self.grouping.group) + 1))

    @property
    def length(self) -> int:
        """Positions held, complete in every layer: those in codes and those in floats."""
        return self._length

    @property
    def quantised(self) -> int:
        """Positions in codes; a multiple of the group."""
        return self._quantised

    @property
    def capacity(self) -> int:
        """Positions that memory is allocated for, as codes and as floats, in the layer that has the fewest."""
        return min(
            (rows.group_positions + rows.ring_positions for pair in self._layers for rows in pair), default=0
        )

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Writes rows behind those that the layer has, as floats."""
        self._check_usable()
        tokens = check_rows(self.layout, key_TKC, value_TKC)
        start = self._length + self._appended[layer]
        for rows, new_TKC in zip(self._layers[layer], (key_TKC, value_TKC), strict=True):
            self._make_room(layer, rows, start, start + tokens)
            rows.append(new_TKC, start)
        self._appended[layer] += tokens

    def _make_room(self, layer: int, rows: QuantisedRows, start: int, stop: int) -> None:
        """A ring that holds all floats up to `stop`; a large one of an earlier step is given back."""
        needed = self.grouping.ring_for(stop - self._quantised)
        before = rows.ring_positions
        if before < stop - self._quantised or (before > needed and not self._appended[layer]):
            self._floats_from = max(self._floats_from, self._quantised)
            rows.resize_ring(needed, self._quantised, start)
            if before:
                moved = start - self._quantised
                emit("ring_resized", layer=layer, positions=needed, before=before, moved_positions=moved)
        self._floats_from = max(self._floats_from, stop - rows.ring_positions)

    def _check_usable(self) -> None:
        if not self._layers:
            raise CacheError("this cache was released; make a new one")

    def view(self, layer: int) -> tuple[Array, Array]:
        """Keys and values (K, S, C) of one layer, the rows under way included.

        New arrays, filled from the codes each time, once there are codes; windows on the floats before.
        """
        self._check_usable()
        keys, values = self._layers[layer]
        if not keys.ring_positions:
            raise CacheError(f"layer {layer} of this cache is empty; append to it first")
        end = self._length + self._appended[layer]
        return keys.view(self._quantised, end), values.view(self._quantised, end)

    def commit(self, tokens: int) -> None:
        """Ends a step: `length` grows by `tokens`, which every layer must have been given; full groups become codes."""
        check_step(self._appended, tokens)
        length = self._length + tokens
        before, quantised = self._quantised, max(self._quantised, self.grouping.quantised_of(length))
        if quantised > before:
            self._quantise(before, quantised)
            emit("groups_quantised", start=before, stop=quantised, positions_as_floats=length - quantised)
        self._length, self._quantised = length, quantised  # last: until here the step can still fail
        self._appended = [0] * self.layout.layers

    def _quantise(self, start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # what is no number stays none; the scores are judged elsewhere
            for layer, pair in enumerate(self._layers):
                with scope(layer=layer):
                    for rows in pair:
                        rows.quantise(start, stop)

    def crop_to(self, length: int) -> None:
        """Forgets the positions from `length` on, and rows of an unfinished step; memory stays allocated.

        Exact: a group that is cut must still be there as floats, and those it is made of again.
        Errors: `CacheError` for a length inside a group of which there are only codes.
        """
        if not 0 <= length <= self._length:
            raise CacheError(f"cannot crop to {length} positions; this cache holds {self._length}")
        grouping = self.grouping
        floats_from = grouping.whole(self._floats_from + grouping.group - 1)
        wanted = max(grouping.quantised_of(length), floats_from)
        if wanted <= length:
            quantised = min(self._quantised, wanted)
        elif length >= self._quantised or length == grouping.whole(length):
            quantised = min(self._quantised, length)
        else:
            raise CacheError(
                f"cannot crop to {length} positions, which is inside a group that is quantised as a whole; "
                f"crop to {grouping.whole(length)} or another multiple of {grouping.group}, or to {floats_from} or more"
            )
        self._length, self._quantised = length, quantised
        self._appended = [0] * self.layout.layers

    def fork(self) -> "QuantisedCache":
        """An independent copy of the committed positions; groups are copied, never quantised again."""
        self._check_usable()
        bits: Literal[4, 8] = 4 if self.grouping.bits == 4 else 8
        twin = QuantisedCache(
            self.layout,
            self._prototype_Z,
            bits=bits,
            group=self.grouping.group,
            residual=self.grouping.residual,
        )
        if self._length:
            for own, new in zip(self._layers, twin._layers, strict=True):
                for rows, copy in zip(own, new, strict=True):
                    rows.copy_to(copy, self._quantised, self._length)
        twin._length, twin._quantised, twin._floats_from = self._length, self._quantised, self._quantised
        return twin

    def release(self) -> None:
        """Drops all arrays."""
        for pair in self._layers:
            for rows in pair:
                rows.release()
        self._layers = []
        self._appended = [0] * self.layout.layers
        self._length = self._quantised = 0

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Useful bytes: bits/8 for each element in codes, those of the layout for each float of a committed position.

        Metadata: the lowest values and steps of the groups in use. Both lie within the allocated bytes.
        """
        layout, grouping = self.layout, self.grouping
        layers = layout.layers if layer is None else 1
        elements = 2 * layers * layout.kv_heads * layout.head_dim
        floats = (self._length - self._quantised) * layout.position_bytes(layer)
        tiles = layout.head_dim + grouping.group * (layout.head_dim // self.value_tile_channels)
        ranges = 2 * layers * layout.kv_heads * tiles * np.dtype(layout.dtype).itemsize
        pairs = self._layers if layer is None or not self._layers else [self._layers[layer]]
        allocated = sum(rows.nbytes for pair in pairs for rows in pair)
        return CacheMemory(
            self._quantised * elements * grouping.bits // 8 + floats,
            allocated,
            self._quantised // grouping.group * ranges,
            0,
        )
