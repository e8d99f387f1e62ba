"""What the operations of a step made: learned once, and looked at again in the next step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.tracing.held import RESULT, WIDTH
from haaw.tracing.object_words import TYPE
from haaw.tracing.picking import picker
from haaw.tracing.questions import Questions, Room
from haaw.tracing.segment import Segment
from haaw.tracing.step_layouts import NewLayout


class StepResults:
    """The results of a step's operations: an array, a tuple of several, or None of those that write."""

    def __init__(self, ops: Sequence[Op], parts: Sequence[Any]) -> None:
        """`parts` are those of the held operations."""
        made = [(event, number) for event, op in enumerate(ops) for number in range(len(op.out))]
        self.events = np.array([event for event, _ in made], dtype=np.intp)
        """Of each array, the operation that made it."""
        self.slots = [-1 - number for _, number in made]
        several = [(event, len(op.out)) for event, op in enumerate(ops) if len(op.out) > 1]
        self._is_of_several = np.isin(self.events, [event for event, _ in several])
        making = [event for event, op in enumerate(ops) if op.out]
        self._pick = picker([WIDTH * event + RESULT for event in making])
        self._several = [(making.index(event), count) for event, count in reversed(several)]
        """Which of the picked results are several, and how many; the last one first."""
        self._types = list(map(type, parts[RESULT : WIDTH * len(ops) : WIDTH]))
        arrays = self.arrays(parts) or []
        self.is_owner = np.array([array.base is None for array in arrays], dtype=bool)
        self.viewed = np.flatnonzero(~self.is_owner)
        """Which arrays are windows on memory that another object owns."""
        segment = Segment(0, 0)
        self._seeds = [segment.layout(array)[1] for array in arrays]
        self._contiguous = [bool(array.flags.c_contiguous) for array in arrays]

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.slots)

    def arrays(self, parts: Sequence[Any]) -> list[Array] | None:
        """The arrays, if there are as many, of results of the learned types."""
        arrays: list[Any] = list(self._pick(parts))
        for place, count in self._several:
            if len(arrays[place]) != count:
                return None
            arrays[place : place + 1] = arrays[place]
        return arrays

    def ask_types(self, questions: Questions, parts: Room) -> None:
        """The results must be of the types that they were of; `parts` are those of the held operations."""
        at = parts.start + RESULT + WIDTH * np.arange(len(self._types))
        questions.ask(at, TYPE, expected=list(map(id, self._types)))

    def leave(self, questions: Questions) -> Room:
        """Leaves room for the identities of the arrays."""
        self._room = questions.leave(len(self))
        return self._room

    def ask_types_within(self, questions: Questions) -> None:
        """What an operation gave in a tuple must be arrays."""
        questions.ask(self._room.at[self._is_of_several], TYPE, expected=id(np.ndarray))

    def give(self, questions: Questions, parts: Sequence[Any]) -> list[Array] | None:
        """As `arrays`, and gives their identities."""
        arrays = self.arrays(parts)
        if arrays is not None:
            questions.give(self._room, arrays)
        return arrays

    def hashes(
        self,
        arrays: Sequence[Array],
        new: Sequence[NewLayout],
        digest: Callable[[Any, int], bytes],
        digest_other: Callable[[Array], bytes],
    ) -> np.ndarray:
        """The hashes of the arrays, 16 bytes each (V16); `digest` takes one in C order, and its seed."""
        seeds, contiguous = self._seeds.copy(), self._contiguous.copy()
        for results, seed, is_contiguous in new:
            for place in results:
                seeds[place] = seed
            if not is_contiguous:
                for place in results:
                    contiguous[place] = False
        if all(contiguous):
            digests = list(map(digest, arrays, seeds))
        else:
            digests = [
                digest(array, seed) if whole else digest_other(array)
                for array, seed, whole in zip(arrays, seeds, contiguous, strict=True)
            ]
        return np.frombuffer(b"".join(digests), dtype="V16")
