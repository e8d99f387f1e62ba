"""What a simulation found: the memory step by step, and the totals that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Method = Literal["contiguous", "paged"]


@dataclass
class Timeline:
    """Of each step: positions held, allocated, in the largest hole; requests running and waiting.

    `scattered` is the free memory of a step in which the first in the queue would have fitted but for the holes,
    else 0; `later` is what is allocated and will still be filled. Steps without any request are left out.
    """

    step: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    largest_hole: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    scattered: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What became of the requests under one method; positions are those of one sequence in all layers."""

    method: Method
    capacity: int
    timeline: Timeline
    never_fit: tuple[int, ...]
    finished: int
    waits: tuple[int, ...]
    preemptions: int
    recomputed_tokens: int

    @property
    def steps(self) -> int:
        """Steps in which there was a request, until the last one was done."""
        return len(self.timeline.held)

    @property
    def most_at_once(self) -> int:
        """The most requests that had memory in the same step."""
        return max(self.timeline.running, default=0)

    @property
    def utilisation(self) -> float:
        """Positions held, of the whole memory, on average over the steps."""
        return self._share(self.timeline.held)

    @property
    def internal(self) -> float:
        """Allocated but not held, of the whole memory, on average: internal fragmentation."""
        return self._share(self.timeline.allocated) - self.utilisation

    @property
    def later(self) -> float:
        """The part of `internal` that its request still fills before it ends."""
        return self._share(self.timeline.later)

    @property
    def external(self) -> float:
        """Free but too scattered for whoever waits, of the whole memory, on average: external fragmentation."""
        return self._share(self.timeline.scattered)

    @property
    def scattered_steps(self) -> int:
        """Steps in which the first in the queue would have fitted but for the holes."""
        return sum(1 for free in self.timeline.scattered if free)

    @property
    def waste(self) -> float:
        """Allocated but not held, of what was allocated."""
        allocated = sum(self.timeline.allocated)
        return 1 - sum(self.timeline.held) / allocated if allocated else 0.0

    @property
    def mean_wait(self) -> float:
        """Steps from arrival to the first token."""
        return sum(self.waits) / len(self.waits) if self.waits else 0.0

    def to_dict(self, *, timeline: bool = False) -> dict[str, Any]:
        """Totals as plain values; shares are of the whole memory but for `waste`, which is of what was allocated."""
        shares = ("utilisation", "internal", "later", "external", "waste", "mean_wait")
        told: dict[str, Any] = {
            "method": self.method,
            "capacity_positions": self.capacity,
            "requests_finished": self.finished,
            "requests_never_fit": len(self.never_fit),
            "most_at_once": self.most_at_once,
            "steps": self.steps,
            "scattered_steps": self.scattered_steps,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            **{name: round(getattr(self, name), 9) for name in shares},
        }
        return told | ({"timeline": vars(self.timeline)} if timeline else {})

    def _share(self, positions: Sequence[int]) -> float:
        return sum(positions) / (self.capacity * self.steps) if self.steps else 0.0
