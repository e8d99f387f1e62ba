"""A trace as the page needs it: steps, the operations of one step with their costs, facts, and values by path.

One request of a trace at a time.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from haaw.errors import BadInputError
from haaw.tracing.costs import Costs
from haaw.tracing.paths import Found
from haaw.tracing.schema import NOT_IN_A_LIST, segment_member, value_member
from haaw.view.source_rows import CacheLine, Line, OperationRows, cache_lines_of, lines_of

STEPS_KEPT = 4


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
        self.differing = 0  # values so far that were computed again and do not have their hash
        self._costs = Costs(trace)
        self._rows = OperationRows(trace)
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
                lines += lines_of(self.trace, segment, first, last, self._segment_costs(segment))
        return lines

    def cache_lines(self, step: int | None) -> list[CacheLine]:
        """What was done to caches in the engine step with this index in `steps`; before the first one with None."""
        if step is not None:
            own: list[Any] = list(self._by_name.values())[step]
        else:
            first = next(iter(self._by_name.values()), [None])[0]
            before = self.trace.steps(request=self.request)
            own = [each for each in before if first is None or each.end <= first.first]
        return [
            line
            for part in own
            for segment, begin, end in self._stretches(part)
            for line in cache_lines_of(self.trace, segment, begin, end)
        ]

    def _segment_costs(self, segment: Any) -> list[Any]:
        if self._costs_of[0] is not segment:
            self._costs_of = segment, self._costs.of_segment(segment)
        return self._costs_of[1]

    def operations(self, stage: str, step: int) -> list[dict[str, Any]]:
        """The operations of a step in order; none for a step that is not there."""
        rows = [
            row
            for part in self._by_name.get((stage, step), [])
            for segment, first, last in self._stretches(part)
            for row in self._rows.rows(segment, first, last, self._segment_costs(segment))
        ]
        outputs = [output for row in rows for output in row["outputs"]]
        times = Counter(output["path"] for output in outputs)
        met: Counter[str] = Counter()
        for output in outputs:
            path = output["path"]
            if times[path] > 1:  # as `haaw.tracing.paths` numbers them
                met[path] += 1
                output["path"] = f"{path}#{met[path]}"
        return rows

    def _stretches(self, step: Any) -> Iterator[tuple[Any, int, int]]:
        """Segments with the rows from the first to behind the last that belong to a step."""
        number = step.first
        while number < step.end:
            segment, row = self.trace.segment_of(number)
            last = min(step.end - segment.first_event, segment.count)
            yield segment, row, last
            number = segment.first_event + last

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
        with warnings.catch_warnings():  # said beside the value instead, and counted here
            warnings.filterwarnings("ignore", message=".*is not bit for bit what ran then")
            value = of_output(self.trace, Found(output["path"], event, output["slot"], chosen))
        self.differing += value.hash_verdict == "differs"
        return value

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
