"""Which buffer an array is a window on: owners numbered in the order in which they were made.

An owner is held weakly and told by its identity *and* by its weak reference, since an address is used again as soon as
it is free. Weights are held by the model for as long as a run goes, so for them the identity is enough.
"""

import ctypes
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from haaw.arrays import Array, owner
from haaw.errors import HaawError
from haaw.tracing import object_words
from haaw.tracing.object_words import references_to

Window = tuple[int, int, int]
"""Number of the buffer, its version, and where the window begins in it (in elements of the window's dtype)."""

Fresh = tuple["weakref.ref[Array]", int]
"""A result that is not held any more: its owner, and the number of its buffer."""

Owners = list[Any]
"""Owners of results that are held, and the numbers of their buffers, in turns: one call adds both, or none.

The first two may be a list of owners and the range of their numbers."""

NO_LAYOUT = -1


class OrphanError(HaawError):
    """An operation read an array that is no window on a weight, a declared input or an earlier result."""


class UnknownOperationError(OrphanError):
    """An operation ran that the trace has no number for."""


class Versions:
    """How often each lasting buffer was written to, side by side: a step writes to some sixty."""

    def __init__(self) -> None:
        self.counts = np.zeros(64, dtype=np.int64)
        self._free: list[int] = []
        self._used = 0

    def begin(self) -> int:
        """A place in `counts` that nobody has, with 0 in it."""
        if self._free:
            place = self._free.pop()
        else:
            if self._used == len(self.counts):  # before it is counted, for an interrupt may come
                self.counts = np.concatenate((self.counts, np.zeros_like(self.counts)))
            place = self._used
            self._used += 1
        self.counts[place] = 0
        return place

    def end(self, place: int) -> None:
        """Nobody has this place any more."""
        self._free.append(place)


class Lasting:
    """A buffer that outlives its step: of a cache, or declared."""

    __slots__ = ("_versions", "number", "place", "ref")

    def __init__(self, ref: "weakref.ref[Array]", number: int, versions: Versions) -> None:
        self.ref = ref
        self.number = number
        self.place = versions.begin()
        self._versions = versions

    @property
    def version(self) -> int:
        """How often it was written to."""
        return int(self._versions.counts[self.place])

    def is_written(self) -> None:
        """Counts one more write."""
        self._versions.counts[self.place] += 1


class Buffers:
    """All buffers that a run has met and that are still alive."""

    def __init__(self) -> None:
        self.next_number = 0
        self.fresh: dict[int, Fresh] = {}  # results, which are written once; by the identity of the owner
        self.held: dict[
            int, tuple[int, int]
        ] = {}  # number and layout of results whose owner is held strongly
        self.lasting: dict[int, Lasting] = {}
        self._lasting_keys: np.ndarray | None = None  # None once they have changed
        self._gone: list[weakref.ref[Array]] = []  # lasting buffers that have died
        self.versions = Versions()
        self.renumbered = 0
        """How often a buffer that was known got another number."""
        self.weights: dict[int, tuple[int, int]] = {}  # number and layout by the identity of the array
        self.weight_arrays: list[Array] = []  # strong: their identities must stay theirs
        self._regions: dict[int, list[tuple[int, int, int]]] = {}
        self._of_model = np.zeros(0, dtype=np.int64)  # the keys of the last two

    def hold(self, array: Array, base: Array, layout: int, owners: Owners) -> int:
        """Numbers the memory of a result that is held, so that its identity is its own until `release`.

        Errors: `OrphanError` if the memory is already known.
        """
        key = id(base)
        if key in self.held or self._is_known(key):
            raise OrphanError(
                "an operation returned a window on memory that is already known, not memory of its own"
            )
        number = self.next_number
        self.next_number = number + 1
        self.held[key] = number, layout if base is array else NO_LAYOUT
        owners.extend((base, number))
        return number

    def are_new(self, owners: np.ndarray) -> bool:
        """Whether the memory of results, by the identities of its owners, is not known yet, each its own.

        As `hold` asks of each.
        """
        if self._lasting_keys is None:
            self._lasting_keys = np.array(list(self.lasting), dtype=np.int64)
        fresh_keys = np.array(list(self.fresh), dtype=np.int64)
        sorted_ = np.concatenate((owners, self._of_model, self._lasting_keys, fresh_keys))
        sorted_.sort()
        met = sorted_[1:].compress(sorted_[1:] == sorted_[:-1])
        if not len(met):
            return True
        # Some are there twice. What was known at an address may be gone since.
        count_of = Counter(owners.tolist())
        return not any(count_of[key] > 1 or (count_of[key] and self._is_known(key)) for key in met.tolist())

    def _is_known(self, key: int) -> bool:
        """Whether what has this identity now is known: an object that lives on has kept its own."""
        fresh, lasting = self.fresh.get(key), self.lasting.get(key)
        return (
            key in self.weights
            or key in self._regions
            or (fresh is not None and fresh[0]() is not None)
            or (lasting is not None and lasting.ref() is not None)
        )

    def release(self, owners: Owners) -> None:
        """Ends the holding; the results that somebody else still holds stay known, weakly."""
        self.held.clear()
        arrays, numbers = owners[::2], owners[1::2]
        owners.clear()
        if arrays and type(arrays[0]) is list:
            if len(arrays) == 1:
                arrays, numbers = arrays[0], numbers[0]
            else:
                arrays[:1], numbers[:1] = arrays[0], numbers[0]
        for place in _held_elsewhere(arrays):
            base = arrays[place]
            self.fresh[id(base)] = weakref.ref(base), numbers[place]

    def add_lasting(self, array: Array) -> Lasting:
        """Numbers the memory of an array that later steps will read."""
        base = owner(array)
        before = self.lasting.get(id(base))
        if before is not None and before.ref() is base:
            self.renumbered += 1  # first, for an interrupt may come
        ref = weakref.ref(base, self._gone.append)
        self._lasting_keys = None  # before they change, for an interrupt may come
        lasting = self.lasting[id(base)] = Lasting(ref, self.next_number, self.versions)
        self.next_number += 1
        if before is not None:
            self.versions.end(before.place)
        return lasting

    def add_weights(
        self, weights: Iterable[Array], layout_of: Callable[[Array], int], first_number: int
    ) -> None:
        """Numbers the arrays of a model; each is a buffer of its own, though several share an allocation.

        The same model, loaded a second time, gets the same numbers.
        """
        numbered = list(enumerate(weights, first_number))
        self.next_number = max(self.next_number, first_number + len(numbered))
        for number, array in numbered:
            start = address(array)
            region = self._regions.setdefault(id(owner(array)), [])
            region.append((start, start + int(array.nbytes), number))
            self.weight_arrays.append(array)
        for region in self._regions.values():
            region.sort()
        known = [*self.weights, *(id(array) for _, array in numbered), *self._regions]
        self._of_model = np.array(list(set(known)), dtype=np.int64)
        # All at once and last: an interrupt before it leaves them unknown, and they are numbered again.
        self.weights.update({id(array): (number, layout_of(array)) for number, array in numbered})

    def lasting_of(self, array: Array) -> Lasting | None:
        """The lasting buffer that `array` is a window on, if it is one."""
        base = array if array.base is None else owner(array)
        lasting = self.lasting.get(id(base))
        return lasting if lasting is not None and lasting.ref() is base else None

    def locate(self, array: Array) -> Window | None:
        """What `array` is a window on; None if its memory was never met."""
        weight = self.weights.get(id(array))  # of several in one place, this one
        if weight is not None:
            return weight[0], 0, 0
        base = array.base
        if base is None:
            base = array
        elif type(base) is not np.ndarray or base.base is not None:
            base = owner(array)
        key = id(base)
        held = self.held.get(key)
        if held is not None:
            return held[0], 0, 0 if base is array else offset(array, base)
        known = self.fresh.get(key)
        if known is not None and known[0]() is base:
            return known[1], 0, 0 if base is array else offset(array, base)
        lasting = self.lasting.get(key)
        if lasting is not None and lasting.ref() is base:
            return lasting.number, lasting.version, 0 if base is array else offset(array, base)
        return self._in_weights(base, array)

    def _in_weights(self, base: Array, array: Array) -> Window | None:
        region = self._regions.get(id(base))
        if not region:
            return None
        at = address(array)
        start, stop, number = region[max(0, bisect_right(region, (at, 1 << 64)) - 1)]
        return (number, 0, (at - start) // int(array.dtype.itemsize)) if start <= at < stop else None

    def end_step(self) -> None:
        """Forgets the results of a step that are gone; most are."""
        self.fresh = {key: known for key, known in self.fresh.items() if known[0]() is not None}
        if gone := len(self._gone):
            self._lasting_keys = None
            for key in [key for key, lasting in self.lasting.items() if lasting.ref() is None]:
                self.versions.end(self.lasting.pop(key).place)
            del self._gone[:gone]

    def clear(self) -> None:
        """Forgets everything."""
        self._lasting_keys = None
        for table in (self.fresh, self.lasting, self.weights, self._regions):
            table.clear()
        self._of_model = self._of_model[:0]
        self.weight_arrays.clear()


def _held_elsewhere(objects: list[Any]) -> list[int]:
    """Which elements of a list are referred to from elsewhere, too; too many where nothing better is known."""
    if not object_words.AVAILABLE:
        return list(range(len(objects)))
    places: list[int] = (references_to(objects) > 1).nonzero()[0].tolist()
    return places


_word_at = ctypes.c_size_t.from_address


def _data_pointer(array: np.ndarray) -> int:
    return int(_word_at(id(array) + 16).value)


def _pointer_is_where_expected() -> bool:
    """Whether the third word of an array object is its data pointer, as in every CPython and NumPy so far."""
    samples = [np.arange(12.0), np.arange(12.0).reshape(3, 4)[1:, 2:], np.zeros(0, dtype=np.uint8)[:0]]
    return all(_data_pointer(each) == each.__array_interface__["data"][0] for each in samples)


# `__array_interface__` takes about 1 µs, and a decode step asks for several hundred addresses.
_HAS_POINTER = _pointer_is_where_expected()


def offset(array: Array, base: Array) -> int:
    """Where a window begins in its owner, in elements of the window's dtype."""
    if _HAS_POINTER and type(array) is np.ndarray:
        return int(_word_at(id(array) + 16).value - _word_at(id(base) + 16).value) // array.itemsize
    return (address(array) - address(base)) // int(array.dtype.itemsize)


def address(array: Array) -> int:
    """Where the first element of an array lies in memory, in bytes."""
    if isinstance(array, np.ndarray):
        return _data_pointer(array) if _HAS_POINTER else int(array.__array_interface__["data"][0])
    pointer = getattr(getattr(array, "data", None), "ptr", None)  # CuPy's
    if pointer is not None:
        return int(pointer)
    return int(array.__array_interface__["data"][0])
