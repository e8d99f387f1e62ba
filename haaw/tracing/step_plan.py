"""What a step has in common with the one before it: which operations ran where, and what they read.

A decode step runs the operations of the step before it once more: the same functions, called at the same places, on the
same weights and on each other's results. New are the values, the times, the numbers of the buffers, and how far
attention reads. A `StepPlan` is learned from a batch of operations that was noted one by one; `haaw.tracing.step_rows`
holds the next batch against it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.ops.recorder import Scope
from haaw.tracing.array_headers import AVAILABLE
from haaw.tracing.buffers import Buffers, Lasting
from haaw.tracing.held import ARGS, CODE, INSTRUCTION, NAMED, OP, RESULT, SCOPE, WIDTH, HeldOperations
from haaw.tracing.object_words import TUPLE_ITEMS, WORD_BYTES, identities, words_at
from haaw.tracing.schema import EVENT, LINK, NONE, NOT_IN_A_LIST, OPERATION, OUTPUT
from haaw.tracing.segment import Segment, Table, encoded
from haaw.tracing.sites import site_entry
from haaw.tracing.step_layouts import StepLayouts, picker

PLAIN = frozenset({float, int, str, bool, type(None)})
ALLOCATES = "kv_allocate"
LEAST_OPERATIONS = 32
"""Shorter batches are noted one by one as fast."""


def is_plain(value: Any) -> bool:
    """Whether a value is no array and holds none, for certain."""
    return type(value) in PLAIN or (type(value) is tuple and all(type(each) in PLAIN for each in value))


def owners_of(results: Sequence[np.ndarray]) -> list[Array]:
    """The arrays that own the memory of results, each a window at most once removed."""
    return [result if result.base is None else result.base for result in results]


def exact(value: Any) -> Any:
    """A key that tells apart what is equal and yet another argument: 1, 1.0 and True, or 0.0 and -0.0."""
    if type(value) is tuple:
        return tuple(map(exact, value))
    return type(value), str(value) if type(value) is float and value == 0 else value


def place_of(scope: Scope) -> tuple[Any, ...]:
    """What of a scope stays the same from step to step."""
    return scope.stage, scope.part, scope.sequence, scope.layer, scope.head


def scope_fields(scopes: np.ndarray) -> np.ndarray:
    """The identities of the fields of scopes, told by theirs, int64 [scope, field]: place, then step and request.

    A scope is a tuple.
    """
    return words_at(scopes[:, None] + _SCOPE_ITEMS)


_OF_PLACE, _OF_STEP = ("stage", "part", "sequence", "layer", "head"), ("step", "request")
_SCOPE_ITEMS = TUPLE_ITEMS + WORD_BYTES * np.array(list(map(Scope._fields.index, _OF_PLACE + _OF_STEP)))
PLACE_FIELDS = len(_OF_PLACE)
"""So many columns of `scope_fields` say where an operation stands; the others, in which step."""


@dataclass(frozen=True)
class Bound:
    """Arguments of one sort: their places among all arguments, and what each is bound to (by its number)."""

    places: list[int]
    to: list[int]
    writes: list[int]
    """Of a cache's buffer: how often the step had written to it until then."""


class StepPlan:
    """The operations of a step, how they are bound to each other, and the parts of their rows that stay.

    `length` says how many operations it has from the beginning of the batch on; 0 where it is not worth it.
    """

    def __init__(self, batch: HeldOperations, buffers: Buffers, op_numbers: Mapping[str, int]) -> None:
        self.length = _supported(batch, buffers) if AVAILABLE else 0
        if self.length < LEAST_OPERATIONS:
            self.length = 0
            return
        self.ops, argss, kwargss, scopes, results, self.instructions, self._codes = (
            batch.column(part, self.length) for part in (OP, ARGS, NAMED, SCOPE, RESULT, INSTRUCTION, CODE)
        )
        named = list(filter(None, kwargss))
        self.is_named, self.names = np.array(list(map(bool, kwargss))), list(map(tuple, named))
        self.pick_named = picker((WIDTH * np.flatnonzero(self.is_named) + NAMED).tolist())
        self.counts = np.array(list(map(len, argss)))
        # Of all operations: first the arguments by position, then the named ones.
        flat = [*chain.from_iterable(argss), *chain.from_iterable(map(dict.values, named))]
        self._flat_types = list(map(type, flat))
        found = batch.identities(self.length)
        self.op_identities, self.code_identities = found[:, OP].copy(), found[:, CODE].copy()
        self._learn_scopes(scopes)
        self._learn_results(results)
        self._learn_arguments(flat, results, buffers)
        self._learn_sites()
        self._events = self._event_rows(op_numbers)
        self._numbered: Any = None  # with which numbers of tables these rows are filled in

    def _learn_scopes(self, scopes: Sequence[Scope]) -> None:
        """Operations in one place share one scope object."""
        first_of: dict[int, int] = {}
        starts = [first_of.setdefault(id(scope), event) for event, scope in enumerate(scopes)]
        self.first_scopes, self.scope_starts = np.array(sorted(set(starts))), np.array(starts)
        self.pick_scopes = picker((WIDTH * self.first_scopes + SCOPE).tolist())
        self._first_scopes = [scopes[event] for event in self.first_scopes]  # held, with their fields
        self.place_fields = scope_fields(identities(self._first_scopes))[:, :PLACE_FIELDS]
        self.places = list(map(place_of, self._first_scopes))
        rooms: dict[tuple[str | None, str | None], int] = {}
        self.room = np.array(
            [rooms.setdefault((scope.stage, scope.part), len(rooms)) for scope in scopes], dtype=np.intp
        )
        self.rooms = list(rooms)
        self._scoped = [(scope.sequence, scope.layer, scope.head) for scope in scopes]

    def _learn_results(self, results: Sequence[Any]) -> None:
        self.several = [(event, len(op.out)) for event, op in enumerate(self.ops) if len(op.out) > 1]
        places: list[int] = []
        self.made_at: list[int] = []
        self.made_slots: list[int] = []
        place = 0
        for event, op in enumerate(self.ops):
            for number in range(len(op.out)):
                places.append(place + number)
                self.made_at.append(event)
                self.made_slots.append(-1 - number)
            place += max(1, len(op.out))
        self._pick_made = picker(places)
        self._result_types = list(map(type, results))
        self.result_types = identities(self._result_types)
        several = np.array([event for event, _ in self.several], dtype=np.intp)
        self.several_at, self.several_counts = several, np.array([count for _, count in self.several])
        self._made_events = np.array(self.made_at, dtype=np.intp)
        self._of_several = np.flatnonzero(np.isin(self._made_events, several))
        self._several_events = self._made_events[self._of_several]
        self._item_at = (
            TUPLE_ITEMS + WORD_BYTES * (-1 - np.array(self.made_slots, dtype=np.int64))[self._of_several]
        )
        made = self.made(results)
        self.is_owner = np.array([array.base is None for array in made])
        self.viewed = np.flatnonzero(~self.is_owner)
        segment = Segment(0, 0)
        self.seeds = [segment.layout(array)[1] for array in made]
        self.contiguous = [bool(array.flags.c_contiguous) for array in made]

    def made(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """All results that are arrays, one behind the other, of the results of each operation."""
        each = list(results)
        for event, _ in reversed(self.several):
            each[event : event + 1] = results[event]
        return self._pick_made(each)

    def made_identities(self, results: np.ndarray) -> np.ndarray:
        """The identities of `made`, of those of the results; which have to be of the right types and lengths."""
        found: np.ndarray = results[self._made_events]
        found[self._of_several] = words_at(results[self._several_events] + self._item_at)
        return found

    def _learn_arguments(self, flat: Sequence[Any], results: Sequence[Any], buffers: Buffers) -> None:
        made = self.made(results)
        result_of = {id(array): number for number, array in enumerate(made) if array.base is None}
        owner_of = {id(array): number for number, array in enumerate(owners_of(made))}
        targets = {
            id(buffers.lasting_of(flat[dict(arguments)[op.parameters.index(op.writes)]]))
            for op, arguments in zip(self.ops, self._arguments(), strict=True)
            if op.writes is not None
        }
        self.lasting: list[Lasting] = []  # those that the step writes to
        lasting_of: dict[int, int] = {}
        writes: dict[int, int] = {}
        self.weights, self.read = Bound([], [], []), Bound([], [], [])
        self.windows, self.cached = Bound([], [], []), Bound([], [], [])
        self.outside: list[tuple[int, bool]] = []
        """Places of what was there before the step, and whether it is a buffer that outlives steps."""
        self.written = Bound([], [], [])  # what is written to, with the writes up to and with this one
        self.written_at: list[int] = []
        self.roots: list[tuple[int, int, int]] = []  # event, slot and place of what is written to a cache
        slots: list[int] = []
        link_places: list[int] = []
        self.link_counts: list[int] = []
        self.weight_layouts: list[int] = []
        weight_identities: list[int] = []  # which stay theirs, since the model holds them
        plain: list[tuple[int, int, int]] = []  # event, slot, place
        for event, (op, arguments) in enumerate(zip(self.ops, self._arguments(), strict=True)):
            before = len(slots)
            for slot, place in arguments:
                value = flat[place]
                if type(value) is not np.ndarray:
                    plain.append((event, slot, place))
                    continue
                slots.append(slot)
                link_places.append(place)
                lasting = buffers.lasting_of(value)
                weight = buffers.weights.get(id(value))
                if weight is not None:
                    _bind(self.weights, place, weight[0])
                    self.weight_layouts.append(weight[1])
                    weight_identities.append(id(value))
                elif (number := result_of.get(id(value))) is not None:
                    _bind(self.read, place, number)
                elif value.base is not None and (number := owner_of.get(id(value.base))) is not None:
                    _bind(self.windows, place, number)
                elif lasting is not None and id(lasting) in targets:
                    number = lasting_of.setdefault(id(lasting), len(self.lasting))
                    if number == len(self.lasting):
                        self.lasting.append(lasting)
                    _bind(self.cached, place, number, writes.get(number, 0))
                else:
                    self.outside.append((place, lasting is not None))
                if op.writes is not None and op.parameters[slot] != op.writes and lasting is None:
                    self.roots.append((event, slot, place))
            if op.writes is not None:
                place = dict(arguments)[op.parameters.index(op.writes)]
                number = lasting_of[id(buffers.lasting_of(flat[place]))]
                writes[number] = writes.get(number, 0) + 1
                _bind(self.written, place, number, writes[number])
                self.written_at.append(event)
            self.link_counts.append(len(slots) - before)
        self.weight_identities = np.array(weight_identities, dtype=np.int64)
        counts = [writes.get(number, 0) for number in range(len(self.lasting))]
        self.write_counts = np.array(counts, dtype=np.int64)
        self._learn_places()
        views = [flat[place] for place in (*self.windows.places, *self.cached.places)]
        self.layouts = StepLayouts([*made, *views])
        self.cache_keys = [id(last.ref()) for last in self.lasting]
        self.cache_identities = np.array(self.cache_keys, dtype=np.int64)
        self.cache_refs = [last.ref for last in self.lasting]
        self.lasting_numbers = np.array([last.number for last in self.lasting], dtype=np.int64)
        self.written_numbers = {
            last.number for last, writes in zip(self.lasting, self.write_counts, strict=True) if writes
        }
        self.link_row = {place: row for row, place in enumerate(link_places)}
        self.links = np.zeros(len(slots), dtype=LINK)
        self.links["slot"] = slots
        self.links["item"] = NOT_IN_A_LIST
        self._learn_plain(plain, flat)
        self._learn_rows()

    def _arguments(self) -> Iterator[list[tuple[int, int]]]:
        """Of each operation: the slots of its arguments and their places among all, those by position first."""
        position, named_position = 0, sum(self.counts)
        names = iter(self.names)
        for op, count, is_named in zip(self.ops, self.counts, self.is_named, strict=True):
            found = [(slot, position + slot) for slot in range(count)]
            position += count
            if is_named:
                for name in next(names):
                    found.append((op.parameters.index(name), named_position))
                    named_position += 1
            yield found

    def _learn_places(self) -> None:
        """Where the arguments stand in memory, and the types of those whose identity does not tell it."""
        counts = np.array(self.counts, dtype=np.int64)
        self.event_of = np.repeat(np.arange(self.length), counts)
        self.slot_of = np.arange(len(self.event_of)) - (np.cumsum(counts) - counts)[self.event_of]
        self._argument_at = TUPLE_ITEMS + WORD_BYTES * self.slot_of
        told = {*self.weights.places, *self.read.places}
        typed = [place for place in range(len(self._flat_types)) if place not in told]
        self.typed, self.types = np.array(typed, dtype=np.intp), identities(self._flat_types)[typed]

    def given_identities(self, args: np.ndarray, named: list[Any]) -> np.ndarray:
        """The identities of all arguments: of the tuples of those by position, and of the named ones."""
        return np.concatenate((words_at(args[self.event_of] + self._argument_at), identities(named)))

    def given(self, batch: HeldOperations, named: Sequence[Any], place: int) -> Any:
        """The argument at a place."""
        if place >= len(self.event_of):
            return named[place - len(self.event_of)]
        return batch.parts[WIDTH * int(self.event_of[place]) + ARGS][int(self.slot_of[place])]

    def _learn_rows(self) -> None:
        """Which rows of links and outputs each sort of array stands in."""

        def rows(places: Sequence[int]) -> np.ndarray:
            return np.array([self.link_row[place] for place in places], dtype=np.intp)

        def column(values: Sequence[int]) -> np.ndarray:
            return np.array(values, dtype=np.int64)

        weight_rows = rows(self.weights.places)
        self.links["buffer"][weight_rows] = self.weights.to
        self.links["layout"][weight_rows] = self.weight_layouts
        self.weight_places, self.read_places = column(self.weights.places), column(self.read.places)
        self.view_places = column((*self.windows.places, *self.cached.places))
        self.read_rows, self.read_to = rows(self.read.places), column(self.read.to)
        self.view_rows = rows((*self.windows.places, *self.cached.places))
        self.windows_to = column(self.windows.to)
        self.cached_to, self.cached_before = column(self.cached.to), column(self.cached.writes)
        self.written_links = rows(self.written.places)
        self.written_to, self.writes_until = column(self.written.to), column(self.written.writes)
        at = np.array((*self.made_at, *self.written_at), dtype=np.intp)
        row_of = np.argsort(np.argsort(at, kind="stable"))  # several results of one operation stay in order
        self.outputs = np.zeros(len(at), dtype=OUTPUT)
        self.made_rows, self.written_rows = row_of[: len(self.made_at)], row_of[len(self.made_at) :]

    def _learn_plain(self, plain: Sequence[tuple[int, int, int]], flat: Sequence[Any]) -> None:
        """Operations with equal plain arguments share a number; so must they when the step comes again."""
        of_event: dict[int, list[tuple[int, int]]] = {}
        for event, slot, place in plain:
            of_event.setdefault(event, []).append((slot, place))
        groups: dict[Any, int] = {}
        self.plain_groups: list[tuple[Op, list[tuple[int, int]]]] = []
        self.plain_group = np.zeros(self.length, dtype=np.intp)
        """Of each event: 0 for none, else 1 + its group."""
        places: list[int] = []
        like: list[int] = []
        for event, found in of_event.items():
            op = self.ops[event]
            key = op.name, tuple((slot, exact(flat[place])) for slot, place in found)
            group = groups.setdefault(key, len(self.plain_groups))
            if group == len(self.plain_groups):
                self.plain_groups.append((op, found))
            self.plain_group[event] = 1 + group
            places += [place for _, place in found]
            like += [place for _, place in self.plain_groups[group][1]]
        self.plain, self.plain_like = np.array(places, dtype=np.intp), np.array(like, dtype=np.intp)
        self.tuples = [place for place in places if type(flat[place]) is tuple]

    def _learn_sites(self) -> None:
        called = list(zip(self._codes, self.instructions, strict=True))
        numbers: dict[tuple[int, int], int] = {}
        self.site = np.array([numbers.setdefault((id(code), at), len(numbers)) for code, at in called])
        self.sites = [called[int(np.argmax(self.site == number))] for number in range(len(numbers))]
        self.site_table = Table()
        for code, at in self.sites:
            self.site_table.number((id(code), at), encoded(site_entry(code, at)))

    def _event_rows(self, op_numbers: Mapping[str, int]) -> np.ndarray:
        events = np.zeros(self.length, dtype=EVENT)
        events["kind"] = OPERATION
        events["name"] = [op_numbers[op.name] for op in self.ops]
        outputs = np.bincount((*self.made_at, *self.written_at), minlength=self.length)
        links = np.array(self.link_counts, dtype=np.int64)
        events["outputs"], events["links"] = outputs, links
        events["first_link"], events["first_output"] = np.cumsum(links) - links, np.cumsum(outputs) - outputs
        for field, name in enumerate(("sequence", "layer", "head")):
            events[name] = [NONE if scoped[field] is None else scoped[field] for scoped in self._scoped]
        return events

    def event_rows(self, rooms: Any, sites: Any, arguments: Any) -> np.ndarray:
        """The rows of events without time and step, with these numbers of stages and parts, sites and arguments."""
        numbered = rooms, sites, arguments
        if numbered != self._numbered:
            self._numbered, events = None, self._events  # an interrupt may come
            events["stage"], events["part"] = np.array(rooms)[self.room].T
            events["site"] = np.array(sites)[self.site]
            events["args"] = np.array(arguments)[self.plain_group]
            self._numbered = numbered
        return self._events.copy()


def _bind(bound: Bound, place: int, to: int, writes: int = 0) -> None:
    bound.places.append(place)
    bound.to.append(to)
    bound.writes.append(writes)


def _supported(batch: HeldOperations, buffers: Buffers) -> int:
    """How many operations from the first on are of the common sort: on the host, with one result or one write."""
    for number, (op, args, kwargs, _, result, *_) in enumerate(batch.operations()):
        values = (*args, *(kwargs or {}).values())
        if not all(is_plain(value) or id(value) in buffers.weights or _is_near(value) for value in values):
            return number
        if op.writes is not None:
            if op.out or result is not None:
                return number
        elif op.out:
            made = result if len(op.out) > 1 else (result,)
            if op.name.startswith(ALLOCATES) or len(made) != len(op.out) or not all(map(_is_near, made)):
                return number
            if any(
                id(each) in buffers.weights or buffers.lasting_of(each) is not None
                for each in owners_of(made)
            ):
                return number
        elif result is not None:
            return number
    return len(batch)


def _is_near(value: Any) -> bool:
    """Whether a value is an array of NumPy that owns its memory, or a window on one that does."""
    return type(value) is np.ndarray and (
        value.base is None or (type(value.base) is np.ndarray and value.base.base is None)
    )
