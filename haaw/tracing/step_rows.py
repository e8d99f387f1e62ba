"""The rows of a step that repeats the one before it, all of its operations together.

`match` holds a batch of operations against a `StepPlan`, by a few calls for all of them instead of many for each, and
gives the rows that noting them one by one would give; None if anything does not fit.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import call
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.ops.recorder import Scope
from haaw.tracing.array_headers import BASE, DATA, headers
from haaw.tracing.buffers import Buffers
from haaw.tracing.held import ARGS, CODE, END, INSTRUCTION, NAMED, OP, RESULT, SCOPE, START, HeldOperations
from haaw.tracing.object_words import sizes_of, types_of
from haaw.tracing.schema import NONE, NOT_IN_A_LIST
from haaw.tracing.segment import Segment
from haaw.tracing.step_layouts import NewLayout
from haaw.tracing.step_plan import PLACE_FIELDS, StepPlan, exact, is_plain, place_of, scope_fields


class Numbers(NamedTuple):
    """How the recorder numbers the site of a call and the plain arguments of an operation, and hashes an array."""

    site: Callable[[Any, int], int]
    arguments: Callable[[Op, tuple[Any, ...]], int]
    digest: Callable[[Any, int], bytes]
    digest_other: Callable[[Array], bytes]


class StepRows(NamedTuple):
    """The rows of a batch, numbered from its own beginning on, and what it does to the buffers."""

    events: np.ndarray
    links: np.ndarray
    outputs: np.ndarray
    owners: list[Array]
    """Of the results, in the order of their buffers' numbers."""
    layouts: np.ndarray
    """Of the results."""
    versions: np.ndarray
    """Of the plan's lasting buffers, as they were before the batch."""
    made: tuple[Array, ...]
    """The results."""
    named: list[Any]
    """The named arguments of all operations, one behind the other."""


def match(
    plan: StepPlan, batch: HeldOperations, segment: Segment, buffers: Buffers, numbers: Numbers
) -> StepRows | None:
    """The rows of the first `plan.length` operations of `batch`; None if they are not those of the plan.

    Changes nothing but the tables of `segment` that rows point into.
    """
    if not 0 < plan.length <= len(batch):
        return None
    found = batch.identities(plan.length)
    if (
        (found[:, OP] != plan.op_identities).any()
        or (found[:, CODE] != plan.code_identities).any()
        or batch.column(INSTRUCTION, plan.length) != plan.instructions
    ):
        return None
    scopes = _scopes(plan, batch, found[:, SCOPE])
    given = _Given.of(plan, batch, found)
    made = _made(plan, batch, found[:, RESULT])
    if scopes is None or given is None or made is None:
        return None
    memory = _bound_alike(plan, given, made, buffers)
    if memory is None:
        return None
    count = len(made.arrays)

    def array_at(place: int) -> Array:
        return made.arrays[place] if place < count else given.value(int(plan.view_places[place - count]))

    numbered = plan.layouts.numbers(memory.headers, array_at, segment)
    if numbered is None:
        return None
    layouts, new = numbered
    versions = np.array([last.version for last in plan.lasting], dtype=np.int64)
    links = _links(plan, given, memory, layouts, versions, buffers, segment)
    if links is None:
        return None
    outputs = _outputs(plan, memory, layouts, links, versions, buffers)
    outputs["hash"][plan.made_rows] = _hashes(plan, made.arrays, new, numbers)
    events = _events(plan, given, scopes[0], segment, numbers)
    starts, ends = (
        np.fromiter(batch.column(part, plan.length), dtype=np.int64, count=plan.length)
        for part in (START, END)
    )
    events["start_ns"], events["took_ns"] = starts, ends - starts
    return StepRows(
        events, links, outputs, memory.owners, layouts[:count], versions, made.arrays, given.named
    )


class _Given(NamedTuple):
    """The arguments of all operations, those by position first."""

    plan: StepPlan
    batch: HeldOperations
    identities: np.ndarray
    named: list[Any]

    @classmethod
    def of(cls, plan: StepPlan, batch: HeldOperations, found: np.ndarray) -> "_Given | None":
        """The arguments, if there are as many, under the same names and, if they are no arrays, alike."""
        args = found[:, ARGS]
        if ((found[:, NAMED] != id(None)) != plan.is_named).any() or (sizes_of(args) != plan.counts).any():
            return None
        named = plan.pick_named(batch.parts)
        if list(map(tuple, named)) != plan.names:
            return None
        values = [*chain.from_iterable(map(dict.values, named))]
        given = cls(plan, batch, plan.given_identities(args, values), values)
        if (types_of(given.identities[plan.typed]) != plan.types).any():
            return None
        if not all(is_plain(given.value(place)) for place in plan.tuples):
            return None
        # What is the same object is the same argument.
        others = np.flatnonzero(given.identities[plan.plain] != given.identities[plan.plain_like])
        one, other = (list(map(given.value, of[others].tolist())) for of in (plan.plain, plan.plain_like))
        if one != other:
            return None
        if 0 in one or plan.tuples:  # where to be equal is not enough, types being equal already
            one, other = list(map(exact, one)), list(map(exact, other))
        return given if one == other else None

    def value(self, place: int) -> Any:
        """The argument at a place."""
        return self.plan.given(self.batch, self.named, place)


class _Made(NamedTuple):
    """The results that are arrays, one behind the other."""

    arrays: tuple[Array, ...]
    identities: np.ndarray


def _made(plan: StepPlan, batch: HeldOperations, results: np.ndarray) -> _Made | None:
    """The results, if they are of the types that they were of, and as many."""
    if (types_of(results) != plan.result_types).any():
        return None
    if (sizes_of(results[plan.several_at]) != plan.several_counts).any():
        return None
    found = plan.made_identities(results)
    if (types_of(found) != id(np.ndarray)).any():
        return None
    return _Made(plan.made(batch.column(RESULT, plan.length)), found)


def _scopes(plan: StepPlan, batch: HeldOperations, found: np.ndarray) -> tuple[Scope, ...] | None:
    """The scopes, if the operations stand in the places that they stood in, all in one step of one request."""
    if (found != found[plan.scope_starts]).any():
        return None
    fields = scope_fields(found[plan.first_scopes])
    scopes = plan.pick_scopes(batch.parts)
    # What is the same object is equal; what is not may be.
    if (fields[:, :PLACE_FIELDS] != plan.place_fields).any() and list(map(place_of, scopes)) != plan.places:
        return None
    if (fields[:, PLACE_FIELDS:] != fields[0, PLACE_FIELDS:]).any():
        return scopes if len({(scope.step, scope.request) for scope in scopes}) == 1 else None
    return scopes


class _Memory(NamedTuple):
    """Where the arrays of a batch lie: its results, and behind them its windows and what it reads of caches."""

    owners: list[Array]
    """Of the results."""
    headers: np.ndarray
    offsets: np.ndarray
    """Of each array in its owner, in bytes."""


def _bound_alike(plan: StepPlan, given: _Given, made: _Made, buffers: Buffers) -> _Memory | None:
    """The arrays' memory, if every result has its own, new, and every argument is bound to what it was bound to."""
    results, views = made.identities, given.identities[plan.view_places]
    count = len(results)
    found = headers(np.concatenate((results, views)))
    made_bases, view_bases = found[:count, BASE], found[count:, BASE]
    if (
        (given.identities[plan.weight_places] != plan.weight_identities).any()
        or (given.identities[plan.read_places] != results[plan.read_to]).any()
        or ((made_bases == 0) != plan.is_owner).any()
    ):
        return None
    viewed = made_bases[plan.viewed]
    if (types_of(viewed) != id(np.ndarray)).any():
        return None
    if list(map(buffers.lasting.get, plan.cache_keys)) != plan.lasting:
        return None
    if NoneType in map(type, map(call, plan.cache_refs)):  # one of them is gone
        return None
    bases = headers(np.concatenate((viewed, plan.cache_identities)))
    if bases[: len(viewed), BASE].any():
        return None
    owned = results.copy()
    owned[plan.viewed] = viewed
    if not _are_new(owned.tolist(), buffers):
        return None
    # A cache's buffer may be read whole: then it is no window, and has no base.
    read = np.where(view_bases == 0, views, view_bases)
    if (read != np.concatenate((owned[plan.windows_to], plan.cache_identities[plan.cached_to]))).any():
        return None
    owners = list(made.arrays)
    for place in plan.viewed.tolist():
        owners[place] = made.arrays[place].base
    starts = found[:count, DATA].copy()
    starts[plan.viewed] = bases[: len(viewed), DATA]
    view_starts = starts[plan.windows_to], bases[len(viewed) :, DATA][plan.cached_to]
    return _Memory(owners, found, found[:, DATA] - np.concatenate((starts, *view_starts)))


def _are_new(owned: Sequence[int], buffers: Buffers) -> bool:
    """Whether the memory of the results, by the identity of its owner, is not known yet, each its own."""
    found = set(owned)
    return (
        len(found) == len(owned)
        and buffers.weights.keys().isdisjoint(found)
        and buffers.lasting.keys().isdisjoint(found)
        and not any(buffers.fresh[key][0]() is not None for key in buffers.fresh.keys() & found)
    )


def _links(
    plan: StepPlan,
    given: _Given,
    memory: _Memory,
    layouts: np.ndarray,
    versions: np.ndarray,
    buffers: Buffers,
    segment: Segment,
) -> np.ndarray | None:
    links = plan.links.copy()  # the slots and the weights' buffers and layouts stand there
    first = buffers.next_number
    links["buffer"][plan.read_rows] = first + plan.read_to
    links["layout"][plan.read_rows] = layouts[plan.read_to]
    view_rows = plan.view_rows
    windows, count = len(plan.windows_to), len(memory.owners)
    links["layout"][view_rows] = layouts[count:]
    links["buffer"][view_rows[:windows]] = first + plan.windows_to
    links["buffer"][view_rows[windows:]] = plan.lasting_numbers[plan.cached_to]
    links["version"][view_rows[windows:]] = versions[plan.cached_to] + plan.cached_before
    links["offset"][view_rows] = memory.offsets[count:] // plan.layouts.itemsizes[count:]
    for place, is_lasting in plan.outside:
        value = given.value(place)
        window = buffers.locate(value)
        if (
            window is None
            or window[0] in plan.written_numbers
            or (buffers.lasting_of(value) is not None) != is_lasting
        ):
            return None
        row = plan.link_row[place]
        links[row] = (links["slot"][row], NOT_IN_A_LIST, segment.layout(value)[0], *window)
    return links


def _outputs(
    plan: StepPlan,
    memory: _Memory,
    layouts: np.ndarray,
    links: np.ndarray,
    versions: np.ndarray,
    buffers: Buffers,
) -> np.ndarray:
    outputs = plan.outputs.copy()
    count = len(memory.owners)
    outputs["buffer"][plan.made_rows] = buffers.next_number + np.arange(count)
    outputs["layout"][plan.made_rows] = layouts[:count]
    outputs["offset"][plan.made_rows] = memory.offsets[:count] // plan.layouts.itemsizes[:count]
    written = links[plan.written_links]
    for name in ("buffer", "layout", "offset"):
        outputs[name][plan.written_rows] = written[name]
    outputs["version"][plan.written_rows] = versions[plan.written_to] + plan.writes_until
    return outputs


def _hashes(plan: StepPlan, made: Sequence[Array], new: Sequence[NewLayout], numbers: Numbers) -> np.ndarray:
    seeds, contiguous = plan.seeds.copy(), plan.contiguous.copy()
    for places, seed, is_contiguous in new:
        for place in places[places < len(made)].tolist():
            seeds[place], contiguous[place] = seed, is_contiguous
    if all(contiguous):
        digests = list(map(numbers.digest, made, seeds))
    else:
        digests = [
            numbers.digest(array, seed) if whole else numbers.digest_other(array)
            for array, seed, whole in zip(made, seeds, contiguous, strict=True)
        ]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def _events(plan: StepPlan, given: _Given, scope: Scope, segment: Segment, numbers: Numbers) -> np.ndarray:
    rooms = tuple(
        (segment.stages.number(stage, stage or ""), segment.parts.number(part, part or ""))
        for stage, part in plan.rooms
    )
    if segment.sites.entries:
        sites = tuple(numbers.site(code, at) for code, at in plan.sites)
    else:
        segment.sites.begin_like(plan.site_table)
        sites = tuple(range(len(plan.sites)))
    arguments = [0]
    for op, slots in plan.plain_groups:
        plain: tuple[Any, ...] = ()
        for slot, place in slots:
            plain += (slot, given.value(place))
        arguments.append(numbers.arguments(op, plain))
    events = plan.event_rows(rooms, sites, tuple(arguments))
    events["step"] = NONE if scope.step is None else scope.step
    events["request"] = scope.request or 0
    return events
