"""`trace.events`: all events as one structured NumPy array, which becomes a pandas table on request."""

from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import MissingLibraryError
from haaw.tracing.display import html_table, shown
from haaw.tracing.schema import OPERATION
from haaw.tracing.segments import Layout, SegmentReader

if TYPE_CHECKING:
    from haaw.tracing.costs import Costs
    from haaw.tracing.trace import Trace

NUMBERS = ("request", "step", "sequence", "layer", "head")
"""Columns in which -1 says that they do not apply."""

TEXTS = ("kind", "name", "value", "stage", "part", "shape", "site")
COLUMNS = (
    ("number", "i8"),
    ("kind", "U"),
    ("name", "U"),  # of the operation, the input or the fact
    ("value", "U"),  # what its outputs are called
    ("request", "i4"),
    ("stage", "U"),
    ("step", "i4"),
    ("sequence", "i4"),
    ("layer", "i4"),
    ("head", "i4"),
    ("part", "U"),
    ("start_ns", "i8"),
    ("took_ns", "f8"),
    ("operations", "i8"),
    ("bytes", "i8"),
    ("shape", "U"),
    ("site", "U"),  # file and line of the call
)
FEW = 10


class EventTable(np.ndarray):
    """A structured array, a row an event; a column is a plain array: `trace.events["took_ns"].sum()`."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return (
            found.view(np.ndarray) if isinstance(found, EventTable) and found.dtype.names is None else found
        )

    def to_pandas(self) -> Any:
        """A pandas DataFrame; what does not apply is <NA>. Errors: `MissingLibraryError` without pandas."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingLibraryError("this needs pandas: pip install 'haaw[export]'") from error
        table = self.view(np.ndarray)
        columns: dict[str, Any] = {}
        for name in table.dtype.names or ():
            if name in NUMBERS:
                columns[name] = pandas.array(table[name], dtype="Int32")
                columns[name][table[name] < 0] = pandas.NA
            elif name in TEXTS:
                columns[name] = table[name].astype(object)
            else:
                columns[name] = table[name]
        return pandas.DataFrame(columns)

    def _repr_html_(self) -> str:
        names = self.dtype.names
        if names is None or self.ndim != 1:
            return f"<pre>{self!r}</pre>"
        caption = f"{len(self):,} events" + (f", the first {FEW}" if len(self) > FEW else "")
        return html_table(
            caption, names, ([shown(cell) for cell in row.tolist()] for row in self[:FEW].view(np.ndarray))
        )


def event_table(trace: "Trace", costs: "Costs") -> EventTable:
    """All events of a trace. Reads the tables of every segment, and no values."""
    columns: dict[str, list[Any]] = {name: [] for name, _ in COLUMNS}
    for segment in trace.segments:
        _add(columns, trace, segment, costs)
    arrays = [
        np.array(columns[name], dtype=kind if columns[name] or kind != "U" else "U1")
        for name, kind in COLUMNS
    ]
    dtype = np.dtype([(name, array.dtype) for (name, _), array in zip(COLUMNS, arrays, strict=True)])
    table: np.ndarray = np.empty(len(trace), dtype=dtype)
    for (name, _), array in zip(COLUMNS, arrays, strict=True):
        table[name] = array
    table.flags.writeable = False
    return table.view(EventTable)


def _add(columns: dict[str, list[Any]], trace: "Trace", segment: SegmentReader, costs: "Costs") -> None:
    from haaw.tracing.trace import KINDS

    events, info = segment.events, segment.info
    ops = [str(op["name"]) for op in trace.manifest["ops"]]
    counted = costs.of_segment(segment)
    columns["number"] += range(segment.first_event, segment.first_event + segment.count)
    columns["operations"] += [cost.operations for cost in counted]
    columns["bytes"] += [cost.bytes for cost in counted]
    for name in ("step", "sequence", "layer", "head", "start_ns", "took_ns"):
        columns[name] += events[name].tolist()
    columns["request"] += [request or -1 for request in events["request"].tolist()]
    columns["stage"] += [info["stages"][stage] for stage in events["stage"].tolist()]
    columns["part"] += [info["parts"][part] for part in events["part"].tolist()]
    columns["kind"] += [KINDS[kind] for kind in events["kind"].tolist()]
    layouts = segment.outputs["layout"].tolist()
    known: dict[tuple[int, int, int, int], tuple[str, str]] = {}
    fields = ("kind", "name", "site", "outputs", "first_output")
    for row, (kind, name, site, made, first) in enumerate(
        zip(*(events[field].tolist() for field in fields), strict=True)
    ):
        is_op = kind == OPERATION
        columns["name"].append(ops[name] if is_op else info["names"][name])
        key = kind, name, site, made
        if key not in known:
            event = trace.decode(segment, row)
            at = f"{event.file}:{event.line}" if event.line else ""
            known[key] = ", ".join(output.name for output in event.outputs), at
        columns["value"].append(known[key][0])
        columns["site"].append(known[key][1])
        columns["shape"].append(
            _shapes([segment.layouts[layout] for layout in layouts[first : first + made]])
        )


def _shapes(layouts: list[Layout]) -> str:
    return " ".join(f"({', '.join(map(str, layout.shape))})" for layout in layouts)
