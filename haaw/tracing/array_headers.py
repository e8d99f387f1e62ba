"""The headers of many NumPy arrays at once: where data, shape and strides lie, and which objects base and dtype are.

Asking each array for `.shape`, `.strides`, `.base` and the address of its data takes about a microsecond; a decode step
has several hundred. NumPy publishes how an array object is laid out in memory (`PyArrayObject_fields` in its C
interface), and has kept it since version 1.0, so the fields are gathered from there by one index operation. `AVAILABLE`
says whether a few sample arrays show what they should; elsewhere the recorder goes without.
"""

import numpy as np

from haaw.tracing import object_words
from haaw.tracing.object_words import WORD_BYTES, identities, words_at

DATA, DIMENSIONS, SHAPE, STRIDES, BASE, DTYPE = range(6)
"""Columns of `headers`: the address of the data, how many axes, addresses of shape and strides, the identities of base
(0 for None) and dtype."""

_FIRST_WORD = 2  # behind the reference count and the type
_FIELDS = WORD_BYTES * (_FIRST_WORD + np.arange(6))


def headers(arrays: np.ndarray) -> np.ndarray:
    """The headers of arrays that are exactly `numpy.ndarray`, told by their identities, int64 [array, column]."""
    found = words_at(arrays[:, None] + _FIELDS)
    found[:, DIMENSIONS] &= 0xFFFFFFFF  # an int of four bytes
    return found


class Extents:
    """Shape and strides of arrays with given numbers of axes, in one vector."""

    def __init__(self, dimensions: np.ndarray) -> None:
        self._array = np.repeat(np.arange(len(dimensions)), dimensions)
        """Which array each element of the vector belongs to."""
        self._dimensions = dimensions
        self._starts = np.cumsum(dimensions) - dimensions
        self._at = WORD_BYTES * (np.arange(len(self._array)) - self._starts[self._array])

    def read(self, found: np.ndarray) -> np.ndarray:
        """Shape and strides out of `headers`, int64 [2, element]."""
        return words_at(found[self._array, SHAPE : STRIDES + 1].T + self._at)

    def changed(self, now: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The arrays whose shape or strides are not what they were, in order."""
        elements = self._array[(now != before).any(0)]
        return np.flatnonzero(np.bincount(elements, minlength=len(self._dimensions)))

    def are_equal(self, arrays: np.ndarray, extents: np.ndarray) -> bool:
        """Whether arrays with the same number of axes have one shape and the same strides."""
        axes = np.arange(self._dimensions[arrays[0]])
        rows = extents[:, self._starts[arrays][:, None] + axes]
        return bool((rows == rows[:, :1]).all())


def _shows_samples() -> bool:
    if not object_words.AVAILABLE:
        return False
    whole = np.arange(24.0).reshape(2, 3, 4).copy()
    samples = [whole, whole[1:, ::2, 1:], np.zeros((), dtype=np.int8), np.zeros((0, 3), dtype=np.float32)]
    found = headers(identities(samples))
    axes = np.array([each.ndim for each in samples])
    if not np.array_equal(found[:, DIMENSIONS], axes):
        return False
    if found[:, DATA].tolist() != [each.__array_interface__["data"][0] for each in samples]:
        return False
    if found[:, BASE].tolist() != [0 if each.base is None else id(each.base) for each in samples]:
        return False
    if found[:, DTYPE].tolist() != [id(each.dtype) for each in samples]:
        return False
    shape, strides = Extents(axes).read(found).tolist()
    expected = [[n for each in samples for n in getattr(each, name)] for name in ("shape", "strides")]
    return bool([shape, strides] == expected)


AVAILABLE = _shows_samples()
