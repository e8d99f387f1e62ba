"""Where buffers come from and who reads them: an index over all outputs and links of a trace."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace


class Origins:
    """Made once, when it is first needed; some ten bytes an output and a link."""

    def __init__(self, trace: "Trace") -> None:
        made: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for segment in trace.segments:
            events = segment.events
            rows, places, numbers = spread(events["first_output"], events["outputs"])
            outputs = segment.outputs[places]
            first = outputs["version"] == 0
            made.append((outputs["buffer"][first], rows[first] + segment.first_event, numbers[first]))
            rows, places, _ = spread(events["first_link"], events["links"])
            links = segment.links[places]
            read.append((links["buffer"], links["version"], rows + segment.first_event))
        self._made, self._made_by, self._made_as = _sorted_by_first(made)
        self._read, self._read_version, self._read_by = _sorted_by_first(read)

    def maker(self, buffer: int) -> tuple[int, int] | None:
        """The event that made a buffer, and as which of its outputs; None for a weight, or what came before."""
        at = int(np.searchsorted(self._made, buffer))
        if at == len(self._made) or int(self._made[at]) != buffer:
            return None
        return int(self._made_by[at]), int(self._made_as[at])

    def readers(self, buffer: int, version: int) -> list[int]:
        """The events that read a version of a buffer, in order."""
        first = int(np.searchsorted(self._read, buffer, side="left"))
        end = int(np.searchsorted(self._read, buffer, side="right"))
        fits = self._read_version[first:end] == version
        return sorted(set(self._read_by[first:end][fits].tolist()))


def spread(firsts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row of a table that events point into: the event's row, the row itself, and its number in the event."""
    counts = counts.astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, np.repeat(firsts.astype(np.int64), counts) + numbers, numbers


def _sorted_by_first(parts: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    first, second, third = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(first, kind="stable")
    return first[order], second[order], third[order]
