"""Questions to many objects at once: which words of their memory are read, in rounds, and what these must be.

A round may follow an address only once the rounds before it have shown what stands there. All words, the given ones and
those that were read, lie in one vector, `answers`; a `Room` says where in it some of them stand.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from haaw.tracing.object_words import identities_now, read_behind, word_offsets


class Room(NamedTuple):
    """Where in the answers some words stand, one behind the other."""

    start: int
    stop: int

    @property
    def at(self) -> np.ndarray:
        """The index of each."""
        return np.arange(self.start, self.stop)

    @property
    def slice(self) -> slice:
        """All of them."""
        return slice(self.start, self.stop)


_WHOLE, _HALF, _FREE = range(3)
"""Questions in the order of a round: a word must be something, its lower half must, or it is only read."""


class _Asked(NamedTuple):
    """A question: of which words, how many bytes behind, and what is expected of the word or of its lower half."""

    of: np.ndarray
    offsets: np.ndarray
    expected: list[int] | None
    lower_half: bool

    @property
    def rank(self) -> int:
        """Where it stands in a round."""
        return _FREE if self.expected is None else _HALF if self.lower_half else _WHOLE


class _Round:
    """The words that are read at once: first those that must be something, then those of which half must be.

    So what is compared lies in two pieces. The vectors that say what to read are as cold as what they read: the fewer,
    the better.
    """

    def __init__(self, asked: Sequence[_Asked], room: Room) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        self._of = np.concatenate((nothing, *(each.of for each in asked)))
        self._offsets = word_offsets(np.concatenate((nothing, *(each.offsets for each in asked))))
        ranks = [each.rank for each in asked]
        assert ranks == sorted(ranks), "the questions of a round must come in order"
        wanted, wanted_halves = (
            [*chain.from_iterable(each.expected or () for each in asked if each.rank == rank)]
            for rank in (_WHOLE, _HALF)
        )
        self._wanted = np.array(wanted, dtype=np.int64).tobytes()
        self._wanted_halves = np.array(wanted_halves, dtype=np.int32).tobytes()
        middle = room.start + len(wanted)
        self._room = room.slice
        self._whole = slice(room.start, middle)
        self._half = slice(2 * middle, 2 * (middle + len(wanted_halves)), 2)
        self.not_zero: list[slice] = []
        """Where words stand that will be followed."""

    def read(self, answers: np.ndarray) -> bool:
        read_behind(answers.take(self._of), self._offsets, answers[self._room])
        # Bytes are compared by one call, and no vector of truths is made.
        return (
            answers[self._whole].tobytes() == self._wanted
            and (
                not self._wanted_halves or answers.view(np.int32)[self._half].tobytes() == self._wanted_halves
            )
            and not any(0 in answers[room].tolist() for room in self.not_zero)
        )


class Questions:
    """Asked once, when a step is learned, and answered by every step that follows."""

    def __init__(self) -> None:
        self.answers = np.zeros(0, dtype=np.int64)
        self._length = 0
        self._asked: list[_Asked] = []
        self._rounds: list[_Round] = []
        self._constants: list[tuple[Room, np.ndarray]] = []
        self._same: list[tuple[np.ndarray, np.ndarray]] = []

    # Asking.

    def leave(self, count: int) -> Room:
        """Leaves room for words that will be given; not between the questions of a round."""
        assert not self._asked
        self._length += count
        return Room(self._length - count, self._length)

    def constants(self, words: Sequence[int] | np.ndarray) -> Room:
        """Words that stay what they are; not between the questions of a round."""
        room = self.leave(len(words))
        self._constants.append((room, np.array(words, dtype=np.int64)))
        return room

    def ask(self, of: np.ndarray, offsets: Any, expected: Any = None, lower_half: bool = False) -> Room:
        """Asks for a word of each of some objects: where their identities stand in the answers, and the bytes behind.

        Where something is `expected` the word must be that, or its `lower_half` (four bytes) must. Such questions come
        first in a round: those for whole words, those for halves, and all others.
        """
        count = len(of)
        words = None if expected is None else np.broadcast_to(expected, count).tolist()
        of, offsets = (np.array(np.broadcast_to(each, count), dtype=np.int64) for each in (of, offsets))
        self._asked.append(_Asked(of, offsets, words, lower_half))
        self._length += count
        return Room(self._length - count, self._length)

    def end_round(self, not_zero: Sequence[Room] = ()) -> None:
        """What is asked from now on may need the answers so far, those that are `not_zero` as identities."""
        count = sum(len(each.of) for each in self._asked)
        self._rounds.append(_Round(self._asked, Room(self._length - count, self._length)))
        self._rounds[-1].not_zero += [room.slice for room in not_zero]
        self._asked = []

    def same(self, ones: np.ndarray, others: np.ndarray) -> None:
        """Says that the words at `ones` must be those at `others`, once all are there."""
        self._same.append((ones, others))

    def end(self) -> None:
        """There are no more questions."""
        self.answers = np.zeros(self._length, dtype=np.int64)
        for room, words in self._constants:
            self.answers[room.slice] = words
        nothing = np.zeros(0, dtype=np.int64)
        self._ones, self._others = (
            np.concatenate((nothing, *(pair[side] for pair in self._same))) for side in (0, 1)
        )

    # Answering.

    def give(self, room: Room, objects: list[Any] | tuple[Any, ...]) -> None:
        """Fills in the identities of objects; there may be more of them than room."""
        self.answers[room.slice] = identities_now(objects)[: room.stop - room.start]

    def read(self, rounds: range) -> bool:
        """Reads the words of some rounds, one after the other; False as soon as one is not what it must be."""
        return all(self._rounds[number].read(self.answers) for number in rounds)

    def agree(self) -> bool:
        """Whether the words that must be the same are."""
        answers = self.answers
        return answers.take(self._ones).tobytes() == answers.take(self._others).tobytes()
