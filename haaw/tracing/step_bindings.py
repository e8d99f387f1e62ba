"""Which array each argument of a step was: a weight, a result, or a window on a result or a cache.

Learned once, and looked at again in the next step, for which it gives the rows of links and outputs.
"""

from collections.abc import Sequence
from operator import call
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.tracing.array_headers import BASE, DATA
from haaw.tracing.buffers import Buffers, Lasting
from haaw.tracing.object_words import TYPE
from haaw.tracing.questions import Questions, Room
from haaw.tracing.schema import LINK, NOT_IN_A_LIST, OUTPUT
from haaw.tracing.segment import Segment
from haaw.tracing.step_arguments import Argument, Given
from haaw.tracing.step_array_rows import ArrayRows, Found
from haaw.tracing.step_layouts import StepLayouts
from haaw.tracing.step_results import StepResults


def owners_of(results: Sequence[np.ndarray]) -> list[Array]:
    """The arrays that own the memory of results, each a window at most once removed."""
    return [result if result.base is None else result.base for result in results]


_WITH_WHOLE_HASHES = np.dtype(
    [(name, "V16" if name == "hash" else OUTPUT[name]) for name in OUTPUT.names or ()]
)
"""`OUTPUT`, whose hashes NumPy copies as one piece instead of byte by byte."""


class _Caches(NamedTuple):
    """The buffers that a step writes to: in one piece, since an interrupt may come while another takes its place."""

    lasting: list[Lasting]
    refs: list[Any]
    numbers: np.ndarray
    places: np.ndarray
    """Of their versions."""
    renumbered: int
    """How often `Buffers` had renumbered one by then."""


def _caches_of(lasting: list[Lasting], renumbered: int) -> _Caches:
    numbers, places = (
        np.array([getattr(last, name) for last in lasting], dtype=np.int64) for name in ("number", "place")
    )
    return _Caches(lasting, [last.ref for last in lasting], numbers, places, renumbered)


class Memory(NamedTuple):
    """Where the arrays of a batch lie: its results, and behind them its windows and what it reads of caches."""

    owners: list[Array]
    """Of the results."""
    offsets: np.ndarray
    """Of each array in its owner, in elements, and 0 behind the last."""
    versions: np.ndarray
    """Of the caches' buffers, before the batch."""


class StepBindings:
    """What the arguments that are arrays are bound to."""

    def __init__(
        self, ops: Sequence[Op], argumentss: Sequence[list[Argument]], results: StepResults, made: Sequence[Array],
        buffers: Buffers,
    ) -> None:  # fmt: skip
        self._viewed, self._is_owner = results.viewed, results.is_owner
        self._learn_caches(ops, argumentss, buffers)
        result_of = {id(array): number for number, array in enumerate(made) if array.base is None}
        owner_of = {id(array): number for number, array in enumerate(owners_of(made))}
        cache_of = {id(last): number for number, last in enumerate(self.lasting)}
        weights, read, windows, cached, written = (_Bound() for _ in range(5))
        self.roots: list[tuple[int, int, int]] = []
        """What is written to a cache: event, slot and place."""
        self._outside: list[tuple[int, bool]] = []
        """Places of what was there before the step, and whether it is a buffer that outlives steps."""
        writes = [0] * len(self.lasting)
        rows: list[Argument] = []
        for op, arguments in zip(ops, argumentss, strict=True):
            for each in (each for each in arguments if type(each.value) is np.ndarray):
                value, place = each.value, each.place
                rows.append(each)
                lasting = buffers.lasting_of(value)
                if (weight := buffers.weights.get(id(value))) is not None:
                    weights.add(place, *weight)
                elif (number := result_of.get(id(value))) is not None:
                    read.add(place, number)
                elif value.base is not None and (number := owner_of.get(id(value.base))) is not None:
                    windows.add(place, number)
                elif (number := cache_of.get(id(lasting))) is not None:
                    cached.add(place, number, writes[number])
                else:
                    self._outside.append((place, lasting is not None))
                if op.writes is not None and op.parameters[each.slot] != op.writes and lasting is None:
                    self.roots.append((each.event, each.slot, place))
            if op.writes is not None:
                target = _target(op, arguments)
                number = cache_of[id(buffers.lasting_of(target.value))]
                writes[number] += 1
                written.add(target.place, number, writes[number])
        self.write_counts = np.array(writes, dtype=np.int64)
        self.link_row = {each.place: row for row, each in enumerate(rows)}
        self.link_counts = np.bincount([each.event for each in rows], minlength=len(ops))
        self.told_places = [*weights.places, *read.places]
        """Arguments of which the identity is looked at."""
        self.view_places = [*windows.places, *cached.places]
        value_at = {each.place: each.value for each in rows}
        views = [value_at[place] for place in self.view_places]
        self.layouts = StepLayouts([*made, *views], len(made))
        self._is_window = np.array([view.base is not None for view in views], dtype=bool)
        """Of each view; a cache's buffer may be read whole."""
        self._weight_identities = [id(value_at[place]) for place in weights.places]
        self._weights, self._read, self._windows, self._cached = weights, read, windows, cached
        self._learn_links(rows)
        self._learn_outputs(ops, results, written)

    def _learn_caches(
        self, ops: Sequence[Op], argumentss: Sequence[list[Argument]], buffers: Buffers
    ) -> None:
        """Which buffers the step writes to."""
        targets = [
            _target(op, arguments)
            for op, arguments in zip(ops, argumentss, strict=True)
            if op.writes is not None
        ]
        first_place: dict[Lasting, int] = {}
        for target in targets:
            lasting = buffers.lasting_of(target.value)
            assert lasting is not None
            first_place.setdefault(lasting, target.place)
        self._first_written = list(first_place.values())
        self._caches = _caches_of(list(first_place), buffers.renumbered)

    @property
    def lasting(self) -> list[Lasting]:
        """The buffers that the step writes to."""
        return self._caches.lasting

    @property
    def cache_places(self) -> np.ndarray:
        """Where the versions of these buffers stand in `Buffers.versions`."""
        return self._caches.places

    def _learn_links(self, rows: Sequence[Argument]) -> None:
        template = np.zeros(len(rows), dtype=LINK)
        template["slot"] = [each.slot for each in rows]
        template["item"] = NOT_IN_A_LIST
        results = len(self._is_owner)
        self._links = links = ArrayRows(template, results + len(self.view_places))
        weights, read, windows, cached = self._weights, self._read, self._windows, self._cached
        links.weights(self._rows(weights.places), weights.to, weights.more)
        links.results(self._rows(read.places), read.to, read.to)
        views = results + np.arange(len(self.view_places))
        links.results(self._rows(windows.places), views[: len(windows.places)], windows.to)
        links.cached(self._rows(cached.places), views[len(windows.places) :], cached.to, cached.more)

    def _learn_outputs(self, ops: Sequence[Op], results: StepResults, written: "_Bound") -> None:
        writing = [event for event, op in enumerate(ops) if op.writes is not None]
        events = np.concatenate((results.events, np.array(writing, dtype=np.intp)))
        self.output_counts = np.bincount(events, minlength=len(ops))
        rows = np.argsort(np.argsort(events, kind="stable"))  # several results of one operation stay in order
        count = len(results)
        template = np.zeros(len(events), dtype=OUTPUT)
        self._outputs = outputs = ArrayRows(template, count + len(self.view_places))
        self._hashes, self._made_rows = template.view(_WITH_WHOLE_HASHES)["hash"], rows[:count]
        outputs.results(rows[:count], np.arange(count), np.arange(count))
        targets = [count + self.view_places.index(place) for place in written.places]
        outputs.cached(rows[count:], targets, written.to, written.more)

    def _rows(self, places: Sequence[int]) -> np.ndarray:
        return np.array([self.link_row[place] for place in places], dtype=np.intp)

    # What is asked of a step, in the order of the rounds.

    def leave(self, questions: Questions) -> None:
        """Leaves room for the identities of the weights, which stay, and of the buffers of caches."""
        self._weights_room = questions.constants(self._weight_identities)
        self._caches_room = questions.leave(len(self.lasting))

    def ask_results(self, questions: Questions, made: Room) -> Room:
        """Asks where the results (arrays, for certain) lie; gives the owners of those that do not own their memory."""
        at, viewed = made.at, self._viewed
        questions.ask(at[self._is_owner], BASE, expected=0)
        self._made_pointers = self.layouts.ask_headers(questions, at, slice(0, len(at)))
        self._bases = questions.ask(at[viewed], BASE)
        self._result_data = questions.ask(at, DATA)
        self._made, self._owner_at = at, at.copy()
        self._owner_at[viewed] = self._bases.at
        return self._bases

    def ask_views(self, questions: Questions, arguments_at: np.ndarray) -> None:
        """Asks for the arguments that are arrays; where their identities stand is told by their places."""
        questions.same(arguments_at[self._weights.places], self._weights_room.at)
        questions.same(arguments_at[self._read.places], self._made[self._read.to])
        questions.ask(self._bases.at, TYPE, expected=id(np.ndarray))
        at, is_window = arguments_at[self.view_places], self._is_window
        self._view_pointers = self.layouts.ask_headers(questions, at, slice(len(self._made), None))
        self.layouts.ask_extents(questions, self._made_pointers)
        owner_at = at.copy()  # a cache's buffer that is read whole is its own owner
        owner_at[is_window] = questions.ask(at[is_window], BASE).at
        questions.same(
            owner_at,
            np.concatenate((self._owner_at[self._windows.to], self._caches_room.at[self._cached.to])),
        )
        self._view_data = questions.ask(at, DATA)

    def ask_owners(self, questions: Questions) -> None:
        """Asks where the memory begins that the windows are windows on."""
        count, bases = len(self._made), self._bases.at
        questions.ask(bases, BASE, expected=0)
        starts = self._result_data.at
        starts[self._viewed] = questions.ask(bases, DATA).at
        cache_starts = questions.ask(self._caches_room.at, DATA).at
        self.layouts.ask_extents(questions, self._view_pointers)
        self._windowed = np.concatenate((self._viewed, count + np.arange(len(self.view_places))))
        self._itemsizes = self.layouts.itemsizes[self._windowed]
        self._data_at = np.concatenate((self._result_data.at[self._viewed], self._view_data.at))
        self._start_at = np.concatenate(
            (starts[self._viewed], starts[self._windows.to], cache_starts[self._cached.to])
        )

    # What comes of the answers.

    def caches(self, given: Given, buffers: Buffers, questions: Questions) -> list[Array] | None:
        """The buffers that the step writes to: those of the step before, or those of another cache in their place.

        None if it writes to something else. A cache that grew has other buffers, and so has another request.
        """
        caches = list(map(call, self._caches.refs)) if self._are_written(given, buffers) else [None]
        if NoneType in map(type, caches):
            targets = list(map(given.value, self._first_written))
            if any(type(target) is not np.ndarray for target in targets):
                return None
            found = list(map(buffers.lasting_of, targets))
            lasting = [last for last in found if last is not None]
            if len(set(lasting)) < len(targets):  # one is no cache, or the same as another
                return None
            self._caches = _caches_of(lasting, buffers.renumbered)
            caches = list(map(call, self._caches.refs))
        questions.give(self._caches_room, caches)
        return caches

    def _are_written(self, given: Given, buffers: Buffers) -> bool:
        """Whether the first buffer that is written to is the one of before, and each has kept its number.

        Whether the others are written to is found when the answers are there.
        """
        if not self._first_written:
            return True
        target = given.value(self._first_written[0])
        known = self._caches
        return (
            type(target) is np.ndarray
            and buffers.lasting_of(target) is known.lasting[0]
            and buffers.renumbered == known.renumbered
        )

    def match(self, answers: np.ndarray, made: Sequence[Array], buffers: Buffers) -> Memory | None:
        """The arrays' memory, if that of each result is new, and its own."""
        if not buffers.are_new(answers.take(self._owner_at)):
            return None
        owners = list(made)
        for place in self._viewed.tolist():
            owners[place] = made[place].base
        offsets = np.zeros(len(made) + len(self.view_places) + 1, dtype=np.int64)
        bytes_behind = answers[self._data_at] - answers[self._start_at]
        offsets[self._windowed] = bytes_behind // self._itemsizes
        versions = buffers.versions.counts.take(self._caches.places)
        return Memory(owners, offsets, versions)

    def put_hashes(self, hashes: np.ndarray) -> None:
        """Fills in the hashes of the results (V16) in the rows of outputs."""
        self._hashes[self._made_rows] = hashes

    def rows(
        self, given: Given, memory: Memory, layouts: np.ndarray, buffers: Buffers, segment: Segment
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The rows of links, and those of outputs without hashes; `layouts` are the arrays', and 0 behind the last.

        None if an array from outside the step is not of the sort that it was of.
        """
        found = Found(buffers.next_number, self._caches.numbers, layouts, memory.offsets, memory.versions)
        links = self._links.rows(found)
        for place, is_lasting in self._outside:
            value = given.value(place)
            window = buffers.locate(value)
            if (
                window is None
                or window[0] in self._caches.numbers.tolist()
                or (buffers.lasting_of(value) is not None) != is_lasting
            ):
                return None
            row = self.link_row[place]
            links[row] = (links["slot"][row], NOT_IN_A_LIST, segment.layout(value)[0], *window)
        return links, self._outputs.rows(found)


class _Bound:
    """Arguments of one sort: their places among all, what each is bound to (by its number), and one thing more."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.to: list[int] = []
        self.more: list[int] = []

    def add(self, place: int, to: int, more: int = 0) -> None:
        self.places.append(place)
        self.to.append(to)
        self.more.append(more)


def _target(op: Op, arguments: Sequence[Argument]) -> Argument:
    """The argument that an operation writes to."""
    return next(each for each in arguments if op.parameters[each.slot] == op.writes)
