"""What the operations of a step were given: learned once, and looked at again in the next step.

Every argument has a place: first those by position, of all operations, behind them the named ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from haaw.ops.op import Op
from haaw.tracing.held import ARGS, NAMED, OP, WIDTH, HeldOperations
from haaw.tracing.object_words import TUPLE_ITEMS, WORD_BYTES, identities, sizes_of, types_of, words_at
from haaw.tracing.picking import picker

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
    identities: np.ndarray

    def value(self, place: int) -> Any:
        """The argument at a place."""
        arguments = self.arguments
        if place >= arguments.by_position:
            return self.named[place - arguments.by_position]
        return self.parts[WIDTH * int(arguments.events[place]) + ARGS][int(arguments.slots[place])]


class StepArguments:
    """The arguments of a step's operations: how many, under which names, and which plain ones are equal."""

    def __init__(self, batch: HeldOperations, length: int) -> None:
        self._ops: list[Op] = batch.column(OP, length)
        argss, kwargss = batch.column(ARGS, length), batch.column(NAMED, length)
        named: list[dict[str, Any]] = list(filter(None, kwargss))
        self._is_named, self._names = np.array(list(map(bool, kwargss))), list(map(tuple, named))
        self._pick_named = picker((WIDTH * np.flatnonzero(self._is_named) + NAMED).tolist())
        self._counts = np.array(list(map(len, argss)))
        self.events = np.repeat(np.arange(length), self._counts)
        """Of each argument by position, its operation; and its slot."""
        self.slots = np.arange(len(self.events)) - (np.cumsum(self._counts) - self._counts)[self.events]
        self.by_position = len(self.events)
        self._item_at = TUPLE_ITEMS + WORD_BYTES * self.slots
        self.groups: list[tuple[Op, list[tuple[int, int]]]] = []
        """Operations with equal plain arguments share an entry of the table: the first of them, slots and places."""
        self.group = np.zeros(length, dtype=np.intp)
        """Of each operation: 0 for no plain arguments, else 1 + its group."""

    def each(self, batch: HeldOperations) -> Iterator[list[Argument]]:
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
        typed = sorted((each.place, type(each.value)) for each in arguments if each.place not in told)
        self._typed = np.array([place for place, _ in typed], dtype=np.intp)
        self._types = [kind for _, kind in typed]
        self._type_identities = identities(self._types)
        of_event: dict[int, list[Argument]] = {}
        for each in arguments:
            if type(each.value) is not np.ndarray:
                of_event.setdefault(each.event, []).append(each)
        groups: dict[Any, int] = {}
        plain: list[int] = []
        like: list[int] = []
        for event, found in of_event.items():
            key = self._ops[event].name, tuple((each.slot, exact(each.value)) for each in found)
            group = groups.setdefault(key, len(self.groups))
            if group == len(self.groups):
                self.groups.append((self._ops[event], [(each.slot, each.place) for each in found]))
            self.group[event] = 1 + group
            plain += [each.place for each in found]
            like += [place for _, place in self.groups[group][1]]
        self._plain, self._like = np.array(plain, dtype=np.intp), np.array(like, dtype=np.intp)
        self._tuples = [each.place for each in arguments if type(each.value) is tuple]

    def match(self, batch: HeldOperations, found: np.ndarray) -> Given | None:
        """The arguments, if there are as many, under the same names, of the same types, and plain ones equal again.

        `found` are the identities of all parts of the held operations.
        """
        args = found[:, ARGS]
        if ((found[:, NAMED] != id(None)) != self._is_named).any() or (sizes_of(args) != self._counts).any():
            return None
        dicts = self._pick_named(batch.parts)
        if list(map(tuple, dicts)) != self._names:
            return None
        named = [*chain.from_iterable(map(dict.values, dicts))]
        each = np.concatenate((words_at(args[self.events] + self._item_at), identities(named)))
        if (types_of(each[self._typed]) != self._type_identities).any():
            return None
        given = Given(self, batch.parts, named, each)
        if not all(is_plain(given.value(place)) for place in self._tuples):
            return None
        # What is the same object is the same argument.
        others = np.flatnonzero(each[self._plain] != each[self._like])
        one, other = (list(map(given.value, places[others].tolist())) for places in (self._plain, self._like))
        if one != other:
            return None
        if 0 in one or self._tuples:  # where to be equal is not enough, types being equal already
            one, other = list(map(exact, one)), list(map(exact, other))
        return given if one == other else None
