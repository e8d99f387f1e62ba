"""Which array each argument of a step was: a weight, a result, or a window on a result or a cache.

Learned once, and looked at again in the next step, for which it gives the rows of links and outputs.
"""

from collections.abc import Sequence
from operator import call
from types import NoneType
from typing import NamedTuple

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.tracing.array_headers import BASE, DATA, headers
from haaw.tracing.buffers import Buffers, Lasting
from haaw.tracing.object_words import types_of
from haaw.tracing.schema import LINK, NOT_IN_A_LIST, OUTPUT
from haaw.tracing.segment import Segment
from haaw.tracing.step_arguments import Argument, Given
from haaw.tracing.step_layouts import StepLayouts
from haaw.tracing.step_results import Made, StepResults


def owners_of(results: Sequence[np.ndarray]) -> list[Array]:
    """The arrays that own the memory of results, each a window at most once removed."""
    return [result if result.base is None else result.base for result in results]


class Memory(NamedTuple):
    """Where the arrays of a batch lie: its results, and behind them its windows and what it reads of caches."""

    owners: list[Array]
    """Of the results."""
    headers: np.ndarray
    offsets: np.ndarray
    """Of each array in its owner, in bytes."""
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
        value_at = {each.place: each.value for each in rows}
        self.told_places = [*weights.places, *read.places]
        """Arguments of which the identity is looked at."""
        self._weight_places, self._read_places = weights.column("places"), read.column("places")
        self._weight_identities = np.array([id(value_at[place]) for place in weights.places], dtype=np.int64)
        self.view_places = np.concatenate((windows.column("places"), cached.column("places")))
        self.layouts = StepLayouts([*made, *(value_at[place] for place in self.view_places.tolist())])
        self._read_to, self._windows_to, self._cached_to = (
            each.column("to") for each in (read, windows, cached)
        )
        self._cached_before = cached.column("more")
        self._learn_links(rows, weights, read)
        self._learn_outputs(ops, results, written)

    def _learn_caches(
        self, ops: Sequence[Op], argumentss: Sequence[list[Argument]], buffers: Buffers
    ) -> None:
        """Which buffers the step writes to."""
        targets = [
            _target(op, arguments).value
            for op, arguments in zip(ops, argumentss, strict=True)
            if op.writes is not None
        ]
        found = [buffers.lasting_of(target) for target in targets]
        self.lasting: list[Lasting] = list({id(last): last for last in found if last is not None}.values())
        self._cache_refs = [last.ref for last in self.lasting]
        self._cache_keys = [id(last.ref()) for last in self.lasting]
        self._cache_identities = np.array(self._cache_keys, dtype=np.int64)
        self._cache_numbers = np.array([last.number for last in self.lasting], dtype=np.int64)

    def _learn_links(self, rows: Sequence[Argument], weights: "_Bound", read: "_Bound") -> None:
        self._links = np.zeros(len(rows), dtype=LINK)
        self._links["slot"] = [each.slot for each in rows]
        self._links["item"] = NOT_IN_A_LIST
        weight_rows = self._rows(weights.places)
        self._links["buffer"][weight_rows], self._links["layout"][weight_rows] = weights.to, weights.more
        self._read_rows, self._view_rows = self._rows(read.places), self._rows(self.view_places.tolist())

    def _learn_outputs(self, ops: Sequence[Op], results: StepResults, written: "_Bound") -> None:
        writing = [event for event, op in enumerate(ops) if op.writes is not None]
        events = np.concatenate((results.events, np.array(writing, dtype=np.intp)))
        self.output_counts = np.bincount(events, minlength=len(ops))
        rows = np.argsort(np.argsort(events, kind="stable"))  # several results of one operation stay in order
        self._outputs = np.zeros(len(events), dtype=OUTPUT)
        self.made_rows, self._written_rows = rows[: len(results)], rows[len(results) :]
        self._written_links = self._rows(written.places)
        self._written_to, self._writes_until = written.column("to"), written.column("more")

    def _rows(self, places: Sequence[int]) -> np.ndarray:
        return np.array([self.link_row[place] for place in places], dtype=np.intp)

    def match(self, given: Given, made: Made, buffers: Buffers) -> Memory | None:
        """The arrays' memory, if every result has its own, new, and every argument is bound to what it was bound to."""
        results, views = made.identities, given.identities[self.view_places]
        count = len(results)
        found = headers(np.concatenate((results, views)))
        made_bases, view_bases = found[:count, BASE], found[count:, BASE]
        if (
            (given.identities[self._weight_places] != self._weight_identities).any()
            or (given.identities[self._read_places] != results[self._read_to]).any()
            or ((made_bases == 0) != self._is_owner).any()
        ):
            return None
        viewed = made_bases[self._viewed]
        caches = self._live_caches(buffers)  # which holds them while their headers are read
        if (types_of(viewed) != id(np.ndarray)).any() or caches is None:
            return None
        bases = headers(np.concatenate((viewed, self._cache_identities)))
        if bases[: len(viewed), BASE].any():
            return None
        owned = results.copy()
        owned[self._viewed] = viewed
        if not _are_new(owned.tolist(), buffers):
            return None
        # A cache's buffer may be read whole: then it is no window, and has no base.
        read = np.where(view_bases == 0, views, view_bases)
        if (read != np.concatenate((owned[self._windows_to], self._cache_identities[self._cached_to]))).any():
            return None
        owners = list(made.arrays)
        for place in self._viewed.tolist():
            owners[place] = made.arrays[place].base
        starts = found[:count, DATA].copy()
        starts[self._viewed] = bases[: len(viewed), DATA]
        view_starts = starts[self._windows_to], bases[len(viewed) :, DATA][self._cached_to]
        versions = np.array([last.version for last in self.lasting], dtype=np.int64)
        return Memory(owners, found, found[:, DATA] - np.concatenate((starts, *view_starts)), versions)

    def _live_caches(self, buffers: Buffers) -> list[Array] | None:
        """The buffers that the step writes to, if all are still alive, and still the ones that are known."""
        if list(map(buffers.lasting.get, self._cache_keys)) != self.lasting:
            return None
        caches = list(map(call, self._cache_refs))
        return None if NoneType in map(type, caches) else caches

    def links(
        self, given: Given, memory: Memory, layouts: np.ndarray, buffers: Buffers, segment: Segment
    ) -> np.ndarray | None:
        """The rows of links; None if an array from outside the step is not of the sort that it was of."""
        links = self._links.copy()  # the slots and the weights' buffers and layouts stand there
        first, count, windows = buffers.next_number, len(memory.owners), len(self._windows_to)
        links["buffer"][self._read_rows] = first + self._read_to
        links["layout"][self._read_rows] = layouts[self._read_to]
        window_rows, cached_rows = self._view_rows[:windows], self._view_rows[windows:]
        links["layout"][self._view_rows] = layouts[count:]
        links["buffer"][window_rows] = first + self._windows_to
        links["buffer"][cached_rows] = self._cache_numbers[self._cached_to]
        links["version"][cached_rows] = memory.versions[self._cached_to] + self._cached_before
        links["offset"][self._view_rows] = memory.offsets[count:] // self.layouts.itemsizes[count:]
        for place, is_lasting in self._outside:
            value = given.value(place)
            window = buffers.locate(value)
            if (
                window is None
                or window[0] in self._cache_numbers.tolist()
                or (buffers.lasting_of(value) is not None) != is_lasting
            ):
                return None
            row = self.link_row[place]
            links[row] = (links["slot"][row], NOT_IN_A_LIST, segment.layout(value)[0], *window)
        return links

    def outputs(self, memory: Memory, layouts: np.ndarray, links: np.ndarray, buffers: Buffers) -> np.ndarray:
        """The rows of outputs, without the hashes."""
        outputs, count = self._outputs.copy(), len(memory.owners)
        outputs["buffer"][self.made_rows] = buffers.next_number + np.arange(count)
        outputs["layout"][self.made_rows] = layouts[:count]
        outputs["offset"][self.made_rows] = memory.offsets[:count] // self.layouts.itemsizes[:count]
        written = links[self._written_links]
        for name in ("buffer", "layout", "offset"):
            outputs[name][self._written_rows] = written[name]
        outputs["version"][self._written_rows] = memory.versions[self._written_to] + self._writes_until
        return outputs


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

    def column(self, name: str) -> np.ndarray:
        return np.array(getattr(self, name), dtype=np.int64)


def _target(op: Op, arguments: Sequence[Argument]) -> Argument:
    """The argument that an operation writes to."""
    return next(each for each in arguments if op.parameters[each.slot] == op.writes)


def _are_new(owned: Sequence[int], buffers: Buffers) -> bool:
    """Whether the memory of the results, by the identity of its owner, is not known yet, each its own."""
    found = set(owned)
    return (
        len(found) == len(owned)
        and buffers.weights.keys().isdisjoint(found)
        and buffers.lasting.keys().isdisjoint(found)
        and not any(buffers.fresh[key][0]() is not None for key in buffers.fresh.keys() & found)
    )
