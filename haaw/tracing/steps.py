"""Finding the step and the request that somebody means."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.event import Step
from haaw.tracing.names_near import nearest

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

StepLike = Step | str | int
"""A `Step`; its name, such as "decode 5" or "request 2/prefill 0"; or the number of a decode step (0: the prefill
that chose the first token).
"""

_PIECE = re.compile(r"\s*([^\W\d]\w*(?:-\w+)*)(?:\s+(\d{1,9}))?\s*")


def find_step(trace: "Trace", step: StepLike, *, request: int | None = None) -> Step:
    """The one step that is meant.

    Errors: `BadInputError` where there is none, or several, naming those there are.
    """
    if isinstance(step, Step):
        return step
    if isinstance(step, np.integer):  # out of `trace.events`
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int | str):
        raise BadInputError(
            f'a step is {step!r:.60}; it is a name such as "decode 5", or the number of a decode step'
        )
    if isinstance(step, int):
        number = the_request(trace, request)
        if step == 0 and (prefills := trace.steps("prefill", request=number)):
            return prefills[-1]
        return one_step(trace, number, "decode", step)
    *front, last = step.split("/")
    for piece in front:
        word, number = split_piece(piece)
        if word != "request" or number is None:
            raise BadInputError(
                f'the step {step!r:.80} has {piece!r:.40}; write it as "decode 5" or "request 2/decode 5"'
            )
        request = number
    return one_step(trace, request, *split_piece(last))


def split_piece(piece: str) -> tuple[str, int | None]:
    """`"decode 5"` as a word and a number, which may be missing. Errors: `BadInputError` for something else."""
    found = _PIECE.fullmatch(piece)
    if found is None:
        raise BadInputError(
            f'{piece!r:.60} is no part of a path; its parts are such as "decode 5", "layer 3" or "head 1"'
        )
    return found.group(1), None if found.group(2) is None else int(found.group(2))


def steps_like(trace: "Trace", request: int | None, stage: str | None, step: int | None) -> list[Step]:
    """The steps that fit; None fits all. Errors: `BadInputError` where none does, saying which there are."""
    if request is not None:
        the_request(trace, request)
    of_stage = trace.steps(stage, request=request)
    if not of_stage:
        stages = list(dict.fromkeys(each.stage for each in trace.steps(request=request)))
        raise BadInputError(
            f'this trace has no stage "{stage!s:.40}"{nearest(stage, stages)}; it has {", ".join(stages) or "none"}'
        )
    fitting = [each for each in of_stage if step in (None, each.step)]
    if not fitting:
        numbers = [each.step for each in of_stage if each.step is not None]
        what = stage or "step"
        raise BadInputError(f"this trace has no {what} {step}; it has {what} {_runs(numbers)}")
    return fitting


def one_step(trace: "Trace", request: int | None, stage: str, step: int | None) -> Step:
    """The one step that fits. Errors: `BadInputError` for none or several."""
    fitting = steps_like(trace, request, stage, step)
    if len(fitting) > 1:
        names = [step_name(trace, each) for each in fitting]
        raise BadInputError(f"{stage}{'' if step is None else f' {step}'} may be {one_of(names)}; say which")
    return fitting[0]


def step_name(trace: "Trace", step: Step) -> str:
    """`decode 5`, with "request 2/" in front where there are several."""
    several = trace.several_requests and step.request is not None
    return f"request {step.request}/{step.name}" if several else step.name


def step_of(trace: "Trace", event: int) -> Step:
    """The step that an event belongs to."""
    from bisect import bisect_right

    steps = trace.steps()
    return steps[bisect_right(steps, event, key=lambda step: step.first) - 1]


def requests_of(trace: "Trace") -> list[int]:
    """The numbers of the requests that a trace has."""
    return sorted({step.request for step in trace.steps() if step.request is not None})


def the_request(trace: "Trace", request: int | None) -> int | None:
    """The request that is meant: the one given, or the only one there is. Errors: `BadInputError`."""
    there = requests_of(trace)
    if request is None:
        if len(there) > 1:
            raise BadInputError(
                f"this trace has the requests {_runs(there)}; say which: request={there[0]} in Python, "
                f"--request {there[0]} on the command line"
            )
        return there[0] if there else None
    if request not in there:
        raise BadInputError(
            f"this trace has no request {request}; it has {f'request {_runs(there)}' if there else 'none'}"
        )
    return request


def one_of(names: Sequence[str], most: int = 8) -> str:
    """Choices in words; of very many the first few."""
    more = f" … and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f'"{name}"' for name in names[:most]) + more


def _runs(numbers: Iterable[int]) -> str:
    ordered = sorted(set(numbers))
    if not ordered:
        return "without a number"
    whole = ordered == list(range(ordered[0], ordered[-1] + 1))
    if len(ordered) == 1:
        return str(ordered[0])
    return f"{ordered[0]} to {ordered[-1]}" if whole else ", ".join(map(str, ordered[:12]))
