"""Keys, or values, of one layer: whole groups in few bits, and the latest positions as they were given.

The latest positions lie in a ring of floats, position p in row p mod P. P is a multiple of the group, so that a
group is never cut by the ring's end. Groups lie in segments, each as large as all before it together: a new
segment is added behind the others, and nothing is ever copied to make room.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from haaw.arrays import Array
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.caches.quantising import (
    kv_dequantise,
    kv_quantise_group,
    kv_quantise_lowest,
    kv_quantise_step,
)
from haaw.caches.writes import kv_allocate, kv_allocate_groups, kv_append, kv_move, kv_move_groups

FIRST_GROUPS = 4


@dataclass(frozen=True)
class Grouping:
    """How positions are grouped: `bits` of a code, `group` positions, and `residual` positions kept as floats.

    Errors: `CacheError` for a value that cannot be.
    """

    bits: int
    group: int
    residual: int

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise CacheError(f"codes of {self.bits} bits are not known; use 4 or 8")
        if self.group < 1 or (self.bits == 4 and self.group % 2):
            rule = (
                "1 or more" if self.bits == 8 else "an even number of 2 or more, since two codes share a byte"
            )
            raise CacheError(f"a group of {self.group} positions cannot be; use {rule}")
        if self.residual < self.group:
            raise CacheError(
                f"a residual of {self.residual} positions is smaller than a group; use {self.group} or more"
            )

    def quantised_of(self, tokens: int) -> int:
        """How many of so many tokens are in codes: max(0, tokens − residual), rounded down to a group."""
        return self.whole(max(0, tokens - self.residual))

    def whole(self, positions: int) -> int:
        """`positions` rounded down to a group."""
        return positions // self.group * self.group

    def ring_for(self, positions: int) -> int:
        """Rows of a ring that must hold so many positions, and always a residual and one group behind it."""
        return self.whole(max(positions, self.residual + self.group) + self.group - 1)


class Segment(NamedTuple):
    """Groups in one allocation: codes, and the lowest value and the step of each tile."""

    codes_MKPC: Array
    lowest_MKAZ: Array
    step_MKAZ: Array


class QuantisedRows:
    """Rows of one layer; positions below a limit that the cache knows are in codes, the others in the ring."""

    def __init__(
        self, layout: CacheLayout, grouping: Grouping, prototype_Z: Array, *, tiles: tuple[int, int]
    ) -> None:
        """Nothing yet. `tiles`: how many tiles a group has along its positions and along its channels."""
        self.ring_KPC: Array | None = None
        self.segments: list[Segment] = []
        self._layout = layout
        self._grouping = grouping
        self._prototype_Z = prototype_Z
        self._tiles = tiles

    @property
    def ring_positions(self) -> int:
        """Rows of the ring."""
        return 0 if self.ring_KPC is None else int(self.ring_KPC.shape[1])

    @property
    def group_positions(self) -> int:
        """Positions that groups have been allocated for."""
        return sum(len(segment.codes_MKPC) for segment in self.segments) * self._grouping.group

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [part for segment in self.segments for part in segment]
        if self.ring_KPC is not None:
            arrays.append(self.ring_KPC)
        return sum(int(array.nbytes) for array in arrays)

    def resize_ring(self, positions: int, first: int, stop: int) -> None:
        """A new ring of so many rows, which takes over the positions first … stop - 1."""
        layout, old = self._layout, self.ring_KPC
        new_KPC = kv_allocate(
            layout.kv_heads, positions, layout.head_dim, dtype=layout.dtype, prototype_Z=self._prototype_Z
        )
        if old is not None:
            for start, end in _pieces(first, stop, self.ring_positions, positions):
                row = start % positions
                kv_move(new_KPC[:, row : row + end - start], self._window(start, end))
        self.ring_KPC = new_KPC

    def append(self, rows_TKC: Array, start: int) -> None:
        """Writes rows into the ring, which must have room for them."""
        for first, stop in _pieces(start, start + rows_TKC.shape[0], self.ring_positions):
            part = rows_TKC[first - start : stop - start]
            kv_append(self.ring_KPC, part, start=first % self.ring_positions)

    def quantise(self, start: int, stop: int) -> None:
        """Makes codes of the whole groups that lie at start … stop - 1; the ring is left as it is."""
        if stop > self.group_positions:
            self._add_segment((stop - self.group_positions) // self._grouping.group)
        group, bits = self._grouping.group, self._grouping.bits
        for begin, segment in self._placed():
            end = begin + len(segment.codes_MKPC) * group
            for first, last in _pieces(max(start, begin), min(stop, end), self.ring_positions):
                own = slice((first - begin) // group, (last - begin) // group)
                codes_MKPC, lowest_MKAZ, step_MKAZ = (part[own] for part in segment)
                rows_KSC = self._window(first, last)
                kv_quantise_lowest(lowest_MKAZ, rows_KSC)
                kv_quantise_step(step_MKAZ, rows_KSC, lowest_MKAZ, bits=bits)
                kv_quantise_group(codes_MKPC, rows_KSC, lowest_MKAZ, step_MKAZ, bits=bits)

    def view(self, quantised: int, stop: int) -> Array:
        """Rows (K, S, C) of the positions 0 … stop - 1, of which the first `quantised` are in codes.

        A window on the ring where none are, otherwise a new array.
        """
        if not quantised:
            return self._window(0, stop)
        parts = [
            Segment(*(part[: (quantised - begin) // self._grouping.group] for part in segment))
            for begin, segment in self._placed()
            if begin < quantised
        ]
        recent = [self._window(*piece) for piece in _pieces(quantised, stop, self.ring_positions)]
        return kv_dequantise(
            [part.codes_MKPC for part in parts],
            [part.lowest_MKAZ for part in parts],
            [part.step_MKAZ for part in parts],
            [rows_KTC.transpose(1, 0, 2) for rows_KTC in recent or [self._window(0, 0)]],
            bits=self._grouping.bits,
        )

    def copy_to(self, twin: "QuantisedRows", quantised: int, stop: int) -> None:
        """Gives an empty twin the first `stop` positions, groups as they are."""
        if quantised:
            twin._add_segment(quantised // self._grouping.group)
        for begin, segment in self._placed():
            if begin < quantised:
                groups = min(len(segment.codes_MKPC), (quantised - begin) // self._grouping.group)
                first = begin // self._grouping.group
                for new, old in zip(twin.segments[0], segment, strict=True):
                    kv_move_groups(new[first : first + groups], old[:groups])
        twin.resize_ring(self._grouping.ring_for(stop - quantised), 0, 0)
        for start, end in _pieces(quantised, stop, self.ring_positions, twin.ring_positions):
            row = start % twin.ring_positions
            assert twin.ring_KPC is not None
            kv_move(twin.ring_KPC[:, row : row + end - start], self._window(start, end))

    def release(self) -> None:
        """Drops all arrays."""
        self.ring_KPC = None
        self.segments = []

    def _window(self, start: int, stop: int) -> Array:
        """The positions start … stop - 1 of the ring, which do not go over its end."""
        assert self.ring_KPC is not None
        row = start % self.ring_positions
        return self.ring_KPC[:, row : row + stop - start]

    def _placed(self) -> Iterator[tuple[int, Segment]]:
        """Each segment with its first position."""
        begin = 0
        for segment in self.segments:
            yield begin, segment
            begin += len(segment.codes_MKPC) * self._grouping.group

    def _add_segment(self, groups: int) -> None:
        layout, grouping = self._layout, self._grouping
        held = self.group_positions // grouping.group
        groups = max(groups, held, FIRST_GROUPS)
        down, across = self._tiles

        def allocate(rows: int, columns: int, dtype: str) -> Array:
            return kv_allocate_groups(
                groups, layout.kv_heads, rows, columns, dtype=dtype, prototype_Z=self._prototype_Z
            )

        self.segments.append(
            Segment(
                allocate(grouping.group * grouping.bits // 8, layout.head_dim, "uint8"),
                allocate(down, across, layout.dtype),
                allocate(down, across, layout.dtype),
            )
        )


def _pieces(start: int, stop: int, *rings: int) -> Iterator[tuple[int, int]]:
    """The positions start … stop - 1 in parts that go over no ring's end."""
    while start < stop:
        end = min(stop, *((start // ring + 1) * ring for ring in rings))
        yield start, end
        start = end
