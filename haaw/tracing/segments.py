"""Reading segments: tables are looked at when they are needed, and what stands in them is checked before it is used."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from haaw.tracing.container import Container, TraceDamagedError
from haaw.tracing.fact_checks import wrong_field
from haaw.tracing.schema import (
    EVENT,
    FACT,
    KEPT,
    LINK,
    NOT_IN_A_LIST,
    OPERATION,
    OUTPUT,
    segment_member,
    value_member,
)

ENTRIES_OF = {
    "stages": str,
    "parts": str,
    "names": str,
    "sites": list,
    "args": str,
    "layouts": list,
    "facts": list,
}

dtype_of = cache(np.dtype)


class Layout(NamedTuple):
    """How an array lies in memory; strides in bytes."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class SegmentReader:
    """One segment of a file. Its rows are numbered from 0; `first_event` is the number of the first in the file."""

    def __init__(
        self, container: Container, number: int, first_event: int, count: int, known_ops: int
    ) -> None:
        self.container = container
        self.number = number
        self.first_event = first_event
        self.count = count
        self._known_ops = known_ops

    def forget(self) -> None:
        """Lets go of everything that was read; it is read again when it is needed."""
        for name, value in vars(SegmentReader).items():
            if isinstance(value, cached_property):
                self.__dict__.pop(name, None)

    def _member(self, what: str) -> str:
        return segment_member(self.number, what)

    def _table(self, what: str, dtype: np.dtype[Any]) -> np.ndarray:
        name = self._member(what)
        if name not in self.container.members:
            return np.zeros(0, dtype=dtype)
        table = self.container.array(name)
        if table.dtype != dtype or table.ndim != 1:
            raise TraceDamagedError(
                f"{name} of {self.container.name} is no table of the expected kind; the file is damaged"
            )
        return table

    @cached_property
    def events(self) -> np.ndarray:
        """Rows of `EVENT`. Errors: `TraceDamagedError` where they point outside the other tables or share rows."""
        events = self._table("events.npy", EVENT)
        if len(events) != self.count:
            self._damaged("events.npy", f"it has {len(events)} rows and not {self.count}")
        for first, count, table in (
            ("first_link", "links", self.links),
            ("first_output", "outputs", self.outputs),
        ):
            ends = events[first].astype(np.int64) + events[count]
            if len(ends) and int(ends.max()) > len(table):
                self._damaged("events.npy", f"a row points behind the end of the {count}")
            if int(events[count].sum(dtype=np.int64)) > len(table):
                self._damaged("events.npy", f"several rows have the same {count}")
        is_op = events["kind"] == OPERATION
        if len(events) and int(events["kind"].max()) > FACT:
            self._damaged("events.npy", "a row is of an unknown kind")
        if not np.isfinite(events["took_ns"]).all():
            self._damaged("events.npy", "a time is no number")
        if is_op.any() and int(events["name"][is_op].max()) >= self._known_ops:
            self._damaged("events.npy", "a row names an operation that the manifest does not list")
        for field, table_name in (
            ("stage", "stages"),
            ("part", "parts"),
            ("site", "sites"),
            ("args", "args"),
        ):
            self._points_into(
                "events.npy",
                events[field][is_op] if field in ("site", "args") else events[field],
                table_name,
            )
        self._points_into("events.npy", events["name"][~is_op], "names")
        return events

    def _points_into(self, what: str, numbers: np.ndarray, table: str) -> None:
        if len(numbers) and int(numbers.max()) >= len(self.info[table]):
            self._damaged(what, f'a row points behind the end of the table "{table}"')

    def _damaged(self, what: str, why: str) -> None:
        raise TraceDamagedError(f"{self._member(what)} of {self.container.name} is damaged: {why}")

    @cached_property
    def links(self) -> np.ndarray:
        """Rows of `LINK`."""
        links = self._table("links.npy", LINK)
        self._points_into("links.npy", links["layout"], "layouts")
        return links

    @cached_property
    def outputs(self) -> np.ndarray:
        """Rows of `OUTPUT`."""
        outputs = self._table("outputs.npy", OUTPUT)
        self._points_into("outputs.npy", outputs["layout"], "layouts")
        return outputs

    @cached_property
    def kept(self) -> "KeptRows":
        """Of the kept values by event, slot and item: layout, whether it is a member of its own, offset and bytes."""
        return KeptRows(self.kept_table)

    @cached_property
    def kept_table(self) -> np.ndarray:
        """Rows of `KEPT`."""
        table = self._table("kept.npy", KEPT)
        self._points_into("kept.npy", table["layout"], "layouts")
        return table

    @cached_property
    def info(self) -> dict[str, Any]:
        """The string tables and the facts."""
        name = self._member("info.json")
        info = read_json(self.container, name)
        if (
            not all(isinstance(info.get(key), list) for key in ENTRIES_OF)
            or info.get("first_event") != self.first_event
        ):
            self._damaged("info.json", "a table is missing or does not fit")
        for key, kind in ENTRIES_OF.items():
            if not all(isinstance(entry, kind) for entry in info[key]):
                self._damaged("info.json", f'the table "{key}" holds something else')
        for key, check in (("sites", _is_site), ("facts", _is_fact)):
            if not all(map(check, info[key])):
                self._damaged("info.json", f'the table "{key}" holds something else')
        return info

    @cached_property
    def rows(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Events, links and outputs (without hashes) as lists of tuples, for going through all of them."""
        outputs = self.outputs[["buffer", "version", "layout", "offset"]].tolist()
        return self.events.tolist(), self.links.tolist(), outputs

    @cached_property
    def layouts(self) -> list[Layout]:
        """The layouts that links, outputs and kept values have."""
        layouts = []
        for entry in self.info["layouts"]:
            try:
                dtype, shape, strides = entry
                layout = Layout(np.dtype(dtype).str, tuple(map(int, shape)), tuple(map(int, strides)))
            except (TypeError, ValueError):
                self._damaged("info.json", f"{entry!r:.60} is no layout")
            if (
                len(layout.shape) != len(layout.strides)
                or min((*layout.shape, 0)) < 0
                or np.dtype(layout.dtype).hasobject
            ):
                self._damaged("info.json", f"{entry!r:.60} is no layout")
            layouts.append(layout)
        return layouts

    @cached_property
    def args(self) -> list[Mapping[str, Any]]:
        """The arguments that are no arrays, by parameter."""
        try:
            arguments = [json.loads(text) for text in self.info["args"]]
        except (ValueError, RecursionError):
            self._damaged("info.json", "the arguments of an operation are no JSON")
            raise
        if not all(isinstance(each, dict) for each in arguments):
            self._damaged("info.json", "the arguments of an operation are no JSON object")
        return arguments

    @cached_property
    def facts(self) -> dict[int, dict[str, Any]]:
        """The facts by event. Errors: `TraceDamagedError` where one lacks what its readers follow."""
        facts = {int(event): each for event, each in self.info["facts"]}
        for row in self.fact_events():
            kind = self.info["names"][int(self.events["name"][row])]
            if (field := wrong_field(kind, facts.get(row, {}))) is not None:
                self._damaged(
                    "info.json", f'the "{field}" of a fact "{kind:.40}" is missing or something else'
                )
        return facts

    def fact_events(self) -> list[int]:
        """The events that are facts."""
        return np.flatnonzero(self.events["kind"] == FACT).tolist()

    def kept_value(self, event: int, slot: int, item: int = NOT_IN_A_LIST) -> np.ndarray | None:
        """A kept array in C order, read-only; None if it was not kept. A large one is a window on the file."""
        found = self.kept.get((event, slot, item))
        if found is None:
            return None
        layout_number, member, start, nbytes = found
        layout = self.layouts[layout_number]
        count = math.prod(layout.shape)
        if nbytes != count * dtype_of(layout.dtype).itemsize:
            self._damaged("kept.npy", "the bytes of a value do not fit its shape")
        if member:
            name = value_member(self.number, event, slot, item, "value")
            if name not in self.container.members:
                self._damaged("kept.npy", f"it names a value that the file does not have ({name})")
            value = self.container.array(name)
            if value.dtype.str != layout.dtype or value.shape != layout.shape:
                raise TraceDamagedError(
                    f"{name} of {self.container.name} has another shape than its table says"
                )
            return value
        arena = self.arena
        if start + nbytes > len(arena):
            self._damaged("kept.npy", "a value lies behind the end of the arena")
        return np.ndarray(layout.shape, dtype_of(layout.dtype), arena, start)

    @cached_property
    def arena(self) -> memoryview:
        """The bytes of the small kept arrays."""
        name = self._member("arena.npy")
        if name not in self.container.members:
            return memoryview(b"")
        arena = self.container.array(name)
        if arena.dtype != np.uint8 or arena.ndim != 1:
            self._damaged("arena.npy", "it holds something else than bytes")
        return arena.data


class KeptRows(Mapping[tuple[int, int, int], tuple[int, int, int, int]]):
    """A table of kept values as a mapping. A segment may have thousands, of which somebody wants one."""

    def __init__(self, table: np.ndarray) -> None:
        self._table = table
        event, slot, item = (table[name].astype(np.int64) for name in ("event", "slot", "item"))
        keys = event << 24 | (slot + _SLOTS // 2) << 16 | item
        self._rows = dict(zip(keys.tolist(), range(len(table)), strict=True))

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[int, int, int, int]:
        event, slot, item = key
        if not (event >= 0 and -_SLOTS // 2 <= slot < _SLOTS // 2 and 0 <= item <= NOT_IN_A_LIST):
            raise KeyError(key)
        row = self._rows[event << 24 | (slot + _SLOTS // 2) << 16 | item]
        _, _, _, layout, member, offset, nbytes = self._table[row].item()
        return layout, member, offset, nbytes

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return iter(self._table[["event", "slot", "item"]][list(self._rows.values())].tolist())

    def __len__(self) -> int:
        return len(self._rows)


_SLOTS = 256
"""As many as the field of `KEPT` can tell apart, half of them below zero."""


def _is_site(entry: list[Any]) -> bool:
    return len(entry) == 5 and isinstance(entry[0], str) and all(type(each) is int for each in entry[1:])


def _is_fact(entry: list[Any]) -> bool:
    return len(entry) == 2 and type(entry[0]) is int and isinstance(entry[1], dict)


def read_json(container: Container, name: str) -> dict[str, Any]:
    """A member that is a JSON object. Errors: `TraceDamagedError` if it is none."""
    try:
        value = json.loads(bytes(container.read(name)))
    except (ValueError, RecursionError) as error:
        raise TraceDamagedError(f"{name} of {container.name} is no JSON; the file is damaged") from error
    if not isinstance(value, dict):
        raise TraceDamagedError(f"{name} of {container.name} is no JSON object; the file is damaged")
    return value


def find_segments(container: Container, known_ops: int) -> list[SegmentReader]:
    """The whole segments of a file, in order; one without its `info.json` was not finished and does not count.

    `known_ops` is how many operations the manifest lists.
    """
    segments: list[SegmentReader] = []
    number, first_event = 0, 0
    while segment_member(number, "info.json") in container.members:
        count = _count_events(container, segment_member(number, "events.npy"))
        segments.append(SegmentReader(container, number, first_event, count, known_ops))
        first_event += count
        number += 1
    if segment_member(number + 1, "info.json") in container.members:
        raise TraceDamagedError(
            f"{segment_member(number, 'info.json')} of {container.name} is missing; the file is damaged"
        )
    return segments


def _count_events(container: Container, name: str) -> int:
    """How many rows a table of events has, by its length alone."""
    member = container.members.get(name)
    if member is None:
        raise TraceDamagedError(f"{name} of {container.name} is missing; the file is damaged")
    header = int.from_bytes(bytes(container.content[member.offset + 8 : member.offset + 10]), "little") + 10
    count, rest = divmod(member.size - header, EVENT.itemsize)
    if count < 0 or rest:
        raise TraceDamagedError(f"{name} of {container.name} is no table of events; the file is damaged")
    return count
