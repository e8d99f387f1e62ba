"""What reading a trace remembers: one `Rerun`, the values of the last step that was run, where buffers come from."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.tracing.event import Event, Step, Window
from haaw.tracing.event_columns import EventColumns
from haaw.tracing.memory import Memory, laid_out
from haaw.tracing.origins import Origins
from haaw.tracing.rerun import Rerun
from haaw.tracing.running import NotRecordedError
from haaw.tracing.segments import SegmentReader
from haaw.tracing.steps import step_of

if TYPE_CHECKING:
    from haaw.tracing.calls import Calls
    from haaw.tracing.costs import Costs
    from haaw.tracing.event_table import EventTable
    from haaw.tracing.text_view import Texts
    from haaw.tracing.trace import Trace

MOST_REMEMBERED_BYTES = 64 << 20


class Reading:
    """Belongs to one open trace. A recording that went on since needs a new one."""

    def __init__(self, trace: "Trace") -> None:
        self.trace = trace
        self._step: Step | None = None
        self._runs = 0
        self._results: dict[tuple[int, int], Array] = {}
        self._remembered_bytes = 0

    @cached_property
    def rerun(self) -> Rerun:
        """Executes steps again; keeps the caches of the last one, so that walking forward is cheap."""
        return Rerun(self.trace)

    @cached_property
    def texts(self) -> "Texts":
        """Tokens and answers of the requests."""
        from haaw.tracing.text_view import Texts

        return Texts(self.trace)

    @cached_property
    def origins(self) -> Origins:
        """Which event made a buffer, and which events read it."""
        return Origins(self.trace)

    @cached_property
    def columns(self) -> EventColumns:
        """Where every event stands, as columns of numbers."""
        return EventColumns(self.trace)

    @cached_property
    def costs(self) -> "Costs":
        """Operations and bytes of events."""
        from haaw.tracing.costs import Costs

        return Costs(self.trace)

    @cached_property
    def calls(self) -> "Calls":
        """What each event's results are called, its call site, shapes and costs."""
        from haaw.tracing.calls import Calls

        return Calls(self.trace, self.costs)

    @cached_property
    def table(self) -> "EventTable":
        """All events as one table."""
        from haaw.tracing.event_table import event_table

        return event_table(self.columns, self.calls)

    def recorded(self, event: Event, output: int) -> np.ndarray | None:
        """An output as the file has it; None if it was not kept."""
        segment, row = self.trace.segment_of(event.number)
        return segment.kept_value(row, -1 - output)

    def recomputed(self, event: Event, output: int) -> Array:
        """An output computed again: the step from its first event up to this one.

        A second value of the same step runs the whole step, and what fits in memory is remembered.
        Errors: `NotRecordedError` where a root was not kept, `BadInputError` without the weights.
        """
        if event.kind == "input":
            window = event.outputs[output].window
            return self.rerun.declared(event).window(window.offset, window.layout)
        if self.is_lasting(event.outputs[output].window):  # a cache: its history is enough
            return self._lasting(event.outputs[output].window)
        key = event.number, output
        if key not in self._results:
            self._run(step_of(self.trace, event.number), event.number)
        return self._results[key]

    def _run(self, step: Step, wanted: int) -> None:
        if step != self._step:
            self._step, self._runs = step, 0
        self._results.clear()
        self._remembered_bytes = 0
        self._runs += 1

        def observe(
            segment: SegmentReader, row: int, op: Op, results: tuple[Array, ...], arguments: Mapping[str, Any]
        ) -> None:
            event = segment.first_event + row
            for number, value in enumerate(results):
                self._remembered_bytes += int(value.nbytes)
                if event == wanted or self._remembered_bytes <= MOST_REMEMBERED_BYTES:
                    self._results[event, number] = value

        self.rerun.step(step, observe, last=wanted if self._runs == 1 else None)

    def value(self, event: Event, output: int) -> Array:
        """An output, from the file or else computed again."""
        kept = self.recorded(event, output)
        return self.recomputed(event, output) if kept is None else kept

    def window(self, window: Window) -> Array:
        """The array behind a window of any event: on a weight, a cache at a version, or the result of an event."""
        if (weight := self.rerun.weight(window.buffer)) is not None:
            return weight.window(window.offset, window.layout)
        if self.is_lasting(window):
            return self._lasting(window)
        made = self.origins.maker(window.buffer)
        if made is None:
            raise NotRecordedError(f"nothing in this trace made the buffer {window.buffer}")
        event, output = self.trace.event(made[0]), made[1]
        own = event.outputs[output].window
        value = self.value(event, output)
        if own.layout == window.layout and own.offset == window.offset:
            return value
        return Memory(laid_out(value, own)).window(window.offset, window.layout)

    def _lasting(self, window: Window) -> Array:
        """A copy, since the memory of a cache changes with the version that is looked at next."""
        memory = self.rerun.at_version(window.buffer, window.version)
        return np.array(memory.window(window.offset, window.layout))

    def is_lasting(self, window: Window) -> bool:
        """Whether a window is on a buffer that outlives its step: of a cache, or a declared input."""
        return self.rerun.history.maker(window.buffer) is not None or window.version > 0
