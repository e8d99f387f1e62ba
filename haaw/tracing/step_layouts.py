"""The layouts of many arrays of a step at once: which are what they were when they were learned, and their numbers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from haaw.tracing.array_headers import DIMENSIONS, DTYPE, SHAPE, STRIDES
from haaw.tracing.distinct import Distinct
from haaw.tracing.object_words import WORD_BYTES
from haaw.tracing.questions import Questions, Room
from haaw.tracing.segment import Layout, Segment


class NewLayout(NamedTuple):
    """Results whose layout is not the learned one: which, the seed of their hashes, whether in C order."""

    results: list[int]
    seed: int
    is_contiguous: bool


class Pointers(NamedTuple):
    """Some of the arrays, and where in the answers it stands where their shapes and strides lie."""

    arrays: slice
    shape: Room
    strides: Room


class StepLayouts:
    """Remembers the layout (dtype, shape, strides) of each of some arrays of a step, the first of which are results.

    Lengths change from step to step, and then those of many arrays alike: such groups are remembered, too.
    """

    def __init__(self, arrays: Sequence[np.ndarray], results: int) -> None:
        self._results = results
        keys: list[Layout] = [(array.dtype, array.shape, array.strides) for array in arrays]
        contiguous = {key: bool(array.flags.c_contiguous) for key, array in zip(keys, arrays, strict=True)}
        self._distinct, self._which = list(contiguous.items()), Distinct(keys).which
        self.itemsizes = np.array([array.dtype.itemsize for array in arrays], dtype=np.int64)
        self._dtypes = [array.dtype for array in arrays]  # held, so that their identities stay theirs
        self._dimensions = np.array([array.ndim for array in arrays], dtype=np.int64)
        self._elements = np.repeat(np.arange(len(keys)), 2 * self._dimensions)
        """Shape and strides of the arrays, one behind the other: which array each element belongs to."""
        self._learned = np.array(
            [n for _, shape, strides in keys for n in (*shape, *strides)], dtype=np.int64
        )
        self._extents_at = np.zeros(0, dtype=np.intp)  # where in the answers these elements stand
        self._expected: _Expected | None = None
        self._last: _Numbered | None = None

    def ask_headers(self, questions: Questions, of: np.ndarray, arrays: slice) -> Pointers:
        """Some of the arrays must have as many axes, and the same dtype; `of` says where their identities stand.

        Asks where their shapes and strides lie.
        """
        questions.ask(of, DTYPE, expected=list(map(id, self._dtypes[arrays])))
        questions.ask(of, DIMENSIONS, expected=self._dimensions[arrays], lower_half=True)
        return Pointers(arrays, questions.ask(of, SHAPE), questions.ask(of, STRIDES))

    def ask_extents(self, questions: Questions, pointers: Pointers) -> None:
        """Asks for shapes and strides."""
        dimensions = self._dimensions[pointers.arrays]
        addresses = np.stack((pointers.shape.at, pointers.strides.at), axis=1).reshape(-1)
        counts = np.repeat(dimensions, 2)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        room = questions.ask(np.repeat(addresses, counts), WORD_BYTES * within)
        self._extents_at = np.append(self._extents_at, room.at)

    def numbers(
        self, answers: np.ndarray, array_at: Callable[[int], np.ndarray], segment: Segment
    ) -> tuple[np.ndarray, list[NewLayout]]:
        """The number of each array's layout in a segment (0 behind the last), and which are not the learned ones.

        `array_at` gives the array at a place. The segment learns the layouts that it does not have yet.
        """
        expected = self._expected or self._expecting([])
        if (
            answers.take(expected.staying).tobytes() != expected.learned
            or answers.take(expected.moving).tobytes() != answers.take(expected.moving_like).tobytes()
        ):
            expected = self._expecting(self._changed(answers.take(self._extents_at)))
        self._expected = expected
        known = self._numbered(expected.known, segment)
        numbers: np.ndarray = known[expected.which]
        new = []
        for group, results in expected.groups:
            numbers[group], seed, is_contiguous = segment.layout(array_at(int(group[0])))
            new.append(NewLayout(results, seed, is_contiguous))
        return numbers, new

    def _numbered(self, layouts: list[tuple[Layout, bool]], segment: Segment) -> np.ndarray:
        """The numbers of layouts in a segment, and 0 behind the last: as a rule those of the step before."""
        last = self._last
        if last is not None and last.layouts is layouts and last.before == segment.layouts:
            segment.layouts += last.written
            segment.layout_of.update(last.added)
            return last.numbers
        before = segment.layouts.copy()
        for key, is_contiguous in layouts:
            if key not in segment.layout_of:
                segment.new_layout(key, is_contiguous)
        known = {key: segment.layout_of[key] for key, _ in layouts}
        numbers = np.array([*(number for number, *_ in known.values()), 0], dtype=np.int64)
        self._last = _Numbered(layouts, before, segment.layouts[len(before) :], known, numbers)
        return numbers

    def _changed(self, extents: np.ndarray) -> list[list[int]]:
        """The arrays whose layout is not the learned one, in groups with one layout that had one before."""
        groups: dict[tuple[int, bytes], list[int]] = {}
        for place in np.flatnonzero(np.bincount(self._elements[extents != self._learned])).tolist():
            key = int(self._which[place]), extents[self._elements == place].tobytes()
            groups.setdefault(key, []).append(place)
        return list(groups.values())

    def _expecting(self, groups: list[list[int]]) -> "_Expected":
        """Expects that the layouts of these groups, and no others, are other ones than those that were learned."""
        is_moving = np.zeros(len(self._which), dtype=bool)
        like = np.arange(len(self._which))
        for group in groups:
            is_moving[group] = True
            like[group] = group[0]
        starts = 2 * (np.cumsum(self._dimensions) - self._dimensions)
        moves = is_moving[self._elements]
        moving, staying = np.flatnonzero(moves), np.flatnonzero(~moves)
        moving_like = moving + (starts[like] - starts)[self._elements[moving]]
        used = np.flatnonzero(np.bincount(self._which[~is_moving]))  # `np.unique` imports a package first
        which = np.append(np.where(is_moving, len(used), np.searchsorted(used, self._which)), len(used))
        known = [self._distinct[number] for number in used.tolist()]
        results = [[place for place in group if place < self._results] for group in groups]
        both = list(zip(map(np.array, groups), results, strict=True))
        at = self._extents_at
        return _Expected(
            at[staying], self._learned[staying].tobytes(), at[moving], at[moving_like], known, which, both
        )


class _Expected(NamedTuple):
    """What is expected of the layouts of the next step."""

    staying: np.ndarray
    """Where elements stand of arrays whose layout is the learned one."""
    learned: bytes
    """What they are."""
    moving: np.ndarray
    """Where those of the others stand, and those that must be the same."""
    moving_like: np.ndarray
    known: list[tuple[Layout, bool]]
    """The layouts of those that stay, and whether they are in C order."""
    which: np.ndarray
    """Of each array, which of them it has; as many as there are for those that move, and behind the last."""
    groups: list[tuple[np.ndarray, list[int]]]
    """Those that move, and which of them are results."""


class _Numbered(NamedTuple):
    """How layouts were numbered in a segment that had those of `before`."""

    layouts: list[tuple[Layout, bool]]
    before: list[str]
    written: list[str]
    added: dict[Layout, tuple[int, int, bool]]
    numbers: np.ndarray
