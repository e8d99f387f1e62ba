"""One event of a trace: an operation, a declared input or a fact, with everything that the file says about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from haaw.tracing.segments import Layout

EventKind = Literal["operation", "input", "fact"]
KINDS: tuple[EventKind, ...] = ("operation", "input", "fact")
"""By their numbers in the file."""


class Place(NamedTuple):
    """Where in a run an event stands; None for what does not apply. Requests are numbered from 1."""

    request: int | None
    stage: str
    step: int | None
    sequence: int | None
    layer: int | None
    head: int | None
    part: str

    def path(self, name: str, *, with_request: bool = False) -> str:
        """`decode 5/layer 3/head 1/attention.weights`, with "request 2/" in front where there are several."""
        pieces = [f"request {self.request}"] if with_request and self.request is not None else []
        pieces.append(self.stage if self.step is None else f"{self.stage} {self.step}")
        for what, number in (("sequence", self.sequence), ("layer", self.layer), ("head", self.head)):
            if number is not None:
                pieces.append(f"{what} {number}")
        pieces.append(f"{self.part}.{name}" if self.part else name)
        return "/".join(pieces)


@dataclass(frozen=True)
class Window:
    """A window on a version of a buffer: where it begins (in elements of its dtype), and how it lies in memory."""

    buffer: int
    version: int
    offset: int
    layout: Layout


@dataclass(frozen=True)
class Link:
    """An array that an event read: the parameter, the element of a list (or None), and the window."""

    parameter: str
    slot: int
    item: int | None
    window: Window


@dataclass(frozen=True)
class Output:
    """An array that an event made or changed. `hash` is None where none was taken; `axes` are its axis letters."""

    name: str
    window: Window
    hash: bytes | None
    axes: str
    is_kept: bool


@dataclass(frozen=True)
class Event:
    """One row of the log. Times in nanoseconds since the trace began; `args` are the arguments that are no arrays."""

    number: int
    kind: EventKind
    name: str
    place: Place
    inputs: tuple[Link, ...]
    outputs: tuple[Output, ...]
    args: Mapping[str, Any]
    facts: Mapping[str, Any] | None
    file: str
    line: int
    start_ns: int
    took_ns: float

    def __repr__(self) -> str:
        made = ", ".join(f"{each.name} {each.window.layout.shape}" for each in self.outputs)
        return f"<event {self.number}: {self.place.path(self.name)}{' → ' + made if made else ''}>"


class Step(NamedTuple):
    """One engine step: its events are `first` … `end` - 1. Times in nanoseconds since the trace began."""

    request: int | None
    stage: str
    step: int | None
    first: int
    end: int
    start_ns: int
    took_ns: int

    @property
    def name(self) -> str:
        """`decode 5`."""
        return self.stage if self.step is None else f"{self.stage} {self.step}"
