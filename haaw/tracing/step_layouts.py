"""The layouts of many arrays of a step at once: which are what they were a step before, and their numbers."""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from haaw.tracing.array_headers import DIMENSIONS, DTYPE, Extents, headers
from haaw.tracing.segment import Layout, Segment


def picker(indexes: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Gives a function that takes the elements at `indexes` of a sequence, always as a tuple."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple(values[index] for index in indexes)


class StepLayouts:
    """Remembers the layout (dtype, shape, strides) of each of some arrays of a step."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        keys: list[Layout] = [(array.dtype, array.shape, array.strides) for array in arrays]
        contiguous = {key: bool(array.flags.c_contiguous) for key, array in zip(keys, arrays, strict=True)}
        self._distinct = list(contiguous.items())
        place = {key: number for number, key in enumerate(contiguous)}
        self._which = np.array([place[key] for key in keys], dtype=np.intp)
        self.itemsizes = np.array([array.dtype.itemsize for array in arrays], dtype=np.int64)
        self._dtypes = [array.dtype for array in arrays]  # held, so that their identities stay theirs
        found = headers(arrays)
        self._fixed = found[:, [DIMENSIONS, DTYPE]]
        self._extents = Extents(found[:, DIMENSIONS])
        self._before = self._extents.read(found)

    def numbers(
        self, arrays: Sequence[np.ndarray], found: np.ndarray, segment: Segment
    ) -> tuple[np.ndarray, dict[int, tuple[int, int, bool]]] | None:
        """The number of each array's layout in a segment, and what the segment knows of those that are new here.

        `found` are the arrays' headers. Lengths change from step to step; the segment learns the layouts that it does
        not have yet. None where a dtype or a number of axes is another one.
        """
        if not np.array_equal(found[:, [DIMENSIONS, DTYPE]], self._fixed):
            return None
        extents = self._extents.read(found)
        changed = self._extents.changed(extents, self._before)
        which = self._which
        if changed:
            which = which.copy()
            which[changed] = len(self._distinct)
        known = np.zeros(len(self._distinct) + 1, dtype=np.int64)
        for place in np.flatnonzero(np.bincount(which, minlength=len(known))[:-1]).tolist():
            key, contiguous = self._distinct[place]
            known[place] = (segment.layout_of.get(key) or segment.new_layout(key, contiguous))[0]
        entries: dict[int, tuple[int, int, bool]] = {}
        for group in self._alike(changed, extents):
            entries |= dict.fromkeys(group, segment.layout(arrays[group[0]]))
        numbers: np.ndarray = known[which]
        if changed:
            numbers[list(entries)] = [entry[0] for entry in entries.values()]
        return numbers, entries

    def _alike(self, changed: list[int], extents: np.ndarray) -> Iterator[list[int]]:
        """The changed arrays in groups with one layout; those that had one, as a rule, have one again."""
        groups: dict[int, list[int]] = {}
        for place, before in zip(changed, self._which[changed].tolist(), strict=True):
            groups.setdefault(before, []).append(place)
        for group in groups.values():
            if self._extents.are_equal(group, extents):
                yield group
            else:
                yield from ([place] for place in group)
