"""Runs events again: a whole step from what was recorded, without any model code.

A step reads weights, declared inputs, and caches as they were when it began. A cache is made again from its history:
reserved, then written by the same operations from the rows that were kept. Everything else is computed anew.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.errors import BadInputError
from haaw.ops.op import Op
from haaw.tracing.appends import APPEND, BUFFER, ROWS, Append, appends_of, joined, runs_of
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.event import Event, Step
from haaw.tracing.history import ALLOCATES, History
from haaw.tracing.memory import Memory, Whole, laid_out
from haaw.tracing.running import CannotRunError, NotRecordedError, operation, run_plain
from haaw.tracing.schema import EVENT, INPUT, NOT_IN_A_LIST, OPERATION
from haaw.tracing.segments import SegmentReader
from haaw.tracing.trace import Trace

Observe = Callable[[SegmentReader, int, Op, "tuple[Array, ...]", Mapping[str, Any]], None]
"""Called after each operation with its segment and row, its results, and its arguments by parameter."""

KIND, NAME, LINKS, ARGS, FIRST_LINK, OUTPUTS, FIRST_OUTPUT = (
    (EVENT.names or ()).index(field)
    for field in ("kind", "name", "links", "args", "first_link", "outputs", "first_output")
)


MOST_IN_USE = 4


class Rerun:
    """Executes steps of one trace again. Keeps the caches of the step it ran last, so that going on is cheap."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._ops: dict[int, Op] = {}
        self._weights: dict[int, Memory] = {}
        self._first_weight = int(trace.manifest["first_weight_buffer"])
        self._weight_names = list(trace.manifest["weights"])
        self._history: History | None = None
        self._caches: dict[int, tuple[int, Memory]] = {}  # by buffer: how many writes it has had
        names = [op["name"] for op in trace.manifest["ops"]]
        self._append_number = names.index(APPEND) if APPEND in names else -1
        self._appended: dict[int, dict[int, Append]] = {}
        self._in_use: deque[SegmentReader] = deque()
        self._under_way: set[tuple[int, int]] = set()

    @property
    def history(self) -> History:
        """Which events made and wrote the buffers that outlive a step."""
        if self._history is None:
            self._history = History(self.trace)
        return self._history

    def weight(self, number: int) -> Memory | None:
        """The memory of a weight's buffer, or None if the number is none of theirs."""
        place = number - self._first_weight
        if not 0 <= place < len(self._weight_names):
            return None
        known = self._weights.get(number)
        if known is None:
            weights, name = self.trace.weights(), self._weight_names[place]
            if name not in weights:
                raise BadInputError(
                    f'the model has no weight "{name}", which the trace reads; it is another model'
                )
            known = self._weights[number] = Whole(weights[name])
        return known

    def step(
        self, step: Step, observe: Observe | None = None, *, last: int | None = None
    ) -> dict[int, Memory]:
        """Runs the events of a step in order, up to event `last`; the memory of every buffer that it made.

        Errors: `NotRecordedError` where a root of the step was not kept, `BadInputError` without the weights.
        """
        made: dict[int, Memory] = {}
        end = step.end if last is None else min(step.end, last + 1)
        number = step.first
        with np.errstate(all="ignore"):
            while number < end:
                segment, row = self.trace.segment_of(number)
                self.use(segment)
                stop = min(segment.count, row + end - number)
                kinds = segment.events["kind"]
                for at in range(row, stop):
                    if kinds[at] == OPERATION:
                        self._operate(segment, at, made, observe)
                    elif kinds[at] == INPUT:
                        event = self.trace.decode(segment, at)
                        made[event.outputs[0].window.buffer] = self.declared(event)
                number += stop - row
        return made

    def use(self, segment: SegmentReader) -> None:
        """Lets go of the rows of segments that were gone through before; they take 1 MB for a step of a small model."""
        if segment in self._in_use:
            return
        self._in_use.append(segment)
        if len(self._in_use) > MOST_IN_USE:
            self._in_use.popleft().__dict__.pop("rows", None)

    def _operate(
        self, segment: SegmentReader, row: int, made: dict[int, Memory], observe: Observe | None
    ) -> None:
        op = self.op_at(segment, row)
        arguments = self.arguments(segment, row, op, made)
        results = self.run(segment, row, op, arguments, made)
        first = segment.rows[0][row][FIRST_OUTPUT]
        for number, value in enumerate(results):
            buffer = segment.rows[2][first + number][0]
            made[buffer] = Memory(value)
            if op.name.startswith(ALLOCATES):
                self._caches[buffer] = 0, made[buffer]
        if observe is not None:
            observe(segment, row, op, results, arguments)

    def run(
        self,
        segment: SegmentReader,
        row: int,
        op: Op,
        arguments: Mapping[str, Any],
        made: Mapping[int, Memory],
    ) -> tuple[Array, ...]:
        """Runs one operation; its results, none where it writes. Errors: `CannotRunError`."""
        event = segment.rows[0][row]
        result = run_plain(op, arguments, self.trace.path.name, segment.first_event + row)
        if event[OUTPUTS] != (1 if op.writes is not None else len(op.out)):
            raise CannotRunError(
                f"{self.trace.path.name} has {event[OUTPUTS]} results of {op.name} in event "
                f"{segment.first_event + row}, which cannot be; it is damaged"
            )
        if op.writes is not None:
            buffer, version = segment.rows[2][event[FIRST_OUTPUT]][:2]
            if buffer not in made:
                raise CannotRunError(
                    f"{op.name} in event {segment.first_event + row} of {self.trace.path.name} writes to a buffer "
                    "that it does not read; the file is damaged"
                )
            self._caches[buffer] = version, made[buffer]
            return ()
        return result if len(op.out) > 1 else (result,) if op.out else ()

    def op_at(self, segment: SegmentReader, row: int) -> Op:
        """The operation of a row. Errors: as for `_op`."""
        return self._op(segment.rows[0][row][NAME])

    def _op(self, number: int) -> Op:
        """The operation of a row. Errors: `BadInputError` where this HAAW does not have it, or has another one."""
        op = self._ops.get(number)
        if op is None:
            recorded = self.trace.manifest["ops"][number]
            op = operation(recorded["name"])
            if tuple(recorded["parameters"]) != op.parameters or tuple(recorded["out"]) != op.out:
                raise BadInputError(
                    f'the operation "{op.name}" of this HAAW takes {", ".join(op.parameters)}, and that of the trace '
                    f"took {', '.join(recorded['parameters'])}; use HAAW {self.trace.manifest['haaw']}, which made it"
                )
            self._ops[number] = op
        return op

    def arguments(self, segment: SegmentReader, row: int, op: Op, made: dict[int, Memory]) -> dict[str, Any]:
        """The arguments of an operation by parameter: arrays as windows, and the plain ones."""
        events, links, _ = segment.rows
        event = events[row]
        arguments: dict[str, Any] = dict(segment.args[event[ARGS]])
        first = event[FIRST_LINK]
        for slot, item, layout, buffer, version, offset in links[first : first + event[LINKS]]:
            memory = made.get(buffer) or self.weight(buffer)
            if memory is None:  # outlived an earlier step
                memory = made[buffer] = self.at_version(buffer, version)
            array = memory.window(offset, segment.layouts[layout])
            if not 0 <= slot < len(op.parameters):
                self._damaged_link(segment, row, op)
            if item == NOT_IN_A_LIST:
                arguments[op.parameters[slot]] = array
            else:
                items = arguments.setdefault(op.parameters[slot], [])
                if not isinstance(items, list):
                    self._damaged_link(segment, row, op)
                items.append(array)
        return arguments

    def _damaged_link(self, segment: SegmentReader, row: int, op: Op) -> None:
        raise TraceDamagedError(
            f"event {segment.first_event + row} of {self.trace.path.name} links what {op.name} has no place for; "
            "the file is damaged"
        )

    def declared(self, event: Event) -> Memory:
        """A declared input, as it was kept. Errors: `NotRecordedError` if it was not."""
        segment, row = self.trace.segment_of(event.number)
        value = segment.kept_value(row, -1)
        if value is None:
            raise NotRecordedError(
                f"the trace keeps no values of inputs ({event.place.path(event.name)}), so nothing can be computed "
                'from them; record with keep="replayable" or "full"'
            )
        return Memory(laid_out(value, event.outputs[0].window))

    def at_version(self, buffer: int, version: int) -> Memory:
        """A buffer of a cache as it was at a version, from its history."""
        known = self._caches.get(buffer)
        if known is None or known[0] > version:
            known = 0, self._begun(buffer)
        if not self.history.knows(buffer, version):
            raise NotRecordedError(
                f"{self.trace.path.name} does not say how version {version} of the buffer {buffer} came about"
            )
        self._caches.pop(buffer, None)  # until all of it is done
        if (buffer, version) in self._under_way:
            raise TraceDamagedError(
                f"in {self.trace.path.name} the buffer {buffer} is written from what is made of it; it is damaged"
            )
        self._under_way.add((buffer, version))
        try:
            memory = self._written(buffer, *known, version)
        finally:
            self._under_way.discard((buffer, version))
        self._caches[buffer] = version, memory
        return memory

    def _written(self, buffer: int, have: int, memory: Memory, version: int) -> Memory:
        """The memory after the writes from version `have` on; rows that follow one another are written together."""
        waiting: list[Append] = []
        for number in self.history.writes(buffer, have, version):
            segment, row = self.trace.segment_of(number)
            append = self._appends(segment).get(row)
            if append is not None:
                waiting.append(append)
                continue
            self._append(waiting, memory, number)
            waiting.clear()
            event = segment.events[row].item()
            if event[KIND] == INPUT:  # declared anew, with whatever was in it
                memory = self.declared(self.trace.decode(segment, row))
                continue
            op = self._op(event[NAME])
            arguments = self._written_arguments(segment, row, op, memory, buffer)
            run_plain(op, arguments, self.trace.path.name, number)
        self._append(waiting, memory, version)
        return memory

    def _appends(self, segment: SegmentReader) -> dict[int, Append]:
        known = self._appended.get(segment.number)
        if known is None:
            known = self._appended[segment.number] = appends_of(segment, self._append_number)
        return known

    def _append(self, appends: Sequence[Append], memory: Memory, event: int) -> None:
        for run in runs_of(appends):
            window = memory.window(run[0].offset, run[0].buffer)
            op = self._op(self._append_number)
            arguments = {
                op.parameters[BUFFER]: window,
                op.parameters[ROWS]: joined(run),
                "start": run[0].start,
            }
            run_plain(op, arguments, self.trace.path.name, event)

    def _begun(self, buffer: int) -> Memory:
        number = self.history.maker(buffer)
        if number is None:
            raise NotRecordedError(
                f"the buffer {buffer} was made before this trace began, or its values were not kept, so that what was "
                'computed from it cannot be computed again; record with keep="full" to have every value'
            )
        event = self.trace.event(number)
        if event.kind == "input":
            return self.declared(event)
        layout = event.outputs[0].window.layout
        try:
            return Memory(np.zeros(layout.shape, dtype=layout.dtype))
        except (MemoryError, ValueError) as error:
            raise TraceDamagedError(
                f"event {number} of {self.trace.path.name} reserves {layout.shape!s:.60} of {layout.dtype:.20}, "
                "which this machine cannot; it is damaged, or too large"
            ) from error

    def _written_arguments(
        self, segment: SegmentReader, row: int, op: Op, memory: Memory, buffer: int
    ) -> dict[str, Any]:
        """The arguments of an earlier write: the buffer itself, kept rows, and windows on other caches."""
        event = segment.events[row].item()
        arguments: dict[str, Any] = dict(segment.args[event[ARGS]])
        first = event[FIRST_LINK]
        links = segment.links[first : first + event[LINKS]].tolist()
        for slot, item, layout, source, version, offset in links:
            if not 0 <= slot < len(op.parameters):
                self._damaged_link(segment, row, op)
            parameter = op.parameters[slot]
            if source == buffer:
                arguments[parameter] = memory.window(offset, segment.layouts[layout])
                continue
            array = segment.kept_value(row, slot, item)
            if array is None and self.history.maker(source) is not None:
                array = self.at_version(source, version).window(offset, segment.layouts[layout])
            if array is None:
                raise NotRecordedError(
                    f"the rows that {op.name} wrote were not kept, so the cache cannot be made again; record with "
                    'keep="replayable" or "full"'
                )
            arguments[parameter] = array
        return arguments
