"""The headers of NumPy arrays in memory: where data, shape and strides lie, and which objects base and dtype are.

Asking each array for `.shape`, `.strides`, `.base` and the address of its data takes about a microsecond; a decode step
has several hundred. NumPy publishes how an array object is laid out in memory (`PyArrayObject_fields` in its C
interface), and has kept it since version 1.0, so the fields are read there, of many arrays at once. `AVAILABLE` says
whether a few sample arrays show what they should; elsewhere the recorder goes without.
"""

import numpy as np

from haaw.tracing import object_words
from haaw.tracing.object_words import LOW_BITS, WORD_BYTES, identities, words_at

DATA, DIMENSIONS, SHAPE, STRIDES, BASE, DTYPE = (WORD_BYTES * word for word in range(2, 8))
"""Bytes behind the identity of an array that is exactly `numpy.ndarray`: the address of its data, how many axes (in the
lower four bytes), the addresses of shape and strides, the identities of base (0 for None) and dtype."""


def _shows_samples() -> bool:
    if not object_words.AVAILABLE:
        return False
    whole = np.arange(24.0).reshape(2, 3, 4).copy()
    samples = [whole, whole[1:, ::2, 1:], np.zeros((), dtype=np.int8), np.zeros((0, 3), dtype=np.float32)]
    arrays = identities(samples)
    if (words_at(arrays + DIMENSIONS) & LOW_BITS).tolist() != [each.ndim for each in samples]:
        return False
    if words_at(arrays + DATA).tolist() != [each.__array_interface__["data"][0] for each in samples]:
        return False
    if words_at(arrays + BASE).tolist() != [0 if each.base is None else id(each.base) for each in samples]:
        return False
    if words_at(arrays + DTYPE).tolist() != [id(each.dtype) for each in samples]:
        return False
    for column, name in ((SHAPE, "shape"), (STRIDES, "strides")):
        for each, start in zip(samples, words_at(arrays + column).tolist(), strict=True):
            if tuple(words_at(start + WORD_BYTES * np.arange(each.ndim)).tolist()) != getattr(each, name):
                return False
    return True


AVAILABLE = _shows_samples()
