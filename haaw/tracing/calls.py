"""What an event has in common with those that are alike: names of its results, call site, shapes and costs."""

from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.alike import alike
from haaw.tracing.distinct import Distinct
from haaw.tracing.schema import OPERATION
from haaw.tracing.segments import SegmentReader

if TYPE_CHECKING:
    from haaw.tracing.costs import Costs
    from haaw.tracing.trace import Trace

CALL = np.dtype([("value", "i4"), ("site", "i4"), ("shape", "i4"), ("operations", "i8"), ("bytes", "i8")])


class Calls:
    """`rows` has a row of `CALL` for each event of a trace; of texts it says where in `texts` they stand."""

    def __init__(self, trace: "Trace", costs: "Costs") -> None:
        self._trace, self._costs = trace, costs
        self.texts: dict[str, Distinct[str]] = {name: Distinct() for name in ("value", "site", "shape")}
        self._named: dict[Any, tuple[int, int]] = {}
        self.rows = np.concatenate([np.zeros(0, CALL), *map(self._of_segment, trace.segments)])

    def _of_segment(self, segment: SegmentReader) -> np.ndarray:
        first, group = alike(segment)
        shapes = [f"({', '.join(map(str, layout.shape))})" for layout in segment.layouts]
        layouts = segment.outputs["layout"].tolist()
        calls = []
        made = segment.events[["first_output", "outputs"]][first].tolist()
        for row, (begin, count), cost in zip(first, made, self._costs.of_rows(segment, first), strict=True):
            shape = " ".join(shapes[layout] for layout in layouts[begin : begin + count])
            calls.append((*self._names(segment, row), self.texts["shape"].number(shape), *cost))
        rows: np.ndarray = np.array(calls, dtype=CALL)[group]
        return rows

    def _names(self, segment: SegmentReader, row: int) -> tuple[int, int]:
        """What the results are called, and where the call stands: the same for all calls from one place."""
        kind, name, site, made = segment.events[["kind", "name", "site", "outputs"]][row].item()
        if kind == OPERATION:
            key = name, made, *segment.info["sites"][site]
        else:
            key = segment.info["names"][name], made
        if key not in self._named:
            event = self._trace.decode(segment, row)
            self._named[key] = (
                self.texts["value"].number(", ".join(output.name for output in event.outputs)),
                self.texts["site"].number(f"{event.file}:{event.line}" if event.line else ""),
            )
        return self._named[key]
