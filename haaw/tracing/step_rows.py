"""The rows of a step that repeats the one before it, all of its operations together.

`match` holds a batch of operations against a `StepPlan`, by a few calls for all of them instead of many for each, and
gives the rows that noting them one by one would give; None if anything does not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import is_not
from typing import Any, NamedTuple

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.ops.recorder import Scope
from haaw.tracing.array_headers import BASE, DATA, headers, identities
from haaw.tracing.buffers import Buffers, Lasting
from haaw.tracing.held import WIDTH, HeldOperations
from haaw.tracing.schema import NONE, NOT_IN_A_LIST
from haaw.tracing.segment import Segment
from haaw.tracing.step_plan import StepPlan, is_plain, place_of


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
    versions: list[tuple[Lasting, int]]
    made: tuple[Array, ...]
    """The results."""
    flat: list[Any]
    """The arguments of all operations, one behind the other."""


def match(
    plan: StepPlan, batch: HeldOperations, segment: Segment, buffers: Buffers, numbers: Numbers
) -> StepRows | None:
    """The rows of the first `plan.length` operations of `batch`; None if they are not those of the plan.

    Changes nothing but the tables of `segment` that rows point into.
    """
    if not 0 < plan.length <= len(batch):
        return None
    ops, argss, kwargss, scopes, results, starts, ends, codes, instructions = (
        batch.column(part, plan.length) for part in range(WIDTH)
    )
    if ops != plan.ops or codes != plan.codes or instructions != plan.instructions:
        return None
    named = list(filter(None, kwargss))
    flat = [*chain.from_iterable(argss), *chain.from_iterable(map(dict.values, named))]
    if (
        list(map(bool, kwargss)) != plan.is_named
        or list(map(tuple, named)) != plan.names
        or list(map(len, argss)) != plan.counts
        or list(map(type, flat)) != plan.types
        or list(map(type, results)) != plan.result_types
        or any(len(results[event]) != count for event, count in plan.several)
        or not all(is_plain(flat[place]) for place in plan.tuples)
    ):
        return None
    made = plan.made(results)
    if list(map(type, made)) != plan.made_types:
        return None
    if not (_is_placed_alike(plan, scopes) and _has_like_arguments(plan, flat)):
        return None
    memory = _bound_alike(plan, flat, made, buffers)
    if memory is None:
        return None
    found = plan.layouts.numbers(memory.arrays, memory.headers, segment)
    if found is None:
        return None
    layouts, changed = found
    lasting = np.array([(last.number, last.version) for last in plan.lasting], dtype=np.int64)
    lasting = lasting.reshape(-1, 2).T
    links = _links(plan, flat, memory, layouts, lasting, buffers, segment)
    if links is None:
        return None
    outputs = _outputs(plan, memory, layouts, links, lasting, buffers)
    outputs["hash"][plan.made_rows] = _hashes(plan, made, changed, numbers)
    events = _events(plan, flat, scopes, segment, numbers)
    events["start_ns"] = starts
    events["took_ns"] = np.array(ends) - starts
    versions = [
        (last, last.version + writes)
        for last, writes in zip(plan.lasting, plan.write_counts, strict=True)
        if writes
    ]
    return StepRows(events, links, outputs, memory.owners, layouts[: len(made)], versions, made, flat)


class _Memory(NamedTuple):
    """Where the arrays of a batch lie: its results, and behind them its windows and what it reads of caches."""

    owners: list[Array]
    """Of the results."""
    arrays: list[Array]
    headers: np.ndarray
    offsets: np.ndarray
    """Of each array in its owner, in bytes."""


def _bound_alike(
    plan: StepPlan, flat: Sequence[Any], made: Sequence[Array], buffers: Buffers
) -> _Memory | None:
    """The arrays' memory, if every result has its own, new, and every argument is bound to what it was bound to."""
    given = identities(flat)
    arrays = [*made, *plan.pick_views(flat)]
    count = len(made)
    found = headers(arrays)
    made_bases, view_bases = found[:count, BASE], found[count:, BASE]
    results = identities(made)
    if not (
        np.array_equal(given[plan.weight_places], plan.weight_identities)
        and np.array_equal(given[plan.read_places], results[plan.read_to])
        and np.array_equal(made_bases == 0, plan.is_owner)
    ):
        return None
    owners = list(made)
    for place in plan.viewed:
        owners[place] = base = made[place].base
        if type(base) is not np.ndarray or base.base is not None:
            return None
    owned = np.where(made_bases == 0, results, made_bases)
    if not _are_new(owned.tolist(), buffers):
        return None
    caches: list[Array] = [last.ref() for last in plan.lasting]
    if any(
        type(cache) is not np.ndarray or buffers.lasting.get(id(cache)) is not last
        for cache, last in zip(caches, plan.lasting, strict=True)
    ):
        return None
    # A cache's buffer may be read whole: then it is no window, and has no base.
    read = np.where(view_bases == 0, given[plan.view_places], view_bases)
    bound = np.concatenate((owned[plan.windows_to], identities(caches)[plan.cached_to]))
    if not np.array_equal(read, bound):
        return None
    bases = [*(owners[place] for place in plan.viewed), *caches]
    base_data = headers(bases)[:, DATA]
    starts = found[:count, DATA].copy()
    starts[plan.viewed] = base_data[: len(plan.viewed)]
    view_starts = starts[plan.windows_to], base_data[len(plan.viewed) :][plan.cached_to]
    return _Memory(owners, arrays, found, found[:, DATA] - np.concatenate((starts, *view_starts)))


def _are_new(owned: Sequence[int], buffers: Buffers) -> bool:
    """Whether the memory of the results, by the identity of its owner, is not known yet, each its own."""
    found = set(owned)
    return (
        len(found) == len(owned)
        and buffers.weights.keys().isdisjoint(found)
        and buffers.lasting.keys().isdisjoint(found)
        and not any(buffers.fresh[key][0]() is not None for key in buffers.fresh.keys() & found)
    )


def _is_placed_alike(plan: StepPlan, scopes: Sequence[Scope]) -> bool:
    """Whether the operations stand in the places that they stood in, all in one step of one request."""
    if any(map(is_not, plan.scope_starts(scopes), scopes)):
        return False
    firsts = plan.first_scopes(scopes)
    return (
        list(map(place_of, firsts)) == plan.places
        and len({(scope.step, scope.request) for scope in firsts}) == 1
    )


def _has_like_arguments(plan: StepPlan, flat: Sequence[Any]) -> bool:
    """Whether the plain arguments that were equal to each other are so again."""
    plain, like = plan.plain(flat), plan.plain_like(flat)
    return plain == like and list(map(type, plain)) == list(map(type, like))


def _links(
    plan: StepPlan,
    flat: Sequence[Any],
    memory: _Memory,
    layouts: np.ndarray,
    lasting: np.ndarray,
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
    numbers, versions = lasting
    links["buffer"][view_rows[windows:]] = numbers[plan.cached_to]
    links["version"][view_rows[windows:]] = versions[plan.cached_to] + plan.cached_before
    links["offset"][view_rows] = memory.offsets[count:] // plan.layouts.itemsizes[count:]
    written = {last.number for last, writes in zip(plan.lasting, plan.write_counts, strict=True) if writes}
    for place, is_lasting in plan.outside:
        value = flat[place]
        window = buffers.locate(value)
        if window is None or window[0] in written or (buffers.lasting_of(value) is not None) != is_lasting:
            return None
        row = plan.link_row[place]
        links[row] = (links["slot"][row], NOT_IN_A_LIST, segment.layout(value)[0], *window)
    return links


def _outputs(
    plan: StepPlan,
    memory: _Memory,
    layouts: np.ndarray,
    links: np.ndarray,
    lasting: np.ndarray,
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
    outputs["version"][plan.written_rows] = lasting[1][plan.written_to] + plan.writes_until
    return outputs


def _hashes(
    plan: StepPlan, made: Sequence[Array], changed: Mapping[int, tuple[int, int, bool]], numbers: Numbers
) -> np.ndarray:
    seeds, contiguous = plan.seeds, plan.contiguous
    if changed:
        seeds, contiguous = seeds.copy(), contiguous.copy()
        for place, (_, seed, whole) in changed.items():
            if place < len(made):
                seeds[place], contiguous[place] = seed, whole
    if all(contiguous):
        digests = list(map(numbers.digest, made, seeds))
    else:
        digests = [
            numbers.digest(array, seed) if whole else numbers.digest_other(array)
            for array, seed, whole in zip(made, seeds, contiguous, strict=True)
        ]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def _events(
    plan: StepPlan, flat: Sequence[Any], scopes: Sequence[Scope], segment: Segment, numbers: Numbers
) -> np.ndarray:
    events = plan.events.copy()
    rooms = np.array(
        [
            (segment.stages.number(stage, stage or ""), segment.parts.number(part, part or ""))
            for stage, part in plan.rooms
        ]
    )
    events["stage"], events["part"] = rooms[plan.room].T
    events["step"] = NONE if scopes[0].step is None else scopes[0].step
    events["request"] = scopes[0].request or 0
    events["site"] = np.array([numbers.site(code, at) for code, at in plan.sites])[plan.site]
    arguments = [0]
    for op, slots in plan.plain_groups:
        plain: tuple[Any, ...] = ()
        for slot, place in slots:
            plain += (slot, flat[place])
        arguments.append(numbers.arguments(op, plain))
    events["args"] = np.array(arguments)[plan.plain_group]
    return events
