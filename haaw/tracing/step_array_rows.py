"""The rows of a step that stand for arrays (links and outputs): what stays, and what follows the step at hand."""

from typing import Any, NamedTuple

import numpy as np


class Found(NamedTuple):
    """What rows follow. Behind the last array stands 0 for rows that belong to none."""

    first_buffer: int
    """The number of the buffer of the first result."""
    cache_buffers: np.ndarray
    """The numbers of the caches' buffers."""
    layouts: np.ndarray
    """Of the arrays, their numbers in the segment."""
    offsets: np.ndarray
    """Of the arrays, where they begin in their owners, in elements."""
    versions: np.ndarray
    """Of the caches' buffers, before the step."""


class ArrayRows:
    """Rows of `LINK` or `OUTPUT`, of a step with so many arrays.

    The arrays are the results, and behind them the windows that operations read.
    """

    def __init__(self, rows: np.ndarray, arrays: int) -> None:
        self._rows = rows
        self._filled_in: Any = None  # with which layouts and offsets they are
        count = len(rows)
        self._buffer, self._is_new = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._array, self._layout = np.full(count, arrays), np.zeros(count, dtype=np.int64)
        self._cached, self._cache, self._writes = np.zeros((3, 0), dtype=np.intp)
        self._cache_buffers: np.ndarray | None = None  # those that follow are of

    def weights(self, rows: np.ndarray, buffers: Any, layouts: Any) -> None:
        """These rows stand for weights, whose layouts have the same numbers in every segment."""
        self._buffer[rows], self._layout[rows] = buffers, layouts

    def results(self, rows: np.ndarray, arrays: Any, owners: Any) -> None:
        """These rows stand for arrays in the memory of results."""
        self._array[rows], self._buffer[rows], self._is_new[rows] = arrays, owners, 1

    def cached(self, rows: np.ndarray, arrays: Any, caches: Any, writes: Any) -> None:
        """These rows stand for arrays in buffers of caches, behind so many writes of the step."""
        self._array[rows] = arrays
        self._cached, self._cache, self._writes = (np.array(each, np.intp) for each in (rows, caches, writes))

    def rows(self, found: Found) -> np.ndarray:
        """The rows of a step, until they are asked for again."""
        rows, in_place = self._rows, (found.layouts.tobytes(), found.offsets.tobytes())
        if in_place != self._filled_in:
            self._filled_in = None  # an interrupt may come
            rows["layout"] = found.layouts[self._array] + self._layout
            rows["offset"] = found.offsets[self._array]
            self._filled_in = in_place
        if found.cache_buffers is not self._cache_buffers:
            self._buffer[self._cached] = found.cache_buffers[self._cache]
            self._cache_buffers = found.cache_buffers
        rows["buffer"] = self._buffer + found.first_buffer * self._is_new
        rows["version"][self._cached] = found.versions[self._cache] + self._writes
        return rows
