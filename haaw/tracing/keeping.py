"""Keeps values by a policy: decides, stores them in a segment's arena or as members of their own, and counts bytes."""

from typing import Any

import numpy as np

from haaw.ops.recorder import Scope
from haaw.tracing.budget import Budget
from haaw.tracing.policy import Keep
from haaw.tracing.schema import SMALL_BYTES, value_member
from haaw.tracing.segment import Segment
from haaw.tracing.sink import Sink


class Keeping:
    """What one recording keeps. With a byte budget it falls from full to replayable to events, and says so."""

    def __init__(self, keep: Keep) -> None:
        self.kept_bytes = 0
        self._policy = keep
        self._budget = Budget(keep.budget_bytes, keep.level)
        self._falls: list[dict[str, Any]] = []
        self._take(keep)

    def _take(self, policy: Keep) -> None:
        self._policy = policy
        self.keeps_roots = policy.keeps_roots
        self.keeps_results = policy.level == "full" or policy.has_rules

    @property
    def is_spent(self) -> bool:
        """Whether the budget does not even allow events any more."""
        return self._budget.level is None

    def keeps(self, op: str, scope: Scope) -> bool:
        """Whether the results of an operation are kept."""
        return self.keeps_results and self._policy.decide(
            op, scope.stage, scope.step, scope.layer, scope.head, scope.part
        )

    def keep(
        self, segment: Segment, sink: Sink, event: int, slot: int, item: int, layout: int, host: np.ndarray
    ) -> None:
        """Stores one array of the host, in C order."""
        nbytes = int(host.nbytes)
        if nbytes <= SMALL_BYTES:
            offset = len(segment.arena)
            segment.arena.extend(host.tobytes())  # first, for an interrupt may come between the two
            segment.kept.append(event, slot, item, layout, 0, offset, nbytes)
        else:
            name = value_member(segment.number, event, slot, item, "value")
            sink.write_large(name, np.ascontiguousarray(host))
            segment.kept.append(event, slot, item, layout, 1, 0, nbytes)
        self.kept_bytes += nbytes
        self.spend(nbytes)

    def spend(self, nbytes: int) -> None:
        """Counts bytes of the file; what is kept falls a level where the budget says so."""
        if self._policy.budget_bytes is None:
            return
        fall = self._budget.spend(nbytes)
        if fall is not None:
            self._falls.append(fall)
            self._take(self._policy.lowered(self._budget.level or "events"))

    def falls(self) -> list[dict[str, Any]]:
        """The facts of the falls that were not told yet."""
        falls, self._falls = self._falls, []
        return falls
