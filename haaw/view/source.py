"""A trace as the page needs it: steps, the operations of one step with their costs, facts, and values by path.

One request of a trace at a time. Works on the tables of the segments, since a trace may have a hundred thousand
events and an `Event` object for each would take seconds.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from haaw.errors import BadInputError
from haaw.ops.op import OPS
from haaw.tracing.costs import Costs
from haaw.tracing.paths import Found
from haaw.tracing.schema import NOT_IN_A_LIST, OPERATION, segment_member, value_member

STEPS_KEPT = 4


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


class TraceSource:
    """What the page asks of an open trace (`haaw.tracing.trace.Trace`). `request` None: the first one."""

    def __init__(self, trace: Any, request: int | None = None) -> None:
        """Errors: `BadInputError` for a request that the trace does not have."""
        self.trace = trace
        self.manifest = trace.manifest
        numbers = sorted({step.request for step in trace.steps() if step.request is not None})
        if request is not None and request not in numbers:
            raise BadInputError(f"the trace has no request {request}; it has {numbers or 'none'}")
        self.request = request if request is not None else (numbers[0] if numbers else None)
        self._costs = Costs(trace)
        self._costs_of: tuple[Any, list[Any]] = None, []
        self._known: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}

    def facts(self) -> list[dict[str, Any]]:
        """The facts of the start-up and of this request, in order."""
        return [
            {
                "kind": event.name,
                "stage": event.place.stage,
                "step": event.place.step,
                "start_ns": event.start_ns,
                "facts": event.facts or {},
            }
            for event in self.trace.facts()
            if event.place.request in (None, self.request)
        ]

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], list[Any]]:
        """Prefill and decode steps, each with its stretches of events."""
        found: dict[tuple[str, int], list[Any]] = {}
        for step in self.trace.steps(request=self.request):
            if step.stage in ("prefill", "decode") and step.step is not None:
                found.setdefault((step.stage, step.step), []).append(step)
        return found

    def steps(self) -> list[dict[str, Any]]:
        """Prefill and decode steps in the order in which they ran."""
        return [
            {
                "stage": stage,
                "step": number,
                "start_ns": parts[0].start_ns,
                "took_ns": parts[-1].start_ns + parts[-1].took_ns - parts[0].start_ns,
            }
            for (stage, number), parts in self._by_name.items()
        ]

    def outline(self, stage: str, step: int) -> list[Line]:
        """The operations of a step in few words, straight from the tables: a long trace is gone through in seconds."""
        lines: list[Line] = []
        for part in self._by_name.get((stage, step), []):
            for segment, first, last in self._stretches(part):
                lines += self._lines(segment, first, last)
        return lines

    def _lines(self, segment: Any, first: int, last: int) -> Iterator[Line]:
        rows, outputs, parts = segment.events[first:last], segment.outputs, segment.info["parts"]
        costs = self._segment_costs(segment)[first:last]
        fields = ("kind", "name", "part", "layer", "head", "start_ns", "took_ns", "outputs", "first_output")
        columns = zip(*(rows[field].tolist() for field in fields), costs, strict=True)
        for kind, name, part, layer, head, start_ns, took_ns, made, first_output, cost in columns:
            if kind == OPERATION:
                op = self.manifest["ops"][name]["name"]
                shape = segment.layouts[int(outputs["layout"][first_output])].shape if made else ()
                yield Line(
                    op,
                    parts[part] or None,
                    None if layer < 0 else layer,
                    None if head < 0 else head,
                    start_ns,
                    round(took_ns),
                    max(0, cost.operations),
                    max(0, cost.bytes),
                    shape,
                )

    def _segment_costs(self, segment: Any) -> list[Any]:
        if self._costs_of[0] is not segment:
            self._costs_of = segment, self._costs.of_segment(segment)
        return self._costs_of[1]

    def operations(self, stage: str, step: int) -> list[dict[str, Any]]:
        """The operations of a step in order; none for a step that is not there."""
        rows = [row for part in self._by_name.get((stage, step), []) for row in self._operations(part)]
        outputs = [output for row in rows for output in row["outputs"]]
        times = Counter(output["path"] for output in outputs)
        met: Counter[str] = Counter()
        for output in outputs:
            path = output["path"]
            if times[path] > 1:  # as `haaw.tracing.paths` numbers them
                met[path] += 1
                output["path"] = f"{path}#{met[path]}"
        return rows

    def _operations(self, step: Any) -> Iterator[dict[str, Any]]:
        for segment, first, last in self._stretches(step):
            for row in range(first, last):
                if int(segment.events["kind"][row]) == OPERATION:
                    yield self._operation(self.trace.decode(segment, row))

    def _stretches(self, step: Any) -> Iterator[tuple[Any, int, int]]:
        """Segments with the rows from the first to behind the last that belong to a step."""
        number = step.first
        while number < step.end:
            segment, row = self.trace.segment_of(number)
            last = min(step.end - segment.first_event, segment.count)
            yield segment, row, last
            number = segment.first_event + last

    def _operation(self, event: Any) -> dict[str, Any]:
        place, cost = event.place, self._costs.of(event)
        made = {
            "op": event.name,
            "layer": place.layer,
            "head": place.head,
            "part": place.part or None,
            "start_ns": event.start_ns,
            "took_ns": round(event.took_ns),
            "outputs": [],
            "operations": max(0, cost.operations),
            "bytes": max(0, cost.bytes),
            "site": f"{event.file}:{event.line}",
        }
        op = OPS.get(event.name)
        if op is not None and op.writes is not None:
            return made | {"writes": [list(output.window.layout.shape) for output in event.outputs]}
        made["outputs"] = [self._output(event, slot, output) for slot, output in enumerate(event.outputs)]
        return made

    def _output(self, event: Any, slot: int, output: Any) -> dict[str, Any]:
        layout = output.window.layout
        return {
            "path": event.place.path(output.name, with_request=self.trace.several_requests),
            "shape": list(layout.shape),
            "axes": output.axes,
            "dtype": str(np.dtype(layout.dtype)),
            "event": event.number,
            "slot": slot,
        }

    def value(self, path: str, head: int | None = None) -> Any:
        """A `haaw.tracing.values.Value` by its path: kept, or computed again. `head` takes one entry of the axis H.

        Errors: `LookupError` for a path that is not there, and `HaawError` for a value that cannot be had.
        """
        return self.value_of(self._find(path), head)

    def value_of(self, output: dict[str, Any], head: int | None = None) -> Any:
        """The value of an output as `operations` lists it."""
        from haaw.tracing.values import of_output

        event = self.trace.event(output["event"])
        chosen = head if "H" in output["axes"] else None
        return of_output(self.trace, Found(output["path"], event, output["slot"], chosen))

    def token_bytes(self, token_id: int) -> bytes | None:
        """The vocabulary's bytes of an id; None where the model is not at hand."""
        found: bytes | None = self.trace.token_bytes(token_id)
        return found

    def place_in_file(self, output: dict[str, Any]) -> tuple[int, int] | None:
        """Where the numbers of a kept output begin in the trace file, and their bytes (C order); None if not kept."""
        segment, row = self.trace.segment_of(output["event"])
        slot = -1 - output["slot"]
        kept = segment.kept.get((row, slot, NOT_IN_A_LIST))
        if kept is None:
            return None
        _, apart, offset, nbytes = kept
        own = value_member(segment.number, row, slot, NOT_IN_A_LIST, "value")
        member = own if apart else segment_member(segment.number, "arena.npy")
        begin = self.trace.container.members[member].offset
        header = (
            int.from_bytes(self.trace.container.content[begin + 8 : begin + 10], "little") + 10
        )  # .npy version 1
        return begin + header + (0 if apart else offset), nbytes

    def _find(self, path: str) -> dict[str, Any]:
        step = next((part for part in path.split("/") if part.startswith(("prefill ", "decode "))), "")
        stage, _, number = step.partition(" ")
        if not (number.isascii() and number.isdigit()):
            raise LookupError(path)
        return self._outputs_of(stage, int(number))[path]

    def _outputs_of(self, stage: str, step: int) -> dict[str, dict[str, Any]]:
        """The outputs of a step by path; those of the steps that were asked for last are kept."""
        key = stage, step
        if key not in self._known:
            if len(self._known) >= STEPS_KEPT:
                self._known.pop(next(iter(self._known)))
            rows = self.operations(stage, step)
            self._known[key] = {output["path"]: output for row in rows for output in row["outputs"]}
        return self._known[key]
