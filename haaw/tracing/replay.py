"""Replays a trace: every operation runs again and is held against what was recorded.

An operation starts from recorded values where they were kept, so that it is judged alone; else from values that were
computed again in this step, and is judged only where those were the recorded ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.errors import BadInputError, HaawError
from haaw.ops.op import Op
from haaw.tracing import verdicts
from haaw.tracing.comparing import first_difference, within_budget
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.event import Event, Step
from haaw.tracing.hashing import array_hash
from haaw.tracing.manifest import fingerprint
from haaw.tracing.memory import Memory, laid_out
from haaw.tracing.rerun import Rerun
from haaw.tracing.running import CannotRunError, NotRecordedError
from haaw.tracing.segments import SegmentReader
from haaw.tracing.steps import steps_like
from haaw.tracing.trace import Trace
from haaw.tracing.verdicts import Judged, ReplayReport

Progress = Callable[[int, int], None]


class Selection:
    """Which events are meant: by operation, request, stage, step, layer and head; None means any."""

    def __init__(self, trace: Trace, op: str | None = None, request: int | None = None, **place: Any) -> None:
        names = [each["name"] for each in trace.manifest["ops"]]
        if op is not None and op not in names:
            raise BadInputError(f'the trace knows no operation "{op}"; it knows: {", ".join(sorted(names))}')
        if unknown := set(place) - {"stage", "step", "layer", "head"}:
            raise BadInputError(
                f"an operation has no {', '.join(sorted(unknown))}; choose by stage, step, layer or head"
            )
        self.op = op
        self.request = request
        self.place = {name: value for name, value in place.items() if value is not None}

    def takes_step(self, step: Step) -> bool:
        """Whether a step can hold any of them."""
        return (
            self.request in (None, step.request)
            and self.place.get("stage", step.stage) == step.stage
            and self.place.get("step", step.step) == step.step
        )

    def takes(self, event: Event) -> bool:
        """Whether an event is one of them."""
        return self.op in (None, event.name) and all(
            getattr(event.place, name) == value for name, value in self.place.items()
        )

    def check_found(self, trace: Trace, found: int) -> None:
        """Errors: `BadInputError` where something was asked for, and the trace has nothing of it."""
        asked = [] if self.op is None else [self.op]
        asked += [f"{what} {value}" for what, value in self.place.items()]
        if found or not (asked or self.request is not None):
            return
        steps_like(trace, self.request, self.place.get("stage"), self.place.get("step"))
        raise BadInputError(
            f"this trace has nothing of {', '.join(asked) or f'request {self.request}'}; trace.tree() or haaw trace "
            "tree show what it has"
        )


def replay(trace: Trace, selection: Selection, *, progress: Progress | None = None) -> ReplayReport:
    """Runs the selected operations again and judges each. See `haaw.tracing.verdicts` for what is found out."""
    steps = [step for step in trace.steps() if selection.takes_step(step)]
    player = Player(trace)
    judged: list[Judged] = []
    for number, step in enumerate(steps):
        judged.extend(player.judge(step, selection))
        if progress is not None:
            progress(number + 1, len(steps))
    selection.check_found(trace, len(judged))
    return ReplayReport(judged, player.notes())


class Player(Rerun):
    """Runs steps and judges their operations. Recorded values replace computed ones wherever there are any."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.other_environment = differences(trace.manifest.get("fingerprint", {}), fingerprint())
        self._differs: set[int] = set()
        self._missing: dict[int, str] = {}
        self._without_weights = 0
        self._why_without = ""

    def notes(self) -> list[str]:
        """What a reader of the report should know."""
        notes = []
        if self.other_environment:
            notes.append(f"another environment than the recording's: {'; '.join(self.other_environment)}")
        if self._without_weights:
            notes.append(f"{self._without_weights:,} operations read weights, and {self._why_without}")
        cut_at = self.trace.container.cut_at
        if cut_at is not None and not cut_at.is_torn:
            notes.append(f"the trace is damaged, and what stands behind the place was not replayed: {cut_at}")
        elif not self.trace.complete:
            notes.append("the trace was not ended properly; what it holds was replayed")
        return notes

    def judge(self, step: Step, selection: Selection) -> Iterator[Judged]:
        """The verdicts on the selected events of a step, in order."""
        made: dict[int, Memory] = {}
        self._differs, self._missing = set(), {}
        number = step.first
        with np.errstate(all="ignore"):
            while number < step.end:
                segment, row = self.trace.segment_of(number)
                self.use(segment)
                event = self.trace.decode(segment, row)
                number += 1
                if event.kind == "input":
                    judged = self._judge_input(event, made)
                elif event.kind == "operation":
                    judged = self._judge_operation(segment, row, event, made)
                else:
                    continue
                if selection.takes(event):
                    yield judged

    def _said(self, event: Event, verdict: str, detail: str = "") -> Judged:
        name = event.outputs[0].name if event.outputs else event.name
        path = event.place.path(name, with_request=self.trace.several_requests)
        return Judged(event.number, path, event.name, event.place.stage, verdict, detail)

    def _judge_input(self, event: Event, made: dict[int, Memory]) -> Judged:
        output = event.outputs[0]
        try:
            memory = made[output.window.buffer] = self.declared(event)
        except NotRecordedError:
            self._missing[output.window.buffer] = verdicts.NOT_KEPT
            return self._said(event, verdicts.NOT_KEPT)
        value = memory.window(output.window.offset, output.window.layout)
        if output.hash is None or array_hash(value) == output.hash:
            return self._said(event, verdicts.IDENTICAL)
        return self._said(event, verdicts.MISMATCH, "the kept value does not have the recorded hash")

    def _judge_operation(
        self, segment: SegmentReader, row: int, event: Event, made: dict[int, Memory]
    ) -> Judged:
        reason = next(
            (
                self._missing[link.window.buffer]
                for link in event.inputs
                if link.window.buffer in self._missing
            ),
            None,
        )
        differ = any(link.window.buffer in self._differs for link in event.inputs)
        op: Op | None = None
        arguments: Mapping[str, Any] = {}
        results: tuple[Array, ...] | None = None
        if reason is None:
            try:
                op = self.op_at(segment, row)
                arguments = self.arguments(segment, row, op, made)
                taken = arguments if op.writes is None else self._as_kept(segment, row, event, arguments)
                results = self.run(segment, row, op, taken, made)
            except NotRecordedError:
                reason = verdicts.NOT_KEPT
            except WeightsMissingError as error:
                self._without_weights += 1
                self._why_without = str(error)
                reason = verdicts.NO_WEIGHTS
            except CannotRunError as error:
                verdict = verdicts.INPUTS_DIFFER if differ else verdicts.MISMATCH
                return self._not_run(segment, row, event, made, verdict, str(error))
            except TraceDamagedError:
                raise
            except BadInputError as error:
                return self._not_run(segment, row, event, made, verdicts.NOT_HERE, str(error))
        if reason is not None:
            return self._not_run(segment, row, event, made, reason)
        assert op is not None
        assert results is not None
        if op.writes is not None:
            return self._judge_write(segment, row, event, op, arguments, differ)
        return self._judge_results(segment, row, event, op, arguments, results, made, differ)

    def weight(self, number: int) -> Memory | None:
        """As in `Rerun`. Errors: `WeightsMissingError` where the model is not at hand."""
        try:
            return super().weight(number)
        except BadInputError as error:
            raise WeightsMissingError(str(error)) from error

    def _not_run(
        self,
        segment: SegmentReader,
        row: int,
        event: Event,
        made: dict[int, Memory],
        reason: str,
        detail: str = "",
    ) -> Judged:
        """What follows goes on from recorded values where there are any."""
        behind = reason if reason in (verdicts.NOT_KEPT, verdicts.NO_WEIGHTS) else verdicts.NOT_COMPUTED
        for number, output in enumerate(event.outputs):
            kept = segment.kept_value(row, -1 - number)
            if kept is not None:
                made[output.window.buffer] = Memory(laid_out(kept, output.window))
            else:
                self._missing[output.window.buffer] = behind
        return self._said(event, reason, detail)

    def _as_kept(
        self, segment: SegmentReader, row: int, event: Event, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What a write takes: the rows that were kept, so that the cache is the recorded one for all that follows."""
        taken = dict(arguments)
        for link in event.inputs:
            kept = segment.kept_value(row, link.slot) if link.item is None else None
            if kept is not None:
                taken[link.parameter] = kept
        return taken

    def _judge_write(
        self,
        segment: SegmentReader,
        row: int,
        event: Event,
        op: Op,
        arguments: Mapping[str, Any],
        differ: bool,
    ) -> Judged:
        """A write has no value of its own; the rows that it was given are held against those that were kept."""
        written = event.outputs[0].window.buffer
        if any(
            link.window.buffer in self._differs and segment.kept_value(row, link.slot) is None
            for link in event.inputs
        ):
            self._differs.add(written)
            self._caches.pop(written, None)  # the next step makes it again from its history
            return self._said(event, verdicts.INPUTS_DIFFER)
        compared = False
        for link in event.inputs:
            kept = segment.kept_value(row, link.slot) if link.item is None else None
            if kept is None:
                continue
            compared = True
            given = arguments[link.parameter]
            if not same_bits(kept, given):
                if differ:
                    return self._said(event, verdicts.INPUTS_DIFFER)
                return self._said(
                    event, verdicts.MISMATCH, first_difference(kept, given, op.parameters[link.slot])
                )
        return self._said(event, verdicts.IDENTICAL if compared else verdicts.NOTHING_TO_COMPARE)

    def _judge_results(
        self, segment: SegmentReader, row: int, event: Event, op: Op, arguments: Mapping[str, Any],
        results: Sequence[Array], made: dict[int, Memory], differ: bool,
    ) -> Judged:  # fmt: skip
        worst, detail = verdicts.NOTHING_TO_COMPARE, ""
        for number, (output, value) in enumerate(zip(event.outputs, results, strict=True)):
            kept = segment.kept_value(row, -1 - number)
            buffer = output.window.buffer
            made[buffer] = Memory(value) if kept is None else Memory(laid_out(kept, output.window))
            if op.name.startswith("kv_allocate"):
                self._caches[buffer] = 0, made[buffer]
            verdict = self._verdict(op, arguments, value, kept, output.hash, number)
            if differ and verdict not in (*verdicts.SAME, verdicts.NOTHING_TO_COMPARE):
                verdict = verdicts.INPUTS_DIFFER
            if verdict not in verdicts.SAME and kept is None and verdict != verdicts.NOTHING_TO_COMPARE:
                self._differs.add(buffer)
            if RANK.index(verdict) > RANK.index(worst):
                worst = verdict
                if verdict == verdicts.MISMATCH and kept is not None:
                    detail = first_difference(kept, value, op.out[number])
        return self._said(event, worst, detail)

    def _verdict(
        self,
        op: Op,
        arguments: Mapping[str, Any],
        value: Array,
        kept: np.ndarray | None,
        digest: bytes | None,
        number: int,
    ) -> str:
        if kept is not None:
            if digest is not None and array_hash(kept) != digest:
                return verdicts.MISMATCH
            if same_bits(kept, value):
                return verdicts.IDENTICAL
            if self.other_environment and within_budget(op, arguments, kept, value, number):
                return verdicts.WITHIN_BUDGET
            return verdicts.MISMATCH
        if digest is None:
            return verdicts.NOTHING_TO_COMPARE
        if array_hash(value) == digest:
            return verdicts.IDENTICAL_HASH
        return verdicts.HASH_DIFFERS if self.other_environment else verdicts.MISMATCH


RANK = (
    verdicts.NOTHING_TO_COMPARE, verdicts.IDENTICAL, verdicts.IDENTICAL_HASH, verdicts.WITHIN_BUDGET,
    verdicts.INPUTS_DIFFER, verdicts.HASH_DIFFERS, verdicts.MISMATCH,
)  # fmt: skip


class WeightsMissingError(HaawError):
    """A replay reached an operation that reads weights, and there are none."""


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays have the same dtype, shape and bits (so that NaN equals itself, and 0 is not −0)."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What of the environment is not as it was, as far as the last bits may depend on it."""
    said = []
    for key in ("numpy", "blas", "threads", "machine", "cpu_features", "cupy"):
        if recorded.get(key) != here.get(key):
            said.append(f"{key} {_short(recorded.get(key))} then, {_short(here.get(key))} now")
    return said


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = [" ".join(str(part) for part in each.values()) for each in value]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
