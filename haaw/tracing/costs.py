"""What an event costs by the card of its operation: floating-point operations, and bytes read and written once each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haaw.errors import BadInputError
from haaw.ops.shapes import ShapeError, lengths_of
from haaw.tracing.alike import alike
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.event import Event
from haaw.tracing.running import operation
from haaw.tracing.schema import NOT_IN_A_LIST, OPERATION
from haaw.tracing.segments import Layout, SegmentReader

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

Input = tuple[int, int, Layout]
"""Slot of the parameter, element of a list (or NOT_IN_A_LIST), layout."""


class Cost(NamedTuple):
    """Operations and bytes of one event; -1 where this HAAW does not know the operation."""

    operations: int
    bytes: int


UNKNOWN = Cost(-1, -1)
LARGEST_ELEMENT_BYTES = 1 << 16
"""Of larger elements (texts and records may be as large as a file says) no stand-in is made."""
MOST = 1 << 60
"""Operations or bytes of one event: no honest one comes near."""
COSTING = ["kind", "name", "first_link", "links", "first_output", "outputs"]


class Costs:
    """Counts by shape, and remembers each: a decode step has the same shapes in every layer."""

    def __init__(self, trace: "Trace") -> None:
        self._trace = trace
        self._known: dict[Any, Cost] = {}

    def of(self, event: Event) -> Cost:
        """The cost of one event; inputs and facts cost nothing."""
        if event.kind != "operation":
            return Cost(0, 0)
        number = next(
            place for place, op in enumerate(self._trace.manifest["ops"]) if op["name"] == event.name
        )
        inputs = tuple(
            (link.slot, NOT_IN_A_LIST if link.item is None else link.item, link.window.layout)
            for link in event.inputs
        )
        return self._cost(number, inputs, tuple(output.window.layout for output in event.outputs))

    def of_segment(self, segment: SegmentReader) -> list[Cost]:
        """The cost of each event of a segment."""
        first, group = alike(segment)
        costs = self.of_rows(segment, first)
        return [costs[number] for number in group.tolist()]

    def of_rows(self, segment: SegmentReader, rows: Sequence[int]) -> list[Cost]:
        """The cost of some of the events of a segment."""
        costs = []
        for kind, name, link, count, output, made in segment.events[COSTING][list(rows)].tolist():
            if kind != OPERATION:
                costs.append(Cost(0, 0))
                continue
            inputs = segment.links[["slot", "item", "layout"]][link : link + count].tolist()
            outputs = segment.outputs["layout"][output : output + made].tolist()
            costs.append(
                self._cost(
                    name,
                    tuple((slot, item, segment.layouts[layout]) for slot, item, layout in inputs),
                    tuple(segment.layouts[layout] for layout in outputs),
                )
            )
        return costs

    def _cost(self, number: int, inputs: tuple[Input, ...], outputs: tuple[Layout, ...]) -> Cost:
        key = (
            number,
            tuple((slot, item, layout.dtype, layout.shape) for slot, item, layout in inputs),
            tuple((layout.dtype, layout.shape) for layout in outputs),
        )
        if key not in self._known:
            self._known[key] = self._counted(number, inputs, outputs)
        return self._known[key]

    def _counted(self, number: int, inputs: Sequence[Input], outputs: Sequence[Layout]) -> Cost:
        manifest_op = self._trace.manifest["ops"][number]
        try:
            op = operation(manifest_op["name"])
        except BadInputError:
            return UNKNOWN
        if list(op.parameters) != list(manifest_op["parameters"]):
            return UNKNOWN
        layouts = (*(layout for _, _, layout in inputs), *outputs)
        if any(np.dtype(layout.dtype).itemsize > LARGEST_ELEMENT_BYTES for layout in layouts):
            return UNKNOWN
        arguments: dict[str, Any] = {}
        try:
            for slot, item, layout in inputs:
                if not 0 <= slot < len(op.parameters):
                    raise ShapeError("there is no such parameter")
                stand_in = _stand_in(layout)
                if item == NOT_IN_A_LIST:
                    arguments[op.parameters[slot]] = stand_in
                else:
                    arguments.setdefault(op.parameters[slot], []).append(stand_in)
            results = [_stand_in(layout) for layout in outputs] if op.writes is None else []
            lengths = lengths_of(op.name, op.parameters, (), arguments, zip(op.out, results, strict=True))
            operations = op.card.operations(lengths)
            flat = [
                each
                for value in arguments.values()
                for each in (value if isinstance(value, list) else [value])
            ]
            if op.card.bytes_moved is None:
                moved = sum(int(each.nbytes) for each in (*flat, *results))
            else:
                moved = op.card.bytes_moved(lengths, itemsize([*results, *flat]))
            if max(operations, moved) >= MOST:
                raise ShapeError("no machine could do that")
            return Cost(operations, moved)
        except (ShapeError, ValueError) as error:
            raise TraceDamagedError(
                f"the trace {self._trace.path.name} has arrays that {op.name} cannot have: {error}"
            ) from error
        except AttributeError:  # a length that the arrays of this call do not say
            return UNKNOWN


def _stand_in(layout: Layout) -> np.ndarray:
    """An array of that shape and dtype without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype=layout.dtype), layout.shape)


def itemsize(arrays: Sequence[np.ndarray]) -> int:
    """Bytes of one element of what an operation moves: of its numbers, not of ids or codes."""
    floats = [each for each in arrays if each.dtype.kind == "f"]
    return int((floats or [*arrays, np.zeros(0)])[0].itemsize)
