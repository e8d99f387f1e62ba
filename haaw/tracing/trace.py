"""An open trace: events, steps, facts, names and values. Nothing is read before it is asked for."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from haaw.arrays import Array
from haaw.errors import BadInputError
from haaw.ops.shapes import suffix
from haaw.tracing.call_names import CallNames, bare
from haaw.tracing.container import Container, TraceDamagedError
from haaw.tracing.event import KINDS, Event, Link, Output, Place, Step, Window
from haaw.tracing.schema import FACT, MANIFEST, NONE, NOT_IN_A_LIST, OPERATION, SCHEMA_VERSION, SUMMARY
from haaw.tracing.segments import SegmentReader, find_segments, read_json
from haaw.tracing.views import Views

if TYPE_CHECKING:
    from haaw.tracing.learner import LearnerReport
    from haaw.tracing.verdicts import ReplayReport

Weights = Mapping[str, Array]
KINDS_IN_MANIFEST = {
    "model": dict, "policy": dict, "fingerprint": dict, "ops": list, "weights": dict, "sources": dict,
    "first_weight_buffer": int,
}  # fmt: skip


class Trace(Views):
    """A trace file that is open for reading; a context manager.

    `weights` gives the arrays of the model that the trace was made with, when one is needed: recomputing and
    replaying do. Made by `haaw.open_trace`.
    """

    def __init__(self, path: str | Path, weights: Callable[[], Weights] | None = None) -> None:
        self.container = Container.open(path)
        if MANIFEST not in self.container.members:
            raise BadInputError(f"{self.container.name} is no trace: it has no {MANIFEST}")
        self.manifest = read_json(self.container, MANIFEST)
        check_schema(self.manifest, self.container.name)
        self._weights = weights
        self._load()

    def _load(self) -> None:
        self._ops: list[Mapping[str, Any]] = self.manifest["ops"]
        self.segments = find_segments(self.container, len(self._ops))
        self._firsts = [segment.first_event for segment in self.segments]
        self.names = CallNames(self.manifest["sources"])

    @property
    def path(self) -> Path:
        """The file."""
        return self.container.path

    @property
    def complete(self) -> bool:
        """Whether the recording was ended properly; else it is under way, or was cut off."""
        return self.container.complete and SUMMARY in self.container.members

    @cached_property
    def summary(self) -> Mapping[str, Any] | None:
        """What stands at the end of a trace that was ended properly."""
        return read_json(self.container, SUMMARY) if SUMMARY in self.container.members else None

    def refresh(self) -> int:
        """Takes in what a recording that is under way has written since; the number of new events."""
        before = len(self)
        self.container.refresh()
        self._forget()
        known = self.segments
        self._load()
        self.segments[: len(known)] = known
        return len(self) - before

    def _forget(self) -> None:
        for name in ("summary", "_step_list", "_fact_list", "several_requests", "reading"):
            self.__dict__.pop(name, None)

    def __len__(self) -> int:
        return self.segments[-1].first_event + self.segments[-1].count if self.segments else 0

    def segment_of(self, event: int) -> tuple[SegmentReader, int]:
        """The segment that an event stands in, and its row there. Errors: `BadInputError` for one that is not there."""
        if not 0 <= event < len(self):
            raise BadInputError(f"there is no event {event}; this trace has the events 0 to {len(self) - 1}")
        segment = self.segments[bisect_right(self._firsts, event) - 1]
        while not segment.count:  # an empty segment begins where the next one does
            segment = self.segments[segment.number - 1]
        return segment, event - segment.first_event

    def event(self, number: int) -> Event:
        """One event with all that the file says about it."""
        segment, row = self.segment_of(number)
        return self.decode(segment, row)

    def decode(self, segment: SegmentReader, row: int) -> Event:
        """One row of a segment as an `Event`."""
        values = segment.events[row]
        kind = int(values["kind"])
        is_op = kind == OPERATION
        op = self._ops[int(values["name"])] if is_op else None
        name = str(op["name"]) if op else str(segment.info["names"][int(values["name"])])
        given: tuple[str, ...] = ()
        file, line = "", 0
        if is_op:
            file, *place = segment.info["sites"][int(values["site"])]
            line = int(place[0])
            given = self.names.at(file, (place[0], place[1], place[2], place[3]))
        return Event(
            number=segment.first_event + row,
            kind=KINDS[kind],
            name=name,
            place=self.place(segment, values),
            inputs=tuple(self._links(segment, values, op)) if op else (),
            outputs=tuple(self._outputs(segment, row, values, op, name, given)),
            args=segment.args[int(values["args"])] if is_op else {},
            facts=segment.facts.get(row, {}) if kind == FACT else None,
            file=file,
            line=line,
            start_ns=int(values["start_ns"]),
            took_ns=float(values["took_ns"]),
        )

    def place(self, segment: SegmentReader, values: Any) -> Place:
        """Where in the run a row stands."""

        def number(field: str) -> int | None:
            value = int(values[field])
            return None if value == NONE else value

        return Place(
            request=int(values["request"]) or None,
            stage=segment.info["stages"][int(values["stage"])],
            step=number("step"),
            sequence=number("sequence"),
            layer=number("layer"),
            head=number("head"),
            part=segment.info["parts"][int(values["part"])],
        )

    def _links(self, segment: SegmentReader, values: Any, op: Mapping[str, Any]) -> Iterator[Link]:
        first = int(values["first_link"])
        for slot, item, layout, buffer, version, offset in segment.links[
            first : first + int(values["links"])
        ].tolist():
            if not 0 <= slot < len(op["parameters"]):
                raise TraceDamagedError(f"{self.path.name} links a parameter that {op['name']} does not have")
            window = Window(buffer, version, offset, segment.layouts[layout])
            yield Link(op["parameters"][slot], slot, None if item == NOT_IN_A_LIST else item, window)

    def _outputs(
        self,
        segment: SegmentReader,
        row: int,
        values: Any,
        op: Mapping[str, Any] | None,
        name: str,
        given: tuple[str, ...],
    ) -> Iterator[Output]:
        first, count = int(values["first_output"]), int(values["outputs"])
        for number, (buffer, version, layout, offset, digest) in enumerate(
            segment.outputs[first : first + count]
        ):
            window = Window(int(buffer), int(version), int(offset), segment.layouts[int(layout)])
            own = output_name(op, name, number)
            called = given[number] if len(given) == count else bare(own) if count > 1 else name
            hashed = digest.tobytes()
            yield Output(
                called,
                window,
                hashed if any(hashed) else None,
                suffix(own) or "",
                (row, -1 - number, NOT_IN_A_LIST) in segment.kept,
            )

    def __iter__(self) -> Iterator[Event]:
        for segment in self.segments:
            for row in range(segment.count):
                yield self.decode(segment, row)

    @cached_property
    def _step_list(self) -> list[Step]:
        steps: list[Step] = []
        for segment in self.segments:
            events = segment.events
            same = np.ones(max(len(events) - 1, 0), dtype=bool)
            for name in ("request", "stage", "step"):
                same &= events[name][1:] == events[name][:-1]
            borders = [0, *(np.flatnonzero(~same) + 1).tolist(), len(events)] if len(events) else []
            for row, end in pairwise(borders):
                request, stage, step = (int(events[name][row]) for name in ("request", "stage", "step"))
                start_ns = int(events["start_ns"][row])
                stop_ns = int(events["start_ns"][end - 1]) + round(float(events["took_ns"][end - 1]))
                made = Step(
                    request or None, segment.info["stages"][stage], None if step == NONE else step,
                    segment.first_event + row, segment.first_event + end, start_ns, stop_ns - start_ns,
                )  # fmt: skip
                last = steps[-1] if steps else None
                if last is not None and (last.request, last.stage, last.step) == made[:3]:
                    steps[-1] = last._replace(end=made.end, took_ns=stop_ns - last.start_ns)
                else:
                    steps.append(made)
        return steps

    def steps(self, stage: str | None = None, *, request: int | None = None) -> list[Step]:
        """The engine steps in order; those of one stage, or of one request."""
        return [
            step
            for step in self._step_list
            if stage in (None, step.stage) and request in (None, step.request)
        ]

    @cached_property
    def several_requests(self) -> bool:
        """Whether paths must say which request they mean."""
        return len({step.request for step in self._step_list if step.request is not None}) > 1

    @cached_property
    def _fact_list(self) -> list[Event]:
        return [self.decode(segment, row) for segment in self.segments for row in segment.fact_events()]

    def facts(self, kind: str | None = None, *, request: int | None = None) -> list[Event]:
        """The events that are no operations on arrays, such as a delta or the end state; those of one kind."""
        return [
            event
            for event in self._fact_list
            if kind in (None, event.name) and request in (None, event.place.request)
        ]

    def weights(self) -> Weights:
        """The model's arrays. Errors: `BadInputError` where they are not at hand, or of another model."""
        if self._weights is None:
            name = self.manifest["model"].get("name", "?")
            raise BadInputError(
                f'this needs the weights of the model "{name}", which were not given; open the trace with model='
            )
        return self._weights()

    def replay(
        self,
        op: str | None = None,
        *,
        using: Callable[..., Any] | None = None,
        request: int | None = None,
        stage: str | None = None,
        step: int | None = None,
        layer: int | None = None,
        head: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "ReplayReport | LearnerReport":
        """Runs operations again, all or those chosen by name and place, and holds each against what was recorded.

        With `using`, that function takes the place of the operation `op`: it is run on the recorded inputs of every
        call, and judged within the operation's error budget. `progress` is told how many of how many steps are done.
        Errors: `BadInputError` for an unknown operation or place, or a function that cannot take the arguments.
        """
        from haaw.tracing.learner import replay_using
        from haaw.tracing.replay import Selection, replay

        chosen = Selection(self, op, request, stage=stage, step=step, layer=layer, head=head)
        if using is not None:
            return replay_using(self, chosen, using, progress=progress)
        return replay(self, chosen, progress=progress)

    def close(self) -> None:
        """Lets go of the file, also of its mapping once no value of it is held any more."""
        self._forget()
        for segment in self.segments:
            segment.forget()
        self.container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "complete" if self.complete else "not ended"
        return f"<trace {self.path.name}: {self.manifest['model'].get('name', '?')}, {len(self):,} events, {state}>"


def output_name(op: Mapping[str, Any] | None, name: str, number: int) -> str:
    """What the operation itself calls its output, suffix included; the written argument of one that writes."""
    if op is None:
        return name
    names = [op["writes"]] if op["writes"] else op["out"]
    return str(names[number]) if number < len(names) else name


def check_schema(manifest: Mapping[str, Any], name: str) -> None:
    """Errors: `BadInputError` for a manifest of a newer schema, or one that lacks what this reader needs."""
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise TraceDamagedError(f"{name} states no schema in its {MANIFEST}; it is no trace, or damaged")
    if schema > SCHEMA_VERSION:
        raise BadInputError(
            f"{name} was made by HAAW {manifest.get('haaw', '?')!s:.20} and has the schema {schema}; this HAAW reads "
            f"up to {SCHEMA_VERSION}, so use a newer one"
        )
    for key, kind in KINDS_IN_MANIFEST.items():
        if not isinstance(manifest.get(key), kind):
            raise TraceDamagedError(f'{name} has no "{key}" in its {MANIFEST}; it is damaged')
    first = manifest["first_weight_buffer"]
    for key, fine in (
        ("ops", all(map(_is_op, manifest["ops"]))),
        ("weights", all(isinstance(each, dict) for each in manifest["weights"].values())),
        ("sources", all(isinstance(each, str) for each in manifest["sources"].values())),
        ("first_weight_buffer", 0 <= first < 2**32),
        ("policy", _is_policy(manifest["policy"])),
    ):
        if not fine:
            raise TraceDamagedError(
                f'"{key}" in the {MANIFEST} of {name} holds something else; it is damaged'
            )


def _is_policy(entry: Mapping[str, Any]) -> bool:
    rules = entry.get("rules", [])
    return isinstance(rules, list) and all(isinstance(rule, str) for rule in rules)


def _is_op(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("writes"), str | None):
        return False
    texts = (entry.get("parameters"), entry.get("out"))
    return isinstance(entry.get("name"), str) and all(
        isinstance(each, list) and all(isinstance(text, str) for text in each) for each in texts
    )
