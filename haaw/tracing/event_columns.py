"""Where every event of a trace stands in the run, as columns of numbers; texts are numbered."""

from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.distinct import Distinct
from haaw.tracing.schema import NONE, OPERATION

if TYPE_CHECKING:
    from haaw.tracing.segments import SegmentReader
    from haaw.tracing.trace import Trace


class EventColumns:
    """`columns[name]` has an entry an event; for those in `texts` it says where its text stands there.

    Numbers that do not apply are -1. Reads the tables of every segment, and no values.
    """

    NUMBERS = ("request", "step", "sequence", "layer", "head")
    OTHERS = ("kind", "start_ns", "took_ns")

    def __init__(self, trace: "Trace") -> None:
        self.texts: dict[str, Distinct[str]] = {name: Distinct() for name in ("stage", "part", "name")}
        ops = self.texts["name"].numbers(str(op["name"]) for op in trace.manifest["ops"])
        parts = [self._of_segment(segment, ops) for segment in trace.segments]
        self._columns = {
            name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, dtype=np.int32)
            for name in (*self.NUMBERS, *self.OTHERS, *self.texts)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def says(self, name: str, text: str) -> np.ndarray:
        """Of each event whether its column says that text."""
        says: np.ndarray = self[name] == self.texts[name].find(text)
        return says

    def _of_segment(self, segment: "SegmentReader", ops: np.ndarray) -> dict[str, np.ndarray]:
        events, info = segment.events, segment.info
        columns: dict[str, Any] = {name: events[name] for name in (*self.NUMBERS, *self.OTHERS)}
        columns["request"] = np.where(events["request"] == 0, NONE, events["request"].astype(np.int32))
        for name in ("stage", "part"):
            columns[name] = self.texts[name].numbers(info[f"{name}s"])[events[name]]
        is_op = events["kind"] == OPERATION
        columns["name"] = np.empty(len(events), dtype=np.int32)
        for rows, names in ((is_op, ops), (~is_op, self.texts["name"].numbers(info["names"]))):
            columns["name"][rows] = names[events["name"][rows]]
        return columns
