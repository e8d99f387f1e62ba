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
        within = np.arange(len(self._array)) - self._starts[self._array]
        # One index for both, flat, since that is the quicker one.
        self._both = np.concatenate((self._array, self._array))
        self._at = np.concatenate((within, within)) * WORD_BYTES
        self._columns = (6 * self._array + np.array([[SHAPE], [STRIDES]])).reshape(-1)

    def read(self, found: np.ndarray) -> np.ndarray:
        """Shapes, and behind them strides, out of `headers`, int64 [2 x element]."""
        return words_at(found.reshape(-1)[self._columns] + self._at)

    def changed(self, now: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The arrays whose shape or strides are not what they were, in order."""
        elements = self._both[np.flatnonzero(now != before)]
        return np.flatnonzero(np.bincount(elements, minlength=len(self._dimensions)))

    def elements(self, arrays: np.ndarray) -> np.ndarray:
        """Where shape and strides of arrays with as many axes each stand in what `read` gives [array, element]."""
        axes = self._starts[arrays][:, None] + np.arange(self._dimensions[arrays[0]])
        return np.concatenate((axes, axes + len(self._array)), axis=1)


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
    expected = [n for name in ("shape", "strides") for each in samples for n in getattr(each, name)]
    return bool(Extents(axes).read(found).tolist() == expected)


AVAILABLE = _shows_samples()
