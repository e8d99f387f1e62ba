"""Where a request's time goes: every instant belongs to exactly one phase, so that phases add up to the total."""

import time
from collections.abc import Callable
from typing import Literal

Phase = Literal["prepare", "queue", "prefill", "decode", "deliver"]
PHASES: tuple[Phase, ...] = ("prepare", "queue", "prefill", "decode", "deliver")


class PhaseClock:
    """One monotonic clock, handed from phase to phase. Starts in `prepare`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.started_s = now()
        self.phase: Phase = "prepare"
        self._since_s = self.started_s
        self._spent_s: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._stopped = False

    def enter(self, phase: Phase) -> float:
        """Ends the current phase and begins another, at the instant (seconds) that is returned."""
        now = self._now()
        if not self._stopped:
            self._spent_s[self.phase] += now - self._since_s
            self.phase, self._since_s = phase, now
        return now

    def stop(self) -> None:
        """Ends the last phase; later calls change nothing."""
        self.enter(self.phase)
        self._stopped = True

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return (self._since_s if self._stopped else self._now()) - self.started_s

    def spent_s(self) -> dict[str, float]:
        """Seconds of each phase so far, and their `total`."""
        spent: dict[str, float] = dict(self._spent_s)
        if not self._stopped:
            spent[self.phase] += self._now() - self._since_s
        spent["total"] = sum(spent.values())
        return spent
