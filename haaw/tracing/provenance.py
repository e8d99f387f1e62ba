"""`trace.producers` and `trace.users`: where the inputs of an event come from, and who read what it made."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.display import html_table, text_table
from haaw.tracing.event import Event, Window
from haaw.tracing.outputs import path_of
from haaw.tracing.paths import find
from haaw.tracing.values import Value

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

Which = str | int | Event | Value


@dataclass(frozen=True)
class Producer:
    """What an input of an event is: a weight, or the result of an event.

    For a window on a cache, `event` wrote to it last, and `chain` holds all that led to what was read: the one
    that reserved it and every write since. Neither is there for what came before the trace began.
    """

    parameter: str
    path: str
    window: Window
    weight: str | None = None
    event: Event | None = None
    chain: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.parameter} {self.window.layout.shape}: {self.path}>"


@dataclass(frozen=True)
class User:
    """An event that read something, as these parameters."""

    path: str
    event: Event
    parameters: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{', '.join(self.parameters)} of {self.path}>"


class Links(Sequence[Any]):
    """Producers or users, which show themselves as a table."""

    def __init__(self, caption: str, found: Sequence[Any]) -> None:
        self.caption = caption
        self._found = tuple(found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, key: Any) -> Any:
        return self._found[key]

    def _table(self) -> tuple[list[str], list[list[object]]]:
        rows: list[list[object]] = []
        for each in self._found:
            if isinstance(each, Producer):
                how = each.event.name if each.event else "a weight" if each.weight else "not in the trace"
                writes = f", {len(each.chain) - 1} writes" if each.chain else ""
                rows.append([each.parameter, each.path, how + writes, str(each.window.layout.shape)])
            else:
                shape = next(
                    link.window.layout.shape
                    for link in each.event.inputs
                    if link.parameter in each.parameters
                )
                rows.append([", ".join(each.parameters), each.path, each.event.name, str(shape)])
        return ["parameter", "value", "by", "shape"], rows

    def __repr__(self) -> str:
        return f"{self.caption}\n{text_table(*self._table())}" if self._found else f"{self.caption}: none"

    def _repr_html_(self) -> str:
        return html_table(self.caption, *self._table())


def event_of(trace: "Trace", which: Which, *, request: int | None = None) -> tuple[Event, int | None]:
    """The event that is meant, and which of its outputs, where one was named."""
    if isinstance(which, Value):
        return which.event, which.output
    if isinstance(which, str):
        found = find(trace, which, request=request)
        return found.event, found.output
    if isinstance(which, int | np.integer) and not isinstance(which, bool):
        return trace.event(int(which)), None
    if isinstance(which, Event):
        return which, None
    raise BadInputError(f"{which!r:.60} is no path, value, event or number of one")


def producers(trace: "Trace", which: Which, *, request: int | None = None) -> Links:
    """The events and weights that an event's inputs come from, in the order of its parameters."""
    event, output = event_of(trace, which, request=request)
    found = [_producer(trace, _said(link.parameter, link.item), link.window) for link in event.inputs]
    return Links(f"what {path_of(trace, event, output or 0)} was made of", found)


def _said(parameter: str, item: int | None) -> str:
    return parameter if item is None else f"{parameter}[{item}]"


def _producer(trace: "Trace", parameter: str, window: Window) -> Producer:
    weight = weight_name(trace, window.buffer)
    if weight is not None:
        return Producer(parameter, weight, window, weight=weight)
    reading = trace.reading
    made = reading.origins.maker(window.buffer)
    if window.version:
        numbers = reading.rerun.history.writes(window.buffer, 0, window.version)
        chain = tuple(trace.event(number) for number in ([made[0]] if made else []) + numbers)
        if numbers:
            return Producer(parameter, path_of(trace, chain[-1]), window, event=chain[-1], chain=chain)
    if made is None:
        return Producer(parameter, "before the trace began", window)
    event = trace.event(made[0])
    return Producer(parameter, path_of(trace, event, made[1]), window, event=event)


def weight_name(trace: "Trace", buffer: int) -> str | None:
    """The canonical name of the weight that a buffer is; None if it is none."""
    place = buffer - int(trace.manifest["first_weight_buffer"])
    names = list(trace.manifest["weights"])
    return names[place] if 0 <= place < len(names) else None


def users(trace: "Trace", which: Which, *, request: int | None = None) -> Links:
    """The events that read what an event made: the same buffer at the same version, or a window on it."""
    event, output = event_of(trace, which, request=request)
    outputs = event.outputs if output is None else event.outputs[output : output + 1]
    found: dict[int, User] = {}
    for made in outputs:
        buffer, version = made.window.buffer, made.window.version
        for number in trace.reading.origins.readers(buffer, version):
            reader = trace.event(number)
            parameters = tuple(
                _said(link.parameter, link.item)
                for link in reader.inputs
                if (link.window.buffer, link.window.version) == (buffer, version)
            )
            before = found[number].parameters if number in found else ()
            found[number] = User(path_of(trace, reader), reader, before + parameters)
    ordered = [found[number] for number in sorted(found)]
    return Links(f"who read {path_of(trace, event, output or 0)}", ordered)
