"""Where a request's time goes: every instant belongs to exactly one phase, so that phases add up to the total."""

import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

Phase = Literal["prepare", "queue", "prefill", "decode", "deliver"]
PHASES: tuple[Phase, ...] = ("prepare", "queue", "prefill", "decode", "deliver")


class _Mark(NamedTuple):
    """The phase that is under way, since when, and the seconds of each phase before that."""

    phase: Phase
    since_s: float
    spent_s: Mapping[Phase, float]


class PhaseClock:
    """One monotonic clock, handed from phase to phase. Starts in `prepare`.

    Its state is replaced in one go, so that an interrupt between two instructions cannot count time twice.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.started_s = now()
        self._mark = _Mark("prepare", self.started_s, dict.fromkeys(PHASES, 0.0))
        self._stopped = False

    @property
    def phase(self) -> Phase:
        """The phase that is under way."""
        return self._mark.phase

    def enter(self, phase: Phase) -> float:
        """Ends the current phase and begins another, at the instant (seconds) that is returned."""
        now = self._now()
        if not self._stopped:
            self._mark = _Mark(phase, now, self._spent_until(now))
        return now

    def stop(self) -> None:
        """Ends the last phase; later calls change nothing."""
        self.enter(self.phase)
        self._stopped = True

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return (self._mark.since_s if self._stopped else self._now()) - self.started_s

    def spent_s(self) -> dict[str, float]:
        """Seconds of each phase so far, and their `total`."""
        until_s = self._mark.since_s if self._stopped else self._now()
        spent: dict[str, float] = {str(phase): value for phase, value in self._spent_until(until_s).items()}
        spent["total"] = sum(spent.values())
        return spent

    def _spent_until(self, now_s: float) -> dict[Phase, float]:
        phase, since_s, spent_s = self._mark
        return {**spent_s, phase: spent_s[phase] + (now_s - since_s)}
