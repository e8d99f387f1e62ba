"""What the operations of a step made: learned once, and looked at again in the next step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.tracing.object_words import TUPLE_ITEMS, WORD_BYTES, identities, sizes_of, types_of, words_at
from haaw.tracing.picking import picker
from haaw.tracing.segment import Segment
from haaw.tracing.step_layouts import NewLayout


class Made(NamedTuple):
    """The results that are arrays, one behind the other."""

    arrays: tuple[Array, ...]
    identities: np.ndarray


class StepResults:
    """The results of a step's operations: an array, a tuple of several, or None of those that write."""

    def __init__(self, ops: Sequence[Op], results: Sequence[Any]) -> None:
        made = [(event, number) for event, op in enumerate(ops) for number in range(len(op.out))]
        self.events = np.array([event for event, _ in made], dtype=np.intp)
        """Of each array, the operation that made it."""
        self.slots = [-1 - number for _, number in made]
        self._several = [(event, len(op.out)) for event, op in enumerate(ops) if len(op.out) > 1]
        sizes = np.array([max(1, len(op.out)) for op in ops])
        firsts = np.cumsum(sizes) - sizes  # of each operation's results, those of several unpacked
        self._pick = picker([int(firsts[event]) + number for event, number in made])
        self._types = list(map(type, results))
        self._type_identities = identities(self._types)
        self._several_at = np.array([event for event, _ in self._several], dtype=np.intp)
        self._several_counts = np.array([count for _, count in self._several], dtype=np.int64)
        self._unpacked = np.flatnonzero(np.isin(self.events, self._several_at))
        numbers = np.array([number for _, number in made], dtype=np.int64)
        self._item_at = TUPLE_ITEMS + WORD_BYTES * numbers[self._unpacked]
        arrays = self.arrays(results)
        self.is_owner = np.array([array.base is None for array in arrays], dtype=bool)
        self.viewed = np.flatnonzero(~self.is_owner)
        """Which arrays are windows on memory that another object owns."""
        segment = Segment(0, 0)
        self._seeds = [segment.layout(array)[1] for array in arrays]
        self._contiguous = [bool(array.flags.c_contiguous) for array in arrays]

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.slots)

    def arrays(self, results: Sequence[Any]) -> tuple[Array, ...]:
        """The arrays, of the results of each operation."""
        each = list(results)
        for event, _ in reversed(self._several):
            each[event : event + 1] = results[event]
        return self._pick(each)

    def match(self, results: Sequence[Any], found: np.ndarray) -> Made | None:
        """The arrays, if the results (`found` are their identities) are of the types that they were of, and as many."""
        if (types_of(found) != self._type_identities).any():
            return None
        if (sizes_of(found[self._several_at]) != self._several_counts).any():
            return None
        made: np.ndarray = found[self.events]
        made[self._unpacked] = words_at(made[self._unpacked] + self._item_at)
        if (types_of(made) != id(np.ndarray)).any():
            return None
        return Made(self.arrays(results), made)

    def hashes(
        self,
        arrays: Sequence[Array],
        new: Sequence[NewLayout],
        digest: Callable[[Any, int], bytes],
        digest_other: Callable[[Array], bytes],
    ) -> np.ndarray:
        """The hashes of the arrays, uint8 [array, 16]; `digest` takes one in C order, and its seed."""
        seeds, contiguous = self._seeds.copy(), self._contiguous.copy()
        for places, seed, is_contiguous in new:
            for place in places[places < len(arrays)].tolist():
                seeds[place], contiguous[place] = seed, is_contiguous
        if all(contiguous):
            digests = list(map(digest, arrays, seeds))
        else:
            digests = [
                digest(array, seed) if whole else digest_other(array)
                for array, seed, whole in zip(arrays, seeds, contiguous, strict=True)
            ]
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)
