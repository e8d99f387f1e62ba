"""Questions to many objects at once: which words of their memory are read, in rounds, and what these must be.

A round may follow an address only once the rounds before it have shown what stands there. All words, the given ones and
those that were read, lie in one vector, `answers`; a `Room` says where in it some of them stand.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from haaw.tracing.object_words import identities_now, word_offsets, words_behind

ALL_BITS = -1


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


_Asked = tuple[np.ndarray, np.ndarray, np.ndarray, int]
"""Of which words, how many bytes behind, what is expected, and of which bits."""


class _Round:
    """The words that are read at once."""

    def __init__(self, asked: Sequence[_Asked], room: Room) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        self._of, self._offsets, expected = (
            np.concatenate((nothing, *(each[column] for each in asked))) for column in range(3)
        )
        self._bits = np.repeat([each[3] for each in asked], [len(each[0]) for each in asked]).astype(np.int64)
        self._offsets = word_offsets(self._offsets)
        self._wanted = (expected & self._bits).tobytes()
        self._room = room.slice
        self.not_zero: list[slice] = []
        """Where words stand that will be followed."""

    def read(self, answers: np.ndarray) -> bool:
        words = words_behind(answers.take(self._of), self._offsets)
        answers[self._room] = words
        words &= self._bits
        # Bytes are compared by one call, and no vector of truths is made.
        return words.tobytes() == self._wanted and all(bool(answers[room].all()) for room in self.not_zero)


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

    def ask(self, of: np.ndarray, offsets: Any, expected: Any = None, bits: int = ALL_BITS) -> Room:
        """Asks for a word of each of some objects: where their identities stand in the answers, and the bytes behind.

        Those `bits` of it must be as `expected`, where something is.
        """
        count = len(of)
        of, offsets, expected_words = (
            np.array(np.broadcast_to(each, count), dtype=np.int64)
            for each in (of, offsets, 0 if expected is None else expected)
        )
        self._asked.append((of, offsets, expected_words, 0 if expected is None else bits))
        self._length += count
        return Room(self._length - count, self._length)

    def end_round(self, not_zero: Sequence[Room] = ()) -> None:
        """What is asked from now on may need the answers so far, those that are `not_zero` as identities."""
        count = sum(len(each[0]) for each in self._asked)
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
