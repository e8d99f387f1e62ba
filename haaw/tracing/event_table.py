"""`trace.events`: all events as one structured NumPy array, which becomes a pandas table on request."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from haaw.errors import MissingLibraryError
from haaw.tracing.calls import Calls
from haaw.tracing.display import html_table, shown
from haaw.tracing.distinct import Distinct
from haaw.tracing.event import KINDS
from haaw.tracing.event_columns import EventColumns

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
MOST_CHARACTERS = 300
"""Of a text in the table, every row of which is as wide as the longest one."""


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


def spelled(texts: Sequence[str], numbers: np.ndarray) -> np.ndarray:
    """The texts that stand at `numbers`, as wide as the longest of these."""
    used = np.flatnonzero(np.bincount(numbers))
    place = np.zeros(len(texts), dtype=np.intp)
    place[used] = np.arange(len(used))
    column: np.ndarray = np.array([shortened(texts[number]) for number in used.tolist()] or [""])[
        place[numbers]
    ]
    return column


def shortened(text: str) -> str:
    """A text that is too long for the table ends in "…"."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def event_table(columns: EventColumns, calls: Calls) -> EventTable:
    """All events of a trace."""
    texts = {**columns.texts, **calls.texts, "kind": Distinct[str](KINDS)}
    filled: dict[str, np.ndarray] = {"number": np.arange(len(calls.rows))}
    for name, _ in COLUMNS[1:]:
        filled[name] = columns[name] if name in columns else calls.rows[name]
        if name in texts:
            filled[name] = spelled(texts[name].values, filled[name])
    dtype = [(name, kind if kind != "U" else filled[name].dtype) for name, kind in COLUMNS]
    table: np.ndarray = np.empty(len(calls.rows), dtype=dtype)
    for name, column in filled.items():
        table[name] = column
    table.flags.writeable = False
    return table.view(EventTable)
