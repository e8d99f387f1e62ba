"""Runs events again: a whole step from what was recorded, without any model code.

A step reads weights, declared inputs, and caches as they were when it began. A cache is made again from its history:
reserved, then written by the same operations from the rows that were kept. Everything else is computed anew.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from haaw.arrays import Array, owner
from haaw.errors import BadInputError, HaawError
from haaw.ops.op import OPS, Op
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.event import Event, Step, Window
from haaw.tracing.history import ALLOCATES, History
from haaw.tracing.schema import EVENT, INPUT, NOT_IN_A_LIST, OPERATION
from haaw.tracing.segments import Layout, SegmentReader, dtype_of
from haaw.tracing.trace import Trace

Observe = Callable[[SegmentReader, int, Op, "tuple[Array, ...]", Mapping[str, Any]], None]
"""Called after each operation with its segment and row, its results, and its arguments by parameter."""

NAME, LINKS, ARGS, FIRST_LINK, OUTPUTS, FIRST_OUTPUT = (
    (EVENT.names or ()).index(field)
    for field in ("name", "links", "args", "first_link", "outputs", "first_output")
)


MOST_AROUND_A_VALUE, MOST_BYTES_AROUND = 1_000, 1 << 20
"""A value that was kept is laid out again as it was: at most so many times its bytes, and so many more."""


class NotRecordedError(HaawError):
    """What a computation starts from is not in the trace."""


class CannotRunError(TraceDamagedError):
    """An operation does not take what the trace says that it was given."""


class Memory:
    """The memory of a buffer, and windows on it."""

    __slots__ = ("flat", "whole")

    def __init__(self, array: Array) -> None:
        self.whole = owner(array)
        flat = self.whole.ravel(order="K")  # a window on all of it; results lie densely in memory
        self.flat = flat if flat.base is not None or flat is self.whole else self.whole

    def window(self, offset: int, layout: Layout) -> Array:
        """A window from an offset in elements on. Errors: `TraceDamagedError` where it lies outside the memory."""
        whole = self.whole
        if offset == 0 and whole.shape == layout.shape and whole.strides == layout.strides:
            return whole
        try:
            dtype = dtype_of(layout.dtype)
            return np.ndarray(layout.shape, dtype, self.flat, offset * dtype.itemsize, layout.strides)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceDamagedError(
                f"a window {layout.shape!s:.60} of {layout.dtype:.20} at {offset} does not lie within its buffer; the trace is "
                "damaged, or of another model"
            ) from error


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
        self, segment: SegmentReader, row: int, op: Op, arguments: Mapping[str, Any], made: Mapping[int, Memory]
    ) -> tuple[Array, ...]:
        """Runs one operation; its results, none where it writes. Errors: `CannotRunError`."""
        event = segment.rows[0][row]
        result = run_plain(op, arguments, self.trace.path.name, segment.first_event + row)
        if event[OUTPUTS] != (1 if op.writes is not None else len(op.out)):
            raise CannotRunError(
                f"{self.trace.path.name} has {event[OUTPUTS]} results of {op.name} in event {segment.first_event + row}, which "
                "cannot be; it is damaged"
            )
        if op.writes is not None:
            buffer, version = segment.rows[2][event[FIRST_OUTPUT]][:2]
            if buffer not in made:
                raise CannotRunError(
                    f"{op.name} in event {segment.first_event + row} of {self.trace.path.name} writes to a buffer that it does "
                    "not read; the file is damaged"
                )
            self._caches[buffer] = version, made[buffer]
            return ()
        return result if len(op.out) > 1 else (result,) if op.out else ()

    def op_at(self, segment: SegmentReader, row: int) -> Op:
        """The operation of a row. Errors: `BadInputError` where this HAAW does not have it, or has another one."""
        number = segment.rows[0][row][NAME]
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
            f"event {segment.first_event + row} of {self.trace.path.name} links what {op.name} has no place for; the file is "
            "damaged"
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
        self._caches.pop(buffer, None)  # until all of it is done
        if (buffer, version) in self._under_way:
            raise TraceDamagedError(
                f"in {self.trace.path.name} the buffer {buffer} is written from what is made of it; the file is damaged"
            )
        self._under_way.add((buffer, version))
        try:
            memory = self._written(buffer, *known, version)
        finally:
            self._under_way.discard((buffer, version))
        self._caches[buffer] = version, memory
        return memory

    def _written(self, buffer: int, have: int, memory: Memory, version: int) -> Memory:
        """The memory after the writes from version `have` on."""
        for number in self.history.writes(buffer, have, version):
            segment, row = self.trace.segment_of(number)
            if segment.rows[0][row][0] == INPUT:  # declared anew, with whatever was in it
                memory = self.declared(self.trace.decode(segment, row))
                continue
            op = self.op_at(segment, row)
            run_plain(
                op, self._written_arguments(segment, row, op, memory, buffer), self.trace.path.name, number
            )
        return memory

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
                f"event {number} of {self.trace.path.name} reserves {layout.shape!s:.60} of {layout.dtype:.20}, which this "
                "machine cannot; it is damaged, or too large"
            ) from error

    def _written_arguments(
        self, segment: SegmentReader, row: int, op: Op, memory: Memory, buffer: int
    ) -> dict[str, Any]:
        """The arguments of an earlier write: the buffer itself, kept rows, and windows on other caches."""
        events, links, _ = segment.rows
        event = events[row]
        arguments: dict[str, Any] = dict(segment.args[event[ARGS]])
        first = event[FIRST_LINK]
        for slot, item, layout, source, version, offset in links[first : first + event[LINKS]]:
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


def run_plain(op: Op, arguments: Mapping[str, Any], file_name: str, event: int) -> Any:
    """Runs an operation on what a file says that it was given. Errors: `CannotRunError`, whatever it raises."""
    try:
        return op.plain(**arguments)
    except HaawError:
        raise
    except Exception as error:
        raise CannotRunError(
            f"{op.name} cannot be run on what event {event} of {file_name} holds ({type(error).__name__}: {error!s:.200}); "
            "the file is damaged, or of another version"
        ) from error


class Whole(Memory):
    """A weight, which is a window on an allocation that other weights share."""

    __slots__ = ()

    def __init__(self, array: Array) -> None:
        self.whole = array
        self.flat = array.reshape(-1)


def operation(name: str) -> Op:
    """An operation of this HAAW by name. Errors: `BadInputError` for one that it does not have."""
    _import_operations()
    if name not in OPS:
        raise BadInputError(
            f'this HAAW has no operation "{name}", which the trace has; use the version that made it'
        )
    return OPS[name]


def _import_operations() -> None:
    import haaw.caches.kinds
    import haaw.ops.choosing
    import haaw.ops.norms  # noqa: F401


def laid_out(value: np.ndarray, window: Window) -> np.ndarray:
    """A kept value in memory of its own that is laid out as the recorded window was (offset and strides)."""
    layout = window.layout
    dtype = np.dtype(layout.dtype)
    if layout.shape != value.shape:
        raise TraceDamagedError(f"a kept value has the shape {value.shape}, and its table says {layout.shape}")
    last = sum((length - 1) * stride for length, stride in zip(layout.shape, layout.strides, strict=True))
    if not value.size or min((*layout.strides, 0)) < 0:
        return value.copy()
    elements = window.offset + last // dtype.itemsize + 1
    if elements * dtype.itemsize > MOST_AROUND_A_VALUE * value.nbytes + MOST_BYTES_AROUND:
        raise TraceDamagedError(
            f"a kept value of {value.nbytes} bytes would begin at byte {window.offset * dtype.itemsize} of its buffer; "
            "the trace is damaged"
        )
    memory = np.zeros(elements, dtype=dtype)
    laid: np.ndarray = np.ndarray(layout.shape, dtype, memory, window.offset * dtype.itemsize, layout.strides)
    laid[...] = value
    return laid
