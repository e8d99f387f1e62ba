"""One segment of a trace in the making: packed rows, and string tables that they point into."""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.tracing.hashing import layout_seed
from haaw.tracing.schema import EVENT, KEPT, LINK, OUTPUT, PLACE_FIELDS, segment_member

_STRUCT_CODES = {
    "u1": "B",
    "i1": "b",
    "u2": "H",
    "i2": "h",
    "u4": "I",
    "i4": "i",
    "u8": "Q",
    "i8": "q",
    "f4": "f",
}


def row_packer(dtype: np.dtype[Any]) -> struct.Struct:
    """Packs the fields of one row, as numbers and bytes, into the bytes of a packed structured dtype."""
    assert dtype.fields is not None
    codes = "<"
    for name in dtype.names or ():
        field = dtype.fields[name][0]
        codes += f"{field.itemsize}s" if field.subdtype else _STRUCT_CODES[field.str[1:]]
    return struct.Struct(codes)


class Rows:
    """The packed rows of one table, one behind the other, so that the next row is written where memory is warm."""

    __slots__ = ("buffer", "count", "dtype", "limit", "pack_into", "width")

    def __init__(self, dtype: np.dtype[Any], room: int) -> None:
        self.dtype = dtype
        self.width = dtype.itemsize
        self.buffer = bytearray(room * self.width)
        self.count = 0
        self.limit = room
        self.pack_into = _PACKERS[dtype].pack_into

    def append(self, *fields: Any) -> None:
        """Adds a row."""
        if self.count == self.limit:
            self.grow()
        self.pack_into(self.buffer, self.count * self.width, *fields)
        self.count += 1

    def write(self, rows: np.ndarray) -> None:
        """Writes rows behind the last one, without counting them."""
        missing = self.count + len(rows) - self.limit
        if missing > 0:
            self.buffer = self.buffer + bytes(missing * self.width)
            self.limit += missing
        start = self.count * self.width
        with memoryview(self.buffer) as buffer:  # a bytearray would copy them once more
            buffer[start : start + rows.nbytes] = rows.tobytes()

    def extend(self, rows: np.ndarray) -> None:
        """Adds rows of the table's dtype."""
        self.write(rows)
        self.count += len(rows)

    def grow(self) -> None:
        """Makes room for as many rows again."""
        # A new one: an interrupt in `write` leaves a view on the old one for as long as its traceback is kept.
        self.buffer = self.buffer + bytes(len(self.buffer))
        self.limit *= 2

    def table(self) -> np.ndarray:
        """The rows as a structured array."""
        return np.frombuffer(self.buffer, dtype=self.dtype, count=self.count)

    def set_hash(self, row: int, digest: bytes) -> None:
        """Fills in the last 16 bytes of a row, which are its hash."""
        end = (row + 1) * self.width
        self.buffer[end - 16 : end] = digest


pack_place = row_packer(np.dtype([(name, EVENT[name]) for name in PLACE_FIELDS])).pack

_PACKERS = {dtype: row_packer(dtype) for dtype in (LINK, OUTPUT, KEPT)}
_PACKERS[EVENT] = struct.Struct(
    "<BBHH14sHHIIqf"
)  # the place as one piece, which is packed once for many rows
assert _PACKERS[EVENT].size == EVENT.itemsize


class Table:
    """A string table: the number of each thing that was asked for, in the order of first use."""

    __slots__ = ("entries", "number_of")

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.number_of: dict[Any, int] = {}

    def begin_like(self, other: "Table") -> None:
        """Begins with what another table has."""
        self.entries[:] = other.entries  # first, for an interrupt may come between the two
        self.number_of.update(other.number_of)

    def number(self, key: Any, entry: Any = None) -> int:
        """The number of `key`; `entry` (else the key itself) is what the file will say."""
        number = self.number_of.get(key)
        if number is None:
            # The entry first, since an interrupt may come between the two.
            self.entries.append(key if entry is None else entry)
            number = self.number_of[key] = len(self.entries) - 1
        return number


encoded = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, default=str).encode
"""A value as it stands in `info.json`."""

Layout = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""dtype, shape and strides (bytes) of an array."""

_WRITTEN: dict[Layout, tuple[str, int]] = {}
"""Layouts as they are written, and the seeds of their hashes: every segment names the same few dozen anew."""

_MOST_WRITTEN = 20_000  # every step of a long run brings new lengths


class Segment:
    """The rows since the last write. The recorder appends to the lists; `members` gives the file's members."""

    def __init__(self, number: int, first_event: int, room: Sequence[int] = 4 * (64,)) -> None:
        """`room` is for how many rows of events, links, outputs and kept arrays there is room at first."""
        self.number = number
        self.first_event = first_event
        self.events, self.links, self.outputs, self.kept = map(Rows, (EVENT, LINK, OUTPUT, KEPT), room)
        self.arena = bytearray()
        self.facts: list[tuple[int, Mapping[str, Any]]] = []
        self.stages, self.parts, self.names = Table(), Table(), Table()
        self.sites, self.args = Table(), Table()  # sites as they are written
        self.args.number("{}")
        self.layout_of: dict[Layout, tuple[int, int, bool]] = {}
        self.layouts: list[str] = []  # as they are written

    @property
    def row_counts(self) -> tuple[int, int, int, int]:
        """How many rows of events, links, outputs and kept arrays there are."""
        return self.events.count, self.links.count, self.outputs.count, self.kept.count

    @property
    def kept_slots(self) -> set[tuple[int, int]]:
        """Event and slot of each kept array."""
        return set(self.kept.table()[["event", "slot"]].tolist())

    def begin_layouts(self, weights: Iterable[Array]) -> None:
        """The weights' layouts come first, in the same order in every segment: a weight's number stays."""
        for weight in weights:
            self.layout(weight)

    def begin_like(self, other: "Segment") -> None:
        """Begins with the layouts of a segment that has those of the weights alone."""
        self.layouts, self.layout_of = other.layouts.copy(), other.layout_of.copy()

    def layout_number(self, array: Array) -> int:
        """The number of an array's layout."""
        return self.layout(array)[0]

    def layout(self, array: Array) -> tuple[int, int, bool]:
        """The number of an array's layout, the seed of its hash, and whether it is contiguous in C order."""
        key = (array.dtype, array.shape, array.strides)
        return self.layout_of.get(key) or self.new_layout(key, bool(array.flags.c_contiguous))

    def new_layout(self, key: Layout, contiguous: bool) -> tuple[int, int, bool]:
        """Numbers a layout that the segment does not have yet; gives what `layout` gives."""
        found = _WRITTEN.get(key)
        if found is None:
            dtype, shape, strides = key[0].str, [*map(int, key[1])], [*map(int, key[2])]
            if len(_WRITTEN) > _MOST_WRITTEN:
                _WRITTEN.clear()
            written = f'["{dtype}",{shape},{strides}]'.replace(" ", "")
            found = _WRITTEN[key] = written, layout_seed(dtype, tuple(shape))
        self.layouts.append(found[0])  # first, as in `Table.number`
        known = self.layout_of[key] = len(self.layouts) - 1, found[1], contiguous
        return known

    def make_room(self, operations: int) -> None:
        """Makes room for so many events."""
        while self.events.limit - self.events.count < operations:
            self.events.grow()

    def members(self) -> list[tuple[str, Any]]:
        """Names and contents of the members that are written at the end of a segment, `info.json` last."""
        tables: list[tuple[str, Any]] = []
        for name, rows in (
            ("events.npy", self.events),
            ("links.npy", self.links),
            ("outputs.npy", self.outputs),
            ("kept.npy", self.kept),
        ):
            if rows.count or rows is self.events:
                tables.append((segment_member(self.number, name), rows.table()))
        if self.arena:
            arena = np.frombuffer(self.arena, dtype=np.uint8)
            tables.append((segment_member(self.number, "arena.npy"), arena))
        info = {
            "first_event": self.first_event,
            "stages": self.stages.entries,
            "parts": self.parts.entries,
            "names": self.names.entries,
            "args": self.args.entries,
            "facts": self.facts,
        }
        text = f'{encoded(info)[:-1]},"sites":[{",".join(self.sites.entries)}],"layouts":[{",".join(self.layouts)}]}}'
        tables.append((segment_member(self.number, "info.json"), text.encode("ascii")))
        return tables
