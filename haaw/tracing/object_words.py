"""Objects of CPython looked at in memory, many at once: their types, and what lists and tuples hold.

Asking each of a thousand objects for its type or its identity takes a call for each; gathered by one index operation it
takes a tenth. The layouts are CPython's (`object.h`, `listobject.h`, `tupleobject.h`). `AVAILABLE` says whether a few
samples show what they should; elsewhere the recorder goes without.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

WORD_BYTES = 8
_WORD_SHIFT = 3
TYPE, SIZE, TUPLE_ITEMS = WORD_BYTES, 2 * WORD_BYTES, tuple.__basicsize__
"""Where an object has the identity of its type, and a tuple its length and its first element."""

_LIST_ITEMS = 3 * WORD_BYTES  # the address of its elements' identities
_ORIGIN = 4096  # nothing lies in the first page
_ADDRESSES = 1 << 48
_memory: np.ndarray = np.ctypeslib.as_array(
    (ctypes.c_int64 * ((_ADDRESSES - _ORIGIN) // WORD_BYTES)).from_address(_ORIGIN)
)


def words_at(addresses: np.ndarray) -> np.ndarray:
    """The words at addresses that are known to be good, int64."""
    words: np.ndarray = _memory[(addresses - _ORIGIN) >> _WORD_SHIFT]
    return words


def identities(objects: list[Any]) -> np.ndarray:
    """The identities of what a list holds, int64."""
    if not objects:
        return np.zeros(0, dtype=np.int64)
    start = (int(_memory[(id(objects) + _LIST_ITEMS - _ORIGIN) // WORD_BYTES]) - _ORIGIN) // WORD_BYTES
    return _memory[start : start + len(objects)].copy()


def types_of(identities: np.ndarray) -> np.ndarray:
    """The identities of the types of objects, int64."""
    return words_at(identities + TYPE)


def sizes_of(tuples: np.ndarray) -> np.ndarray:
    """The lengths of tuples, told by their identities, int64."""
    return words_at(tuples + SIZE)


def _shows_samples() -> bool:
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != WORD_BYTES:
        return False
    samples: Sequence[Any] = (7, "text", 2.5, (), ("a", 1.5, None), [1], {}, np.zeros(3), None)
    held = [*samples]
    found = identities(held)
    tuples = found[3:5]
    return bool(
        found.tolist() == list(map(id, samples))
        and types_of(found).tolist() == [id(type(each)) for each in samples]
        and sizes_of(tuples).tolist() == [0, 3]
        and words_at(tuples[1] + TUPLE_ITEMS + WORD_BYTES * np.arange(3)).tolist()
        == list(map(id, samples[4]))
    )


AVAILABLE = _shows_samples()
