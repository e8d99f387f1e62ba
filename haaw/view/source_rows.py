"""Operations of a step as the page reads them, straight from the tables of a segment.

An `Event` object for each would take seconds, since a long trace has a hundred thousand of them. What many rows
share (names, axes, shapes, the front of a path) is made once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from haaw.ops.shapes import suffix
from haaw.tracing.call_names import bare
from haaw.tracing.costs import Cost
from haaw.tracing.event import Place
from haaw.tracing.schema import NONE, OPERATION
from haaw.tracing.trace import output_name

FIELDS = (
    "kind", "name", "site", "request", "stage", "step", "sequence", "layer", "head", "part",
    "start_ns", "took_ns", "outputs", "first_output",
)  # fmt: skip


class Line(NamedTuple):
    """An operation in few words. `shape` is that of its first output, or of what it writes to."""

    op: str
    part: str | None
    layer: int | None
    head: int | None
    start_ns: int
    took_ns: int
    operations: int
    bytes: int
    shape: tuple[int, ...]


class CacheLine(NamedTuple):
    """An operation on a cache: the buffer that it makes or writes to, and the window of it as a shape with bytes."""

    op: str
    layer: int | None
    buffer: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def lines_of(trace: Any, segment: Any, first: int, last: int, costs: Sequence[Cost]) -> Iterator[Line]:
    """The operations in the rows `first` … `last` - 1, in few words."""
    layouts, parts, ops = segment.layouts, segment.info["parts"], trace.manifest["ops"]
    output_layouts = segment.outputs["layout"]
    fields = ("kind", "name", "part", "layer", "head", "start_ns", "took_ns", "outputs", "first_output")
    for row, columns in enumerate(_columns(segment, fields, first, last), first):
        kind, name, part, layer, head, start_ns, took_ns, made, first_output = columns
        if kind == OPERATION:
            yield Line(
                ops[name]["name"],
                parts[part] or None,
                _number(layer),
                _number(head),
                start_ns,
                round(took_ns),
                max(0, costs[row].operations),
                max(0, costs[row].bytes),
                layouts[int(output_layouts[first_output])].shape if made else (),
            )


def cache_lines_of(trace: Any, segment: Any, first: int, last: int) -> Iterator[CacheLine]:
    """The operations whose names begin with `kv_`, each with its first output."""
    numbers = [n for n, op in enumerate(trace.manifest["ops"]) if op["name"].startswith("kv_")]
    rows = segment.events[first:last]
    chosen = rows[(rows["kind"] == OPERATION) & np.isin(rows["name"], numbers) & (rows["outputs"] > 0)]
    for name, layer, output in zip(
        *(chosen[field].tolist() for field in ("name", "layer", "first_output")), strict=True
    ):
        made = segment.outputs[output]
        layout = segment.layouts[int(made["layout"])]
        size = int(np.prod(layout.shape, dtype=np.int64)) * np.dtype(layout.dtype).itemsize
        op = trace.manifest["ops"][name]["name"]
        yield CacheLine(op, _number(layer), int(made["buffer"]), layout.shape, layout.dtype, size)


class OperationRows:
    """Makes what `TraceSource.operations` returns, but for the numbers of paths that come more than once."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._segment: Any = None
        self._calls: dict[tuple[int, int, int], list[tuple[str, str]]] = {}
        self._fronts: dict[tuple[int, ...], Callable[[str], str]] = {}

    def rows(self, segment: Any, first: int, last: int, costs: Sequence[Cost]) -> Iterator[dict[str, Any]]:
        """The operations in the rows `first` … `last` - 1 of a segment."""
        if self._segment is not segment:  # sites, parts and stages are numbered anew in each
            self._segment, self._calls, self._fronts = segment, {}, {}
        ops, parts, sites = self._trace.manifest["ops"], segment.info["parts"], segment.info["sites"]
        output_layouts = segment.outputs["layout"].tolist()
        shapes = [(list(each.shape), str(np.dtype(each.dtype))) for each in segment.layouts]
        for row, columns in enumerate(_columns(segment, FIELDS, first, last), first):
            kind, name, site, *place, start_ns, took_ns, count, at = columns
            if kind != OPERATION:
                continue
            _, _, _, _, layer, head, part = place
            made: dict[str, Any] = {
                "op": ops[name]["name"],
                "layer": _number(layer),
                "head": _number(head),
                "part": parts[part] or None,
                "start_ns": start_ns,
                "took_ns": round(took_ns),
                "outputs": [],
                "operations": max(0, costs[row].operations),
                "bytes": max(0, costs[row].bytes),
                "site": f"{sites[site][0]}:{sites[site][1]}",
            }
            layouts = output_layouts[at : at + count]
            if ops[name]["writes"]:
                made["writes"] = [shapes[layout][0] for layout in layouts]
            else:
                path = self._path(tuple(place))
                made["outputs"] = [
                    {
                        "path": path(called),
                        "shape": shapes[layout][0],
                        "axes": axes,
                        "dtype": shapes[layout][1],
                        "event": segment.first_event + row,
                        "slot": slot,
                    }
                    for slot, (layout, (called, axes)) in enumerate(
                        zip(layouts, self._called(name, site, count), strict=True)
                    )
                ]
            yield made

    def _called(self, name: int, site: int, count: int) -> list[tuple[str, str]]:
        """Name and axes of each output, as `Trace.decode` finds them."""
        key = name, site, count
        if key not in self._calls:
            op = self._trace.manifest["ops"][name]
            file, *place = self._segment.info["sites"][site]
            given = self._trace.names.at(file, tuple(place[:4]))
            found = []
            for number in range(count):
                own = output_name(op, op["name"], number)
                called = given[number] if len(given) == count else bare(own) if count > 1 else op["name"]
                found.append((called, suffix(own) or ""))
            self._calls[key] = found
        return self._calls[key]

    def _path(self, place: tuple[int, ...]) -> Callable[[str], str]:
        """Puts the place of a row before a name."""
        if place not in self._fronts:
            request, stage, step, sequence, layer, head, part = place
            info = self._segment.info
            where = Place(
                request or None, info["stages"][stage], _number(step), _number(sequence), _number(layer),
                _number(head), info["parts"][part],
            )  # fmt: skip
            front = where.path("", with_request=self._trace.several_requests)
            self._fronts[place] = front.__add__
        return self._fronts[place]


def _columns(segment: Any, fields: Sequence[str], first: int, last: int) -> Iterator[tuple[Any, ...]]:
    rows = segment.events[first:last]
    return zip(*(rows[field].tolist() for field in fields), strict=True)


def _number(value: int) -> int | None:
    return None if value == NONE else value
