"""The history of the buffers that outlive a step: which event made each, and which wrote its versions."""

from bisect import bisect_right
from functools import cached_property
from operator import itemgetter

import numpy as np

from haaw.tracing.schema import INPUT, OPERATION
from haaw.tracing.trace import Trace

ALLOCATES = "kv_allocate"


class History:
    """An index over a whole trace, made once when it is first needed."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._makers: dict[int, int] = {}
        self._writes: dict[int, list[tuple[int, int]]] = {}  # versions, ascending, and their events
        self._read()

    @cached_property
    def _allocating(self) -> np.ndarray:
        names = [str(op["name"]) for op in self._trace.manifest["ops"]]
        return np.array([name.startswith(ALLOCATES) for name in names] or [False])

    def _read(self) -> None:
        for segment in self._trace.segments:
            events, outputs = segment.events, segment.outputs
            counts = events["outputs"].astype(np.int64)
            rows = np.repeat(np.arange(len(events)), counts)
            which = np.repeat(events["first_output"].astype(np.int64) - (np.cumsum(counts) - counts), counts)
            which += np.arange(len(rows))
            buffers, versions = outputs["buffer"][which], outputs["version"][which]
            kinds, names = events["kind"][rows], events["name"][rows]
            is_op = kinds == OPERATION
            allocates = is_op & self._allocating[np.where(is_op, names, 0)]
            makes = allocates | (kinds == INPUT)
            for place in np.flatnonzero(makes | (versions > 0)).tolist():
                event, buffer = segment.first_event + int(rows[place]), int(buffers[place])
                if makes[place] and int(versions[place]) == 0:
                    self._makers[buffer] = event
                    self._writes[buffer] = []
                else:
                    self._writes.setdefault(buffer, []).append((int(versions[place]), event))

    def maker(self, buffer: int) -> int | None:
        """The event that made a lasting buffer; None if the trace has none."""
        return self._makers.get(buffer)

    def knows(self, buffer: int, version: int) -> bool:
        """Whether the trace says how a version of a lasting buffer came about."""
        writes = self._writes.get(buffer, [])
        place = bisect_right(writes, version, key=itemgetter(0))
        return version == 0 or (place > 0 and writes[place - 1][0] == version)

    def writes(self, buffer: int, after: int, upto: int) -> list[int]:
        """The events that made the versions after + 1 … upto of a buffer."""
        writes = self._writes.get(buffer, [])
        first, end = (bisect_right(writes, version, key=itemgetter(0)) for version in (after, upto))
        return [event for _, event in writes[first:end]]
