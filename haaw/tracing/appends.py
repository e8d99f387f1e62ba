"""Rows that were appended to a cache step by step, brought back together: one write for a thousand.

A cache that is made again has as many recorded writes as steps. Where they lie behind one another, their kept bytes are
joined and written at once, which gives the same buffer.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from haaw.tracing.schema import NOT_IN_A_LIST, OPERATION
from haaw.tracing.segments import Layout, SegmentReader, dtype_of

APPEND = "kv_append"
BUFFER, ROWS = 0, 1
"""The slots of its parameters."""


class Append(NamedTuple):
    """One recorded write of rows: where they begin, the window on the buffer, and their bytes."""

    start: int
    offset: int
    buffer: Layout
    rows: Layout
    content: memoryview

    def goes_on(self, other: "Append") -> bool:
        """Whether `other` writes to the same window, behind these rows."""
        return (
            other.start == self.start + self.rows.shape[0]
            and other.rows.shape[1:] == self.rows.shape[1:]
            and other.offset == self.offset
            and other.buffer == self.buffer
            and other.rows.dtype == self.rows.dtype
        )


def appends_of(segment: SegmentReader, name: int) -> dict[int, Append]:
    """The appended rows of a segment that lie in its arena, by the event's row; `name` is the operation's number."""
    events, links, kept = segment.events, segment.links, segment.kept_table
    is_append = (events["kind"] == OPERATION) & (events["name"] == name) & (events["links"] == 2)
    small = kept[(kept["slot"] == ROWS) & (kept["item"] == NOT_IN_A_LIST) & (kept["member"] == 0)]
    small = small[small["event"] < len(events)]
    small = small[is_append[small["event"]]]
    its_events = events[small["event"]]
    first = links[its_events["first_link"]]
    found: dict[int, Append] = {}
    columns = (
        small["event"], its_events["args"], first["slot"], first["layout"], first["offset"],
        small["layout"], small["offset"], small["nbytes"],
    )  # fmt: skip
    for event, args, slot, buffer, offset, rows, at, nbytes in zip(
        *(each.tolist() for each in columns), strict=True
    ):
        start, layout = segment.args[args].get("start"), segment.layouts[rows]
        if (
            slot == BUFFER
            and type(start) is int
            and start >= 0
            and _fits(layout, at, nbytes, len(segment.arena))
        ):
            content = segment.arena[at : at + nbytes]
            found[event] = Append(start, offset, segment.layouts[buffer], layout, content)
    return found


def _fits(rows: Layout, at: int, nbytes: int, arena_bytes: int) -> bool:
    if len(rows.shape) != 3 or at + nbytes > arena_bytes:
        return False
    return prod(rows.shape) * dtype_of(rows.dtype).itemsize == nbytes


def joined(appends: Sequence[Append]) -> np.ndarray:
    """The rows (T, K, C) of appends that go on from one another."""
    first = appends[0].rows
    content = b"".join(each.content for each in appends)
    return np.frombuffer(content, dtype=first.dtype).reshape(-1, *first.shape[1:])


def runs_of(appends: Sequence[Append]) -> Iterator[list[Append]]:
    """Appends in their order, in runs that go on from one another."""
    run: list[Append] = []
    for each in appends:
        if run and not run[-1].goes_on(each):
            yield run
            run = []
        run.append(each)
    if run:
        yield run
