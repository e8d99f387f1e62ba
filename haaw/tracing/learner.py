"""A learner's own function in the place of an operation: run on the recorded inputs of every call, and judged.

What was recorded and what the learner computes may each err by the operation's error budget, so that they may differ by
twice as much. The function gets copies that cannot be written to.
"""

import inspect
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np

from haaw.arrays import Array, is_array
from haaw.errors import BadInputError
from haaw.ops.op import Op
from haaw.tracing.comparing import budget_of, exceeding, first_difference
from haaw.tracing.event import Event, Step
from haaw.tracing.memory import Memory
from haaw.tracing.replay import Player, Progress, Selection, same_bits
from haaw.tracing.segments import SegmentReader
from haaw.tracing.trace import Trace
from haaw.tracing.verdicts import MOST_SHOWN, Judged

IDENTICAL, WITHIN, DIFFERS = "identical", "within budget", "DIFFERS"
RAISED, WRONG_SHAPE, WRONG_DTYPE, WROTE = "RAISED", "WRONG SHAPE", "WRONG DTYPE", "TRIED TO CHANGE ITS INPUT"
NOT_CHECKED = "not checked"
RIGHT = (IDENTICAL, WITHIN)


@dataclass(frozen=True)
class Call:
    """One call of a learner's function. `error_in_budgets` is its largest error, 1 being what is allowed."""

    event: int
    path: str
    stage: str
    step: int | None
    layer: int | None
    head: int | None
    tokens: int | None
    verdict: str
    detail: str = ""
    error_in_budgets: float | None = None

    def __str__(self) -> str:
        return f"{self.verdict}: {self.path}{' – ' + self.detail if self.detail else ''}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no number for an error without bounds."""
        error = self.error_in_budgets
        return {**vars(self), "error_in_budgets": None if error is None or isinf(error) else error}


class LearnerReport(Sequence[Call]):
    """All calls of a learner's function. `ok` is True where there were calls and every one was right."""

    def __init__(self, op: str, calls: Sequence[Call]) -> None:
        self.op = op
        self._calls = tuple(calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index: Any) -> Any:
        return self._calls[index]

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    @property
    def ok(self) -> bool:
        """Whether there were calls and all of them were right."""
        return bool(self._calls) and all(call.verdict in RIGHT for call in self._calls)

    @property
    def wrong(self) -> list[Call]:
        """The calls that were not right."""
        return [call for call in self._calls if call.verdict not in (*RIGHT, NOT_CHECKED)]

    @property
    def counts(self) -> dict[str, int]:
        """How often each verdict was given, the commonest first."""
        return dict(Counter(call.verdict for call in self._calls).most_common())

    @property
    def contrast(self) -> str:
        """What sets the wrong calls apart: "prefill ok, decode differs"; empty if nothing simple does."""
        checked = [call for call in self._calls if call.verdict != NOT_CHECKED]
        if not self.wrong or len(self.wrong) == len(checked):
            return ""
        for name, label in (("stage", ""), ("layer", "layer "), ("head", "head "), ("step", "step ")):
            groups: dict[Any, set[bool]] = defaultdict(set)
            for call in checked:
                groups[getattr(call, name)].add(call.verdict in RIGHT)
            if len(groups) > 1 and all(len(found) == 1 for found in groups.values()):
                return _said_apart(groups, label)
        return ""

    def __str__(self) -> str:
        lines = [f"{count:>8,}  {verdict}" for verdict, count in self.counts.items()]
        lines.append(f"{len(self):>8,}  calls of {self.op}")
        if self.contrast:
            lines.append(self.contrast)
        lines += [str(call) for call in self.wrong[:MOST_SHOWN]]
        if len(self.wrong) > MOST_SHOWN:
            lines.append(f"… {len(self.wrong) - MOST_SHOWN:,} more")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "op": self.op,
            "calls": len(self),
            "counts": self.counts,
            "ok": self.ok,
            "contrast": self.contrast,
            "wrong": [call.to_dict() for call in self.wrong],
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{count:,}</td><td>{escape(verdict)}</td></tr>" for verdict, count in self.counts.items()
        )
        wrong = "".join(f"<li>{escape(str(call))}</li>" for call in self.wrong[:20])
        return (
            f"<table><caption>{escape(self.op)}: {len(self):,} calls</caption>{rows}</table>"
            f"<p>{escape(self.contrast)}</p>{'<ol>' + wrong + '</ol>' if wrong else ''}"
        )


def _said_apart(groups: Mapping[Any, set[bool]], label: str) -> str:
    fine = [f"{label}{name}" for name, found in groups.items() if True in found]
    not_fine = [f"{label}{name}" for name, found in groups.items() if False in found]
    return f"{_few(fine)} ok, {_few(not_fine)} differs"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def replay_using(
    trace: Trace, selection: Selection, using: Callable[..., Any], *, progress: Progress | None = None
) -> LearnerReport:
    """Runs `using` on the recorded inputs of every selected call of one operation.

    Errors: `BadInputError` where no operation is named, it writes into a cache, or `using` cannot take its arguments.
    """
    if selection.op is None:
        raise BadInputError(
            'name the operation that your function stands for, as in trace.replay(op="softmax", using=…)'
        )
    if not callable(using):
        raise BadInputError(f"using is {using!r:.60}; it must be a function")
    if not any(op["name"] == selection.op and op["out"] for op in trace.manifest["ops"]):
        raise BadInputError(
            f"{selection.op} writes into a cache and gives nothing back, so no function can take its place; choose an "
            "operation with a result"
        )
    calls: list[Call] = []
    steps = [step for step in trace.steps() if selection.takes_step(step)]
    player = _Learner(trace, selection, using)
    for number, step in enumerate(steps):
        calls.extend(player.calls(step))
        if progress is not None:
            progress(number + 1, len(steps))
    selection.check_found(trace, len(calls))
    return LearnerReport(selection.op, calls)


class _Learner(Player):
    def __init__(self, trace: Trace, selection: Selection, using: Callable[..., Any]) -> None:
        super().__init__(trace)
        self._selection = selection
        self._using = using
        self._seen: list[Call] = []

    def calls(self, step: Step) -> list[Call]:
        """Judges every selected call of a step."""
        self._seen = []
        for judged in self.judge(step, self._selection):
            if judged.verdict.startswith("not checked"):
                event = self.trace.event(judged.event)
                self._seen.append(self._call(event, None, NOT_CHECKED, judged.verdict))
        return self._seen

    def _judge_results(
        self, segment: SegmentReader, row: int, event: Event, op: Op, arguments: Mapping[str, Any],
        results: Sequence[Array], made: dict[int, Memory], differ: bool,
    ) -> Judged:  # fmt: skip
        judged = super()._judge_results(segment, row, event, op, arguments, results, made, differ)
        if self._selection.takes(event):
            expected = tuple(
                made[output.window.buffer].window(output.window.offset, output.window.layout)
                for output in event.outputs
            )
            self._seen.append(self._try(event, op, arguments, expected))
        return judged

    def _try(self, event: Event, op: Op, arguments: Mapping[str, Any], expected: Sequence[Array]) -> Call:
        positional, keywords = _as_called(
            self._using, op, {name: _guarded(value) for name, value in arguments.items()}
        )
        try:
            with np.errstate(all="ignore"):
                result = self._using(*positional, **keywords)
        except (Exception, SystemExit) as error:  # whatever a learner's function may raise
            tried = isinstance(error, ValueError) and "read-only" in str(error)
            said = " ".join(f"{type(error).__name__}: {error}".split()) + _line_of(error, self._using)
            return self._call(event, arguments, WROTE if tried else RAISED, said)
        results = result if len(op.out) > 1 and isinstance(result, tuple | list) else (result,)
        if len(results) != len(expected):
            wanted = f"{', '.join(op.out)} should come back, and {len(results)} came"
            return self._call(event, arguments, WRONG_SHAPE, wanted)
        verdict, detail, worst = IDENTICAL, "", 0.0
        for number, (wanted, value) in enumerate(zip(expected, results, strict=True)):
            one, said, error_size = _judge(op, arguments, wanted, value, number)
            worst = max(worst, error_size)
            if ORDER.index(one) > ORDER.index(verdict):
                verdict, detail = one, said
        return self._call(event, arguments, verdict, detail, worst)

    def _call(
        self,
        event: Event,
        arguments: Mapping[str, Any] | None,
        verdict: str,
        detail: str,
        worst: float | None = None,
    ) -> Call:
        place = event.place
        name = event.outputs[0].name if event.outputs else event.name
        path = place.path(name, with_request=self.trace.several_requests)
        first = next((value for value in (arguments or {}).values() if is_array(value)), None)
        tokens = None if first is None or first.ndim < 2 else int(first.shape[-2])
        return Call(
            event.number,
            path,
            place.stage,
            place.step,
            place.layer,
            place.head,
            tokens,
            verdict,
            detail,
            worst,
        )


def _line_of(error: BaseException, using: Callable[..., Any]) -> str:
    """The last line of the learner's own file or cell that an error came through; nothing where none is known."""
    code = getattr(inspect.unwrap(using), "__code__", None)
    if code is None:
        return ""
    own = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == code.co_filename
    ]
    if not own:
        return ""
    name = Path(code.co_filename).name
    is_file = not name.startswith("<") and "ipykernel_" not in code.co_filename
    return f" (line {own[-1]} of {name if is_file else 'the cell'})"


ORDER = (IDENTICAL, WITHIN, WRONG_DTYPE, DIFFERS, WRONG_SHAPE)


def _judge(
    op: Op, arguments: Mapping[str, Any], wanted: Array, value: Any, number: int
) -> tuple[str, str, float]:
    name = op.out[number]
    if not is_array(value) or value.shape != wanted.shape:
        shape = value.shape if is_array(value) else type(value).__name__
        return WRONG_SHAPE, f"{name} should have the shape {wanted.shape}, and it is {shape}", float("inf")
    if same_bits(wanted, value):
        return IDENTICAL, "", 0.0
    if value.dtype != wanted.dtype:
        return WRONG_DTYPE, f"{name} should be {wanted.dtype}, and it is {value.dtype}", float("inf")
    budget = budget_of(op, arguments, number)
    wrong = exceeding(wanted, value, budget)
    size = _in_budgets(wanted, value, budget)
    if not wrong.any():
        return WITHIN, "", size
    return DIFFERS, first_difference(wanted, value, name, wrong), size


def _in_budgets(wanted: Array, value: Array, budget: np.ndarray | None) -> float:
    """The largest error in shares of what is allowed; infinite without a budget, or where one is no number."""
    if budget is None or wanted.dtype.kind not in "fc":
        return float("inf")
    with np.errstate(all="ignore"):
        distance = np.abs(wanted.astype(np.float64) - value.astype(np.float64))
        same = (wanted == value) | ((wanted != wanted) & (value != value))
        shares = np.where(same, 0.0, distance / (2 * np.broadcast_to(budget, distance.shape)))
    shares[np.isnan(shares)] = np.inf
    return float(shares.max()) if shares.size else 0.0


def _guarded(value: Any) -> Any:
    """A copy that cannot be written to, laid out like the original."""
    if isinstance(value, list):
        return [_guarded(each) for each in value]
    if not is_array(value):
        return value
    copy = np.array(value, order="K", copy=True)
    copy.flags.writeable = False
    return copy


def _as_called(
    using: Callable[..., Any], op: Op, arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the operation itself is given them: by position, and by keyword where it asks for that.

    Errors: `BadInputError` where `using` cannot be called so.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, parameter in inspect.signature(op.plain).parameters.items():
        if name not in arguments:
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords[name] = arguments[name]
        else:
            positional.append(arguments[name])
    try:
        inspect.signature(using).bind(*positional, **keywords)
    except TypeError as error:
        wanted = ", ".join(inspect.signature(op.plain).parameters)
        raise BadInputError(
            f"{getattr(using, '__name__', 'your function')} cannot be called as {op.name}({wanted}) is: {error}"
        ) from error
    except ValueError:  # a built-in function says nothing about its parameters
        pass
    return positional, keywords
