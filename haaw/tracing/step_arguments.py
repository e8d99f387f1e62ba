"""What the operations of a step were given: learned once, and looked at again in the next step.

Every argument has a place: first those by position, of all operations, behind them the named ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import getitem
from typing import Any, NamedTuple

import numpy as np

from haaw.ops.op import Op
from haaw.tracing.held import ARGS, NAMED, OP, WIDTH, Batch
from haaw.tracing.object_words import FLOAT_BITS, SIZE, TUPLE_ITEMS, TYPE, WORD_BYTES
from haaw.tracing.picking import picker
from haaw.tracing.questions import Questions, Room

PLAIN = frozenset({float, int, str, bool, type(None)})


def is_plain(value: Any) -> bool:
    """Whether a value is no array and holds none, for certain."""
    return type(value) in PLAIN or (type(value) is tuple and all(type(each) in PLAIN for each in value))


def exact(value: Any) -> Any:
    """A key that tells apart what is equal and yet another argument: 1, 1.0 and True, or 0.0 and -0.0."""
    if type(value) is tuple:
        return tuple(map(exact, value))
    return type(value), str(value) if type(value) is float and value == 0 else value


class Argument(NamedTuple):
    """One argument: its operation, the parameter's number, its place among all, and its value."""

    event: int
    slot: int
    place: int
    value: Any


class Given(NamedTuple):
    """The arguments of the operations at hand."""

    arguments: "StepArguments"
    parts: list[Any]
    named: list[Any]

    def value(self, place: int) -> Any:
        """The argument at a place."""
        arguments = self.arguments
        if place >= arguments.by_position:
            return self.named[place - arguments.by_position]
        part, slot = arguments.found_at[place]
        return self.parts[part][slot]


class StepArguments:
    """The arguments of a step's operations: how many, under which names, and which plain ones are equal."""

    def __init__(self, batch: Batch, length: int) -> None:
        self._ops: list[Op] = batch.column(OP, length)
        argss, kwargss = batch.column(ARGS, length), batch.column(NAMED, length)
        named: list[dict[str, Any]] = list(filter(None, kwargss))
        self.is_named = np.array(list(map(bool, kwargss)))
        """Whether an operation has named arguments."""
        sizes = np.array(list(map(len, named)), dtype=np.intp)
        self._names, self._sizes = list(chain.from_iterable(named)), np.repeat(sizes, sizes).tolist()
        """Of each named argument its name, and how many its operation has."""
        at = WIDTH * np.flatnonzero(self.is_named) + NAMED
        self._pick_named = picker(np.repeat(at, sizes).tolist())
        self._several = [
            (int(part), tuple(names)) for part, names in zip(at, named, strict=True) if len(names) > 1
        ]
        """Where operations have several, whose order counts."""
        self._counts = np.array(list(map(len, argss)))
        self.events = np.repeat(np.arange(length), self._counts)
        """Of each argument by position, its operation; and its slot."""
        self.slots = np.arange(len(self.events)) - (np.cumsum(self._counts) - self._counts)[self.events]
        self.by_position = len(self.events)
        self.found_at = list(zip((WIDTH * self.events + ARGS).tolist(), self.slots.tolist(), strict=True))
        """Of each argument by position, which part of the batch has it, and its slot."""
        self.groups: list[tuple[Op, list[int], list[int]]] = []
        """Operations with equal plain arguments share an entry of the table: the first of them, slots and places."""
        self.group = np.zeros(length, dtype=np.intp)
        """Of each operation: 0 for no plain arguments, else 1 + its group."""

    def each(self, batch: Batch) -> Iterator[list[Argument]]:
        """The arguments of each operation, those by position first."""
        position, named_position = 0, self.by_position
        for event, op in enumerate(self._ops):
            args, kwargs = batch.parts[WIDTH * event + ARGS], batch.parts[WIDTH * event + NAMED] or {}
            found = [Argument(event, slot, position + slot, value) for slot, value in enumerate(args)]
            position += len(args)
            for name, value in kwargs.items():
                found.append(Argument(event, op.parameters.index(name), named_position, value))
                named_position += 1
            yield found

    def learn_values(self, arguments: Sequence[Argument], told: Iterable[int]) -> None:
        """Learns which arguments are plain and equal, and the types of all but those at the places `told`.

        The identity of those will be looked at.
        """
        told = set(told)
        typed = {each.place: type(each.value) for each in arguments if each.place not in told}
        self._typed, self._types = list(typed), list(typed.values())
        of_event: dict[int, list[Argument]] = {}
        for each in arguments:
            if type(each.value) is not np.ndarray:
                of_event.setdefault(each.event, []).append(each)
        groups: dict[Any, int] = {}
        floats: list[tuple[int, int]] = []
        others: list[tuple[int, int]] = []
        for event, found in of_event.items():
            key = self._ops[event].name, tuple((each.slot, exact(each.value)) for each in found)
            group = groups.setdefault(key, len(self.groups))
            if group == len(self.groups):
                slots, places = [each.slot for each in found], [each.place for each in found]
                self.groups.append((self._ops[event], slots, places))
            self.group[event] = 1 + group
            for each, like in zip(found, self.groups[group][2], strict=True):
                (floats if type(each.value) is float else others).append((each.place, like))
        self._floats, self._plain = (
            np.array(pairs, dtype=np.intp).reshape(-1, 2).T for pairs in (floats, others)
        )
        self._tuples = [each.place for each in arguments if type(each.value) is tuple]

    def ask_sizes(self, questions: Questions, parts: Room) -> None:
        """There must be as many by position, and named ones where there were; `parts` are of the held operations."""
        at = parts.start + WIDTH * np.arange(len(self._ops))
        questions.ask(at + ARGS, SIZE, expected=self._counts)
        questions.ask(at[self.is_named] + NAMED, TYPE, expected=id(dict))

    def ask_items(self, questions: Questions, parts: Room, named: Room) -> None:
        """Asks for the identities of the arguments."""
        at = parts.start + ARGS + WIDTH * self.events
        items = questions.ask(at, TUPLE_ITEMS + WORD_BYTES * self.slots)
        self.at = np.concatenate((items.at, named.at))
        """Where in the answers the identity of each argument stands, by its place."""
        self._plain_at = self.at[self._plain]

    def leave_named(self, questions: Questions) -> Room:
        """Leaves room for the identities of the named arguments."""
        self._named = questions.leave(len(self._names))
        return self._named

    def ask_types(self, questions: Questions) -> None:
        """Those that are not told by their identity must be of the types that they were of."""
        questions.ask(self.at[self._typed], TYPE, expected=list(map(id, self._types)))

    def ask_floats(self, questions: Questions) -> None:
        """Those that were equal must be equal again, to the bit: -0.0 is another argument than 0.0."""
        ones, others = (questions.ask(self.at[places], FLOAT_BITS) for places in self._floats)
        questions.same(ones.at, others.at)

    def give(self, batch: Batch, questions: Questions) -> Given | None:
        """The arguments, if the named ones have the same names; gives the identities of these."""
        dicts = self._pick_named(batch.parts)  # for each named argument the dict that has it
        if list(map(len, dicts)) != self._sizes:
            return None
        try:
            named = list(map(getitem, dicts, self._names))
        except KeyError:
            return None
        if any(tuple(batch.parts[part]) != names for part, names in self._several):
            return None
        questions.give(self._named, named)
        return Given(self, batch.parts, named)

    def match(self, given: Given, answers: np.ndarray) -> bool:
        """Whether plain arguments that were equal are equal again; their types must be the learned ones."""
        if not all(is_plain(given.value(place)) for place in self._tuples):
            return False
        # What is the same object is the same argument.
        found = answers.take(self._plain_at)
        if found[0].tobytes() == found[1].tobytes():
            return True
        unlike = self._plain[:, found[0] != found[1]]
        one, other = (list(map(given.value, places)) for places in unlike.tolist())
        if one != other:
            return False
        if self._tuples:  # where to be equal is not enough, types being equal already
            one, other = list(map(exact, one)), list(map(exact, other))
        return one == other
