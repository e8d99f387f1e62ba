"""The residual stream of a step: what every token's vector is after the embedding and after each layer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.attention_view import attention_pieces
from haaw.tracing.event import Event, Step
from haaw.tracing.outputs import events_in
from haaw.tracing.row_positions import row_positions
from haaw.tracing.steps import StepLike, find_step, the_request

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

EMBEDDING = "embedding"


@dataclass(frozen=True, eq=False)
class Residual:
    """The vectors (T, D) of a step's tokens by the part that they come out of, in order, and the tokens' positions."""

    step: Step
    positions: tuple[int, ...]
    parts: tuple[str, ...]
    events: tuple[Event, ...] = field(repr=False)

    def vectors(self, trace: "Trace") -> Iterator[np.ndarray]:
        """The values, one part after another. Errors: `ValueNotKeptError` where they cannot be had."""
        for event in self.events:
            yield trace.value(event).array


def residual(trace: "Trace", step: Step) -> Residual:
    """Where the residual stream of a step stands in the log.

    Errors: `BadInputError` for a step without one, or of several sequences.
    """
    found: dict[str, Event] = {}
    declared: Event | None = None
    for event in events_in(trace, step):
        place, made = event.place, event.outputs[0]
        if event.kind == "input" and event.name == "positions":
            declared = event
        elif place.part == EMBEDDING and made.axes == "TD":
            found[EMBEDDING] = event
        elif place.layer is not None and event.name == "add" and made.axes == "TD":
            found[f"layer {place.layer}"] = event  # the last one, behind the MLP
    if len(found) < 2:
        raise BadInputError(f"{step.name} has no residual stream; choose a prefill or decode step")
    positions = _positions(trace, step, declared, next(iter(found.values())))
    return Residual(step, positions, tuple(found), tuple(found.values()))


def _positions(trace: "Trace", step: Step, declared: Event | None, embedded: Event) -> tuple[int, ...]:
    """Where the tokens of a step stand: as it was told, or, where that was not kept, the last that its keys are of."""
    if declared is not None and declared.outputs[0].is_kept:
        positions = tuple(trace.value(declared).array.tolist())
        if list(positions) != sorted(set(positions)):
            raise BadInputError(f"{step.name} has several sequences; only a step of one can be drawn")
        return positions
    layer = next(each.place.layer for each in events_in(trace, step) if each.place.layer is not None)
    end = row_positions(trace, attention_pieces(trace, step, layer)[-1].keys)[-1] + 1
    return tuple(range(end - embedded.outputs[0].window.layout.shape[0], end))


def steps_to_show(trace: "Trace", step: "StepLike | None", request: int | None) -> list[Step]:
    """The step that is meant, or all prefill and decode steps of the request."""
    if step is not None:
        return [find_step(trace, step, request=request)]
    number = the_request(trace, request)
    steps = [each for each in trace.steps(request=number) if each.stage in ("prefill", "decode")]
    if not steps:
        raise BadInputError("this trace has no prefill and no decode step")
    return steps
