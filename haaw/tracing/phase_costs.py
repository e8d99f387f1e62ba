"""`trace.phases`: where the time of a request went, with the operations and bytes of each phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.display import count, duration, html_table, text_table
from haaw.tracing.estimate import in_words
from haaw.tracing.steps import requests_of, the_request

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

START_UP = "start-up"
PHASES = ("prepare", "queue", "prefill", "decode", "deliver")
COLUMNS = ("phase", "time", "events", "operations", "bytes", "operations a byte", "operations a second")


@dataclass(frozen=True)
class PhaseCost:
    """One phase. `took_s` is the request's own clock, or (`timed_by` "events") what the events say; None: not known.

    `operations` are floating-point operations, `bytes` those that the operations read and write once each.
    """

    name: str
    took_s: float | None
    timed_by: str
    events: int
    operations: int
    bytes: int

    @property
    def operations_per_byte(self) -> float | None:
        """The arithmetic intensity: below some ten, memory sets the pace and not arithmetic."""
        return self.operations / self.bytes if self.bytes else None

    @property
    def operations_per_s(self) -> float | None:
        """Operations through the whole time of the phase."""
        return self.operations / self.took_s if self.took_s and self.operations else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "phase": self.name,
            "took_s": self.took_s,
            "timed_by": self.timed_by,
            "events": self.events,
            "operations": self.operations,
            "bytes": self.bytes,
            "operations_per_byte": self.operations_per_byte,
        }


class Phases(Sequence[PhaseCost]):
    """The phases in order; `phases["decode"]` is one by name."""

    def __init__(self, phases: Sequence[PhaseCost]) -> None:
        self._phases = tuple(phases)

    def __len__(self) -> int:
        return len(self._phases)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            found = {phase.name: phase for phase in self._phases}
            if key not in found:
                raise KeyError(f"there is no phase {key!r}; there are {', '.join(found)}")
            return found[key]
        return self._phases[key]

    def _rows(self) -> list[list[object]]:
        return [
            [
                phase.name,
                "–" if phase.took_s is None else duration(phase.took_s * 1e9),
                phase.events,
                count(phase.operations),
                in_words(phase.bytes),
                phase.operations_per_byte,
                "–" if phase.operations_per_s is None else count(phase.operations_per_s),
            ]
            for phase in self._phases
        ]

    def __str__(self) -> str:
        return text_table(COLUMNS, self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table("phases", COLUMNS, self._rows())


def phases(trace: "Trace", *, request: int | None = None) -> Phases:
    """The phases of one request, or of all together. Choosing the first token is part of decode, as on the clock."""
    columns, calls = trace.reading.columns, trace.reading.calls.rows
    number = None if request is None else the_request(trace, request)
    chosen = requests_of(trace) if number is None else [number]
    spent = {each.place.request: (each.facts or {}).get("spent_s", {}) for each in trace.facts("phases")}
    is_choice = columns.says("part", "choose")
    found = [_start_up(trace)]
    for name in PHASES:
        rows = np.isin(columns["request"], chosen)
        if name == "decode":
            rows &= columns.says("stage", name) | (columns.says("stage", "prefill") & is_choice)
        else:
            rows &= columns.says("stage", name) & ~(is_choice if name == "prefill" else np.False_)
        by_clock = [spent[each].get(name) for each in chosen if each in spent]
        took_s: float | None = None
        if chosen and len(by_clock) == len(chosen) and None not in by_clock:
            took_s, timed_by = float(sum(by_clock)), "clock"
        else:
            timed_by = "events"
            steps = [step for step in trace.steps(name) if step.request in chosen]
            took_s = sum(step.took_ns for step in steps) / 1e9 if steps else None
        operations, moved = (calls[what][rows] for what in ("operations", "bytes"))
        found.append(
            PhaseCost(
                name, took_s, timed_by, int(rows.sum()),
                sum(operations[operations > 0].tolist()), sum(moved[moved > 0].tolist()),
            )
        )  # fmt: skip
    return Phases(found)


def _start_up(trace: "Trace") -> PhaseCost:
    """Importing, opening and reading, before the recording began: the time that any of these spans covers."""
    facts = [each.facts or {} for each in trace.facts("journey")]
    spans = sorted(
        (each["start_ns"], each["start_ns"] + each["took_ns"])
        for each in facts
        if each.get("start_ns") is not None and each.get("took_ns")
    )
    covered = end = 0.0
    end = -np.inf
    for start, stop in spans:
        covered += max(stop - max(start, end), 0)
        end = max(end, stop)
    events = len([each for each in trace.facts() if each.place.stage == START_UP])
    return PhaseCost(START_UP, covered / 1e9 if spans else None, "clock", events, 0, 0)
