"""Events of a segment that are alike: the same call with the same shapes, in another layer or at another time.

What depends on nothing else, such as names, shapes and costs, is worked out for one of them.
"""

from typing import NamedTuple

import numpy as np

from haaw.tracing.origins import spread
from haaw.tracing.segments import SegmentReader


class Alike(NamedTuple):
    """A row of each group, and for each row the number of its group."""

    first: list[int]
    group: np.ndarray


def alike(segment: SegmentReader) -> Alike:
    """Groups of rows with the same kind, name and call site, and the same layouts and places of their arrays."""
    events, links, outputs = segment.events, segment.links, segment.outputs
    call = _packed(events["kind"], events["name"], events["site"])
    link = _packed(links["slot"].view("u1"), links["item"], links["layout"])
    output = outputs["layout"].astype(np.int64)
    first: list[int] = []
    group = np.zeros(len(events), dtype=np.intp)
    made = events["outputs"].astype(np.intp)
    arrays = events["links"].astype(np.intp) << 8 | made
    for count in np.unique(arrays).tolist():
        rows = np.flatnonzero(arrays == count)
        own = events[rows]
        parts = [
            table[spread(own[at], own[counts])[1]].reshape(len(rows), -1)
            for table, at, counts in ((link, "first_link", "links"), (output, "first_output", "outputs"))
        ]
        keys = np.concatenate([call[rows, None], *parts], axis=1)
        _, found, which = np.unique(
            keys.view(np.dtype((np.void, keys.strides[0]))).ravel(), return_index=True, return_inverse=True
        )
        group[rows] = which + len(first)
        first += rows[found].tolist()
    return Alike(first, group)


def _packed(small: np.ndarray, middle: np.ndarray, last: np.ndarray) -> np.ndarray:
    packed: np.ndarray = small.astype(np.int64) << 32 | middle.astype(np.int64) << 16 | last
    return packed
