"""The outputs of a step's events, and the path that each of them has."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from haaw.tracing.event import Event, Step
from haaw.tracing.steps import step_of

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace


class Named(NamedTuple):
    """An output of an event, and its own path."""

    path: str
    event: Event
    output: int


def events_in(
    trace: "Trace",
    step: Step,
    *,
    sequence: int | None = None,
    layer: int | None = None,
    part: str | None = None,
) -> Iterator[Event]:
    """The events of a step that have outputs, in a place; None fits all."""
    number = step.first
    while number < step.end:
        segment, row = trace.segment_of(number)
        end = min(segment.count, row + step.end - number)
        rows = segment.events[row:end]
        fits = rows["outputs"] > 0
        for field, value in (("sequence", sequence), ("layer", layer)):
            if value is not None:
                fits &= rows[field] == value
        if part is not None:
            parts = segment.info["parts"]
            fits &= rows["part"] == (parts.index(part) if part in parts else 0xFFFF)
        for at in np.flatnonzero(fits).tolist():
            yield trace.decode(segment, row + at)
        number += end - row


def named_outputs(trace: "Trace", step: Step) -> list[Named]:
    """Every output of a step's events under its own path, with `#k` where a path comes more than once."""
    plain = [
        Named(event.place.path(made.name, with_request=trace.several_requests), event, output)
        for event in events_in(trace, step)
        for output, made in enumerate(event.outputs)
    ]
    times: dict[str, int] = {}
    for each in plain:
        times[each.path] = times.get(each.path, 0) + 1
    met: dict[str, int] = {}
    numbered = []
    for each in plain:
        met[each.path] = met.get(each.path, 0) + 1
        numbered.append(each._replace(path=f"{each.path}#{met[each.path]}") if times[each.path] > 1 else each)
    return numbered


def path_of(trace: "Trace", event: Event, output: int = 0) -> str:
    """The path of one output of an event, with `#k` where others in the same place have its name."""
    if not event.outputs:
        return event.place.path(event.name, with_request=trace.several_requests)
    place, name = event.place, event.outputs[output].name
    path = place.path(name, with_request=trace.several_requests)
    beside = events_in(
        trace, step_of(trace, event.number), sequence=place.sequence, layer=place.layer, part=place.part
    )
    numbers = [
        (each.number, number)
        for each in beside
        for number, made in enumerate(each.outputs)
        if each.place == place and made.name == name
    ]
    return path if len(numbers) == 1 else f"{path}#{numbers.index((event.number, output)) + 1}"
