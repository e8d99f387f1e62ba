"""The layouts of many arrays of a step at once: which are what they were when they were learned, and their numbers."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from haaw.tracing.array_headers import DIMENSIONS, DTYPE, Extents, headers
from haaw.tracing.object_words import identities
from haaw.tracing.segment import Layout, Segment


class NewLayout(NamedTuple):
    """Arrays whose layout is not the learned one: places, the seed of their hashes, whether in C order."""

    places: np.ndarray
    seed: int
    is_contiguous: bool


class StepLayouts:
    """Remembers the layout (dtype, shape, strides) of each of some arrays of a step."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        keys: list[Layout] = [(array.dtype, array.shape, array.strides) for array in arrays]
        contiguous = {key: bool(array.flags.c_contiguous) for key, array in zip(keys, arrays, strict=True)}
        self._distinct = list(contiguous.items())
        place = {key: number for number, key in enumerate(contiguous)}
        self._which = np.array([place[key] for key in keys], dtype=np.intp)
        self.itemsizes = np.array([array.dtype.itemsize for array in arrays], dtype=np.int64)
        self._dtypes = [array.dtype for array in arrays]  # held, so that their identities stay theirs
        found = headers(identities(arrays))
        self._fixed = found[:, [DIMENSIONS, DTYPE]]
        self._extents = Extents(found[:, DIMENSIONS])
        self._before = self._extents.read(found)
        self._elements: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """By the layout that they had: the arrays that changed last, and the elements of their extents."""

    def numbers(
        self, found: np.ndarray, array_at: Callable[[int], np.ndarray], segment: Segment
    ) -> tuple[np.ndarray, list[NewLayout]] | None:
        """The number of each array's layout in a segment, and which layouts are not the learned ones.

        `found` are the arrays' headers; `array_at` gives the array at a place. Lengths change from step to step; the
        segment learns the layouts that it does not have yet. None where a dtype or a number of axes is another one.
        """
        if (found[:, [DIMENSIONS, DTYPE]] != self._fixed).any():
            return None
        extents = self._extents.read(found)
        changed = self._extents.changed(extents, self._before)
        which = self._which
        if changed.size:
            which = which.copy()
            which[changed] = len(self._distinct)
        known = np.zeros(len(self._distinct) + 1, dtype=np.int64)
        for place in np.flatnonzero(np.bincount(which, minlength=len(known))[:-1]).tolist():
            key, is_contiguous = self._distinct[place]
            known[place] = (segment.layout_of.get(key) or segment.new_layout(key, is_contiguous))[0]
        numbers: np.ndarray = known[which]
        new = []
        for group in self._alike(changed, extents):
            number, seed, is_contiguous = segment.layout(array_at(int(group[0])))
            numbers[group] = number
            new.append(NewLayout(group, seed, is_contiguous))
        return numbers, new

    def _alike(self, changed: np.ndarray, extents: np.ndarray) -> Iterator[np.ndarray]:
        """The changed arrays in groups with one layout; those that had one, as a rule, have one again."""
        before = self._which[changed]
        for layout in np.flatnonzero(np.bincount(before)).tolist():
            group = changed[before == layout]
            known, elements = self._elements.get(layout, (changed, changed))
            if len(known) != len(group) or (known != group).any():
                elements = self._extents.elements(group)
                self._elements[layout] = group, elements
            rows = extents[elements]
            if (rows == rows[0]).all():
                yield group
            else:
                yield from group[:, None]
