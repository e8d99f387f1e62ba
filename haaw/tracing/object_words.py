"""Objects of CPython looked at in memory, many at once: their types, and what lists and tuples hold.

Asking each of a thousand objects for its type or its identity takes a call for each; gathered by one index operation it
takes a tenth. The layouts are CPython's (`object.h`, and those of list, tuple, float and int). `AVAILABLE` says whether
a few samples show what they should; elsewhere the recorder goes without.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

WORD_BYTES = 8
_WORD_SHIFT = 3
LOW_BITS = 0xFFFFFFFF
"""The four bytes of a word that an `int` or a digit takes up."""

TYPE, SIZE, TUPLE_ITEMS = WORD_BYTES, 2 * WORD_BYTES, tuple.__basicsize__
"""Bytes behind the identity of an object: the identity of its type; a tuple's length, and its first element."""
FLOAT_BITS = 2 * WORD_BYTES
"""A float's value."""
INT_SIZE, INT_DIGITS = 2 * WORD_BYTES, 3 * WORD_BYTES
"""An integer's sign and number of digits, however that is written; and the first two digits."""

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


def word_offsets(offsets: np.ndarray) -> np.ndarray:
    """Bytes behind identities, as `read_behind` takes them."""
    return (offsets - _ORIGIN) >> _WORD_SHIFT


def read_behind(addresses: np.ndarray, offsets: np.ndarray, words: np.ndarray) -> None:
    """Reads into `words` (int64) those so many `word_offsets` behind `addresses`, which are written over."""
    addresses >>= _WORD_SHIFT
    addresses += offsets
    _memory.take(addresses, out=words, mode="clip")  # which is not looked at first, as it is for "raise"


def identities(objects: list[Any] | tuple[Any, ...]) -> np.ndarray:
    """The identities of what a list or a tuple holds, int64."""
    return identities_now(objects).copy()


def identities_now(objects: list[Any] | tuple[Any, ...]) -> np.ndarray:
    """As `identities`, but where they lie: to be copied before anything changes."""
    if not objects:
        return np.zeros(0, dtype=np.int64)
    if type(objects) is tuple:
        address = id(objects) + TUPLE_ITEMS
    else:
        address = int(_memory[(id(objects) + _LIST_ITEMS - _ORIGIN) // WORD_BYTES])
    start = (address - _ORIGIN) // WORD_BYTES
    return _memory[start : start + len(objects)]


def references_to(objects: list[Any]) -> np.ndarray:
    """How many references there are to each object of a list, that of the list included, int64."""
    return words_at(identities_now(objects)) & LOW_BITS


_TOO_HIGH = (1 << 32) - (1 << sys.int_info.bits_per_digit)
"""By how much the second digit of an integer counts less than where it lies says."""


def integers(digits: np.ndarray) -> np.ndarray:
    """The values of positive integers of two digits, told by the word that holds both, int64."""
    values: np.ndarray = digits >> 32
    values *= -_TOO_HIGH
    values += digits
    return values


def _shows_samples() -> bool:
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != WORD_BYTES:
        return False
    samples: Sequence[Any] = (7, "text", 2.5, (), ("a", 1.5, None), [1], {}, np.zeros(3), None)
    held = [*samples]
    found = identities(held)
    tuples = found[3:5]
    if found.tolist() != list(map(id, samples)) or found.tolist() != identities(tuple(samples)).tolist():
        return False
    if words_at(found + TYPE).tolist() != [id(type(each)) for each in samples]:
        return False
    items = words_at(tuples[1] + TUPLE_ITEMS + WORD_BYTES * np.arange(3))
    if words_at(tuples + SIZE).tolist() != [0, 3] or items.tolist() != list(map(id, samples[4])):
        return False
    if words_at(found[2:3] + FLOAT_BITS).view(np.float64).tolist() != [2.5]:
        return False
    numbers = [(3 << 40) + 5, (1 << 59) + 7, 1 << 60, 1 << 20]
    sizes = words_at(identities(numbers) + INT_SIZE).tolist()
    if len(set(sizes)) != 3 or sizes[0] != sizes[1]:
        return False
    if integers(words_at(identities(numbers[:2]) + INT_DIGITS)).tolist() != numbers[:2]:
        return False
    lonely, loved = [object()], [object()] * 5
    return bool(references_to(lonely).tolist() == [1] and references_to(loved).tolist() == [5] * 5)


AVAILABLE = _shows_samples()
