"""A byte budget: what has been spent, and when a recording must fall to a lower level so that the rest finds room."""

import math
import re
from typing import Any, Literal

from haaw.errors import BadInputError

Level = Literal["events", "replayable", "full"]
LEVELS: tuple[Level, ...] = ("events", "replayable", "full")
"""From the least to the most."""

SHARE_FOR_THE_REST = {"full": 0.5, "replayable": 0.25, "events": 0.0}
"""The part of a budget that is left over when a level ends, where nobody knows how much is still to come."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)\s*")
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": (1024 if suffix == "IB" else 1000) ** power
    for power, letter in enumerate("KMGT", 1)
    for suffix in ("", "B", "IB")
}


def size_in_bytes(size: object) -> int:
    """Bytes of a size such as "50MB", "1.5 GiB" or 4096. kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024.

    Errors: `BadInputError` for anything else, and for less than one byte.
    """
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None and found[2].upper() in _UNITS:
        number = float(found[1]) * _UNITS[found[2].upper()]
    elif isinstance(size, int | float) and not isinstance(size, bool):
        number = size
    else:
        number = math.nan
    if not 1 <= number < 2**63:  # also for NaN
        raise BadInputError(
            f'the budget is {size!r:.60}; it must be a size of at least one byte, such as "50MB" or "1.5GB"'
        )
    return int(number)


class Budget:
    """Counts bytes and gives the level that they allow: full, replayable, events, and at last None (nothing)."""

    def __init__(self, limit_bytes: int | None, level: Level) -> None:
        self.limit_bytes = limit_bytes
        self.spent_bytes = 0
        self.level: Level | None = level
        self._rest_bytes: dict[str, float] | None = None

    def expect(self, *, replayable_bytes: int, events_bytes: int) -> None:
        """Says what the rest of the run would take at the lower levels, so that no more is left over than needed."""
        self._rest_bytes = {"full": replayable_bytes, "replayable": events_bytes, "events": 0}

    def spend(self, nbytes: int) -> dict[str, Any] | None:
        """Counts bytes; the facts of a fall where the level must change now, else None."""
        self.spent_bytes += nbytes
        before = self.level
        while self.level is not None and self.spent_bytes > self._end_bytes(self.level):
            at = LEVELS.index(self.level)
            self.level = LEVELS[at - 1] if at else None
        if self.level == before:
            return None
        return {
            "before": before,
            "now": self.level or "nothing",
            "spent_bytes": self.spent_bytes,
            "budget_bytes": self.limit_bytes,
        }

    def _end_bytes(self, level: Level) -> float:
        if self.limit_bytes is None:
            return math.inf
        most_left_over = SHARE_FOR_THE_REST[level] * self.limit_bytes
        if self._rest_bytes is None:
            return self.limit_bytes - most_left_over
        return self.limit_bytes - min(self._rest_bytes[level], self.limit_bytes)
