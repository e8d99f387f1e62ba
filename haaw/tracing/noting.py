"""The rows of a segment in the making, noted one event after another, by looking at every array that comes by.

This is the plain way. `noting_together.py` has the quick one, for steps that repeat the one before them.
"""

import contextlib
import itertools
import json
from collections.abc import Mapping
from time import perf_counter_ns
from types import CodeType
from typing import Any

import numpy as np

from haaw.arrays import Array, is_array, owner, to_host
from haaw.ops.op import OPS, Op
from haaw.ops.recorder import Operation, Scope
from haaw.ops.vocabulary import all_operations
from haaw.tracing.buffers import Buffers, OrphanError, Owners, UnknownOperationError, Window, offset
from haaw.tracing.hashing import array_hash, xxhash_library
from haaw.tracing.held import Batch
from haaw.tracing.keeping import Keeping
from haaw.tracing.schema import FACT, INPUT, NONE, NOT_IN_A_LIST, OPERATION
from haaw.tracing.segment import Segment, encoded, pack_place
from haaw.tracing.sink import Sink
from haaw.tracing.sites import site_entry
from haaw.tracing.step_arguments import PLAIN, exact

ALLOCATES = "kv_allocate"
"""So the names of operations begin that reserve memory."""

NO_HASH = bytes(16)

MOST_ARGUMENT_TEXTS = 1024
"""So many sets of arguments that are no arrays are remembered as they are written; some change in every step."""

OnDevice = tuple[int, int | None, int, Array, bool]
"""An array that is to come to the host: event, row in the outputs for its hash (or None), slot, values, keep or not."""

ToKeep = list[tuple[int, np.ndarray]]
"""Slots and values of one event that are to be kept."""


class Notes:
    """The segment in the making and the buffers that its rows point to. `hash_outputs="off"` leaves the hashes out."""

    def __init__(self, sink: Sink, keeping: Keeping, hash_outputs: str) -> None:
        self.segment = Segment(0, 0)
        self.buffers = Buffers()
        self.origin_ns = perf_counter_ns()
        self.op_numbers = _OpNumbers(sink)
        self.is_torn = False
        """Whether the segment has rows of an operation that was not noted to the end."""
        self.on_device_bytes = 0
        self.digest = xxhash_library().xxh3_128_digest if hash_outputs == "on" else _no_digest
        self._hashes = hash_outputs == "on"
        self._sink, self._keeping = sink, keeping
        self._sites: dict[
            tuple[int, int], tuple[CodeType, str]
        ] = {}  # holds the code: its identity stays its own
        self._argument_texts: dict[tuple[Any, ...], str] = {}
        self._scope: Scope | None = None
        self._where = b""
        self._on_device: list[OnDevice] = []
        self._unkept: tuple[int, ToKeep] | None = None  # an event, and its arrays that are being kept

    def begin(self, segment: Segment) -> None:
        """Goes on in another segment."""
        self._scope, self.segment, self.is_torn, self._unkept = None, segment, False, None

    def clear(self) -> None:
        """Lets go of every array."""
        self.segment, self._unkept = Segment(0, 0), None
        self._on_device.clear()
        self.buffers.clear()
        self._sites.clear()
        self._argument_texts.clear()

    def each(self, batch: Batch, first: int, owners: Owners) -> None:
        """Notes the operations from the one with number `first` on."""
        # A frame of its own, since its loop variable would keep the last operation's arrays alive.
        self.segment.make_room(len(batch) - first)
        for operation in batch.operations(first):
            self.operation(operation, owners)

    def rest(self, batch: Batch, first: int, owners: Owners) -> None:
        """After an error or an interrupt: what can be noted still is, so that caches that live on stay known."""
        self.is_torn = True
        if self._unkept is not None:
            self._keep_rest(*self._unkept)
        self.segment.make_room(len(batch))
        for operation in batch.operations(first):
            with contextlib.suppress(OrphanError):
                self.operation(operation, owners)

    def _keep_rest(self, event: int, to_keep: ToKeep) -> None:
        """Stores what an interrupt left out of the arrays of an event: caches of others may depend on it."""
        self._unkept = None
        if event >= self.segment.events.count:  # it will be noted anew
            return
        kept = self.segment.kept_slots
        for slot, value in to_keep:
            if (event, slot) not in kept:
                self._keep(event, slot, NOT_IN_A_LIST, value)

    def operation(self, operation: Operation, owners: Owners) -> None:
        """Notes an operation, whose results are held from now on; there must be room for the event.

        Errors: `OrphanError` where it reads an array that nothing in the log explains.
        """
        op, args, kwargs, scope, result, start, end, code, instruction = operation
        if scope is not self._scope:
            self.place(scope)
        segment, buffers = self.segment, self.buffers
        outputs, events, layouts = segment.outputs, segment.events, segment.layout_of
        first_link = segment.links.count
        plain = self._link_arguments(op, args, kwargs)
        arguments = self.arguments_number(op, plain) if plain else 0
        event, first_output = events.count, outputs.count
        to_keep: ToKeep = []
        if op.writes is not None:
            self._note_write(op, event, args, kwargs, to_keep)
        elif type(result) is np.ndarray and result.base is None and op.name[:11] != ALLOCATES:
            found = layouts.get((result.dtype, result.shape, result.strides))
            layout, seed, contiguous = found or segment.layout(result)
            digest = self.digest(result, seed) if contiguous else self.digest_other(result)
            number = buffers.hold(result, result, layout, owners)
            if first_output == outputs.limit:
                outputs.grow()
            outputs.pack_into(outputs.buffer, first_output * 30, number, 0, layout, 0, digest)
            outputs.count = first_output + 1
            if self._keeping.keeps_results and self._keeping.keeps(op.name, scope):
                to_keep.append((-1, result))
        else:
            self._note_outputs(op, event, result, scope, owners, to_keep)
        site = self.site_number(code, instruction)
        events.pack_into(
            events.buffer, event * 44,
            OPERATION, outputs.count - first_output, self.op_numbers[op.name], segment.links.count - first_link,
            self._where,
            site, arguments, first_link, first_output, start - self.origin_ns, end - start,
        )  # fmt: skip
        if to_keep:
            self._unkept = event, to_keep
        events.count = event + 1
        # Behind the count, since what an interrupt leaves half kept must not be taken for another event's.
        for slot, value in to_keep:
            self._keep(event, slot, NOT_IN_A_LIST, value)
        if to_keep:
            self._unkept = None

    def _link_arguments(
        self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[Any, ...]:
        """Links the arrays that an operation was given; the others come back, slots and values in turns."""
        segment, buffers = self.segment, self.buffers
        links, layouts = segment.links, segment.layout_of
        weights, held, lasting = buffers.weights, buffers.held, buffers.lasting
        plain: tuple[Any, ...] = ()
        for slot, value in enumerate(args):
            kind = type(value)
            if kind is np.ndarray:
                known = weights.get(id(value)) or held.get(id(value))
                if links.count == links.limit:
                    links.grow()
                if known is not None and known[1] >= 0:
                    links.pack_into(
                        links.buffer, links.count * 17, slot, NOT_IN_A_LIST, known[1], known[0], 0, 0
                    )
                    links.count += 1
                    continue
                base = value.base
                number, version = (0, 0)
                if (known := held.get(id(base))) is not None:  # a window on a result of this batch
                    number = known[0]
                elif (last := lasting.get(id(base))) is not None and last.ref() is base:  # on a cache
                    number, version = last.number, last.version
                else:
                    self._link(op, slot, NOT_IN_A_LIST, value)
                    continue
                layout = (layouts.get((value.dtype, value.shape, value.strides)) or segment.layout(value))[0]
                at = offset(value, base)
                links.pack_into(
                    links.buffer, links.count * 17, slot, NOT_IN_A_LIST, layout, number, version, at
                )
                links.count += 1
            elif kind in PLAIN or not self._link_other(op, slot, value):
                plain += (slot, value)
        if kwargs:
            for name, value in kwargs.items():
                slot = op.parameters.index(name)
                if type(value) in PLAIN or not self._link_other(op, slot, value):
                    plain += (slot, value)
        return plain

    def _window(self, op: Op, slot: int, array: Array) -> Window:
        window = self.buffers.locate(array)
        if window is None:
            raise OrphanError(
                f"{op.name} reads an array that nothing in the trace explains: {op.parameters[slot]} {array.shape} is "
                "no window on a weight, a declared input or an earlier result; compute it by an operation, or declare "
                "it"
            )
        return window

    def _link(self, op: Op, slot: int, item: int, array: Array) -> None:
        number, version, at = self._window(op, slot, array)
        layout = self.segment.layout_of.get((array.dtype, array.shape, array.strides))
        self.segment.links.append(slot, item, (layout or self.segment.layout(array))[0], number, version, at)

    def _link_other(self, op: Op, slot: int, value: Any) -> bool:
        """Links an array of another library, or a list of arrays; False if `value` is neither."""
        if is_array(value):
            self._link(op, slot, NOT_IN_A_LIST, value)
            return True
        if not isinstance(value, list | tuple) or not value or not is_array(value[0]):
            return False
        for item, each in enumerate(value):
            self._link(op, slot, item, each)
        return True

    def arguments_number(self, op: Op, plain: tuple[Any, ...]) -> int:
        """The number of the arguments that are no arrays, `plain` being slots and values in turns."""
        return self.segment.args.number(*self.written_arguments(op, plain))

    def written_arguments(self, op: Op, plain: tuple[Any, ...]) -> tuple[Any, str]:
        """What tells such arguments apart, and how they are written."""
        slots, values = plain[::2], plain[1::2]
        if {*map(type, values)} == {int}:  # positions, which change in every step: not remembered
            named = ", ".join(
                [f'"{op.parameters[slot]}": {value}' for slot, value in zip(slots, values, strict=True)]
            )
            return (op.name, slots, *zip(itertools.repeat(int), values)), f"{{{named}}}"
        key = op.name, slots, *map(exact, values)
        try:
            text = self._argument_texts.get(key)
        except TypeError:  # a list among them
            key = op.name, slots, *(exact(_hashable(value)) for value in values)
            text = self._argument_texts.get(key)
        if text is None:
            if len(self._argument_texts) >= MOST_ARGUMENT_TEXTS:
                self._argument_texts.clear()
            text = json.dumps({op.parameters[slot]: value for slot, value in zip(slots, values, strict=True)})
            self._argument_texts[key] = text
        return key, text

    def _note_outputs(
        self, op: Op, event: int, result: Any, scope: Scope, owners: Owners, to_keep: ToKeep
    ) -> None:
        """Notes several results, those of another library, and reserved memory: whatever the short way leaves."""
        segment, buffers = self.segment, self.buffers
        allocates = op.name.startswith(ALLOCATES)
        keeps = not allocates and self._keeping.keeps(op.name, scope)
        values = result if len(op.out) > 1 else (result,) if op.out else ()
        for number, value in enumerate(values):
            layout = segment.layout(value)[0]
            base = owner(value)
            at = 0 if base is value else offset(value, base)
            if allocates:  # all zeros, and reading it would make it real
                lasting = buffers.add_lasting(value)
                segment.outputs.append(lasting.number, 0, layout, at, NO_HASH)
                continue
            on_host = type(value) is np.ndarray
            digest = self.digest_other(value) if on_host else NO_HASH
            segment.outputs.append(buffers.hold(value, base, layout, owners), 0, layout, at, digest)
            if not on_host:
                self._later(event, segment.outputs.count - 1, -1 - number, value, keeps)
            elif keeps:
                to_keep.append((-1 - number, value))

    def digest_other(self, values: Array) -> bytes:
        """The hash of an array in any memory order and of any library."""
        return array_hash(values) if self._hashes else NO_HASH

    def _note_write(
        self, op: Op, event: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None, to_keep: ToKeep
    ) -> None:
        """A write makes a new version of its buffer; what it wrote and nothing else can give back is kept."""
        for slot, name in enumerate(op.parameters):
            value: Array = op.argument(name, args, kwargs)
            if type(value) in PLAIN or not is_array(value):
                continue
            lasting = self.buffers.lasting_of(value)
            if name == op.writes:
                if lasting is None:
                    raise OrphanError(
                        f"{op.name} writes to an array that is no buffer of a cache: {name} {value.shape}"
                    )
                lasting.is_written()
                at = 0 if value.base is None else offset(value, owner(value))
                layout = self.segment.layout(value)[0]
                self.segment.outputs.append(lasting.number, lasting.version, layout, at, NO_HASH)
            elif lasting is None and self._keeping.keeps_roots:
                if isinstance(value, np.ndarray):
                    to_keep.append((slot, value))
                else:
                    self._later(event, None, slot, value, keeps=True)

    def _keep(self, event: int, slot: int, item: int, value: np.ndarray) -> None:
        layout = self.segment.layout(value)[0]
        self._keeping.keep(self.segment, self._sink, event, slot, item, layout, value)

    def _later(self, event: int, row: int | None, slot: int, value: Array, keeps: bool) -> None:
        """A device's array comes to the host in a batch, so that nothing waits for a single operation."""
        if keeps or (self._hashes and row is not None):
            self._on_device.append((event, row, slot, value, keeps))
            self.on_device_bytes += int(value.nbytes)

    def fetch(self) -> None:
        """Brings what lies on devices to the host: hashes it, and keeps what is to be kept."""
        batch, self._on_device, self.on_device_bytes = self._on_device, [], 0
        for event, row, slot, value, keeps in batch:
            host = to_host(value)
            if row is not None:
                self.segment.outputs.set_hash(row, self.digest_other(host))
            if keeps:
                self._keep(event, slot, NOT_IN_A_LIST, host)

    def site_number(self, code: CodeType, instruction: int) -> int:
        """The number of the place of a call."""
        key = (id(code), instruction)
        number = self.segment.sites.number_of.get(key)
        if number is not None:
            return number
        known = self._sites.get(key)
        if known is None:
            known = self._sites[key] = code, encoded(site_entry(code, instruction))
        return self.segment.sites.number(key, known[1])

    def place(self, scope: Scope) -> None:
        """Events stand in this scope from now on."""
        segment = self.segment
        self._scope = None  # until the place is known, should an interrupt come
        self._where = pack_place(
            segment.stages.number(scope.stage, scope.stage or ""),
            segment.parts.number(scope.part, scope.part or ""),
            scope.request or 0,
            NONE if scope.sequence is None else scope.sequence,
            NONE if scope.layer is None else scope.layer,
            NONE if scope.head is None else scope.head,
            NONE if scope.step is None else scope.step,
        )
        self._scope = scope

    def input(self, name: str, array: Array, scope: Scope) -> None:
        """Notes an input of the run, and keeps it. One whose memory is known already becomes a new version."""
        if scope is not self._scope:
            self.place(scope)
        segment, buffers = self.segment, self.buffers
        buffers.held.clear()  # it is, but for an interrupt: what it told is gone, and its identities are used again
        lasting = buffers.lasting_of(array)
        if lasting is not None:
            lasting.is_written()
        elif buffers.locate(array) is None:
            buffers.add_lasting(array)
        number, version, at = buffers.locate(array) or (0, 0, 0)
        event, first_output = segment.events.count, segment.outputs.count
        on_host = isinstance(array, np.ndarray)
        layout, seed, is_contiguous = segment.layout(array)
        digest = NO_HASH
        if on_host:
            digest = self.digest(array, seed) if is_contiguous else self.digest_other(array)
        segment.outputs.append(number, version, layout, at, digest)
        if not on_host:
            copy = array.copy()  # it may be written to before the step ends
            self._later(event, first_output, -1, copy, self._keeping.keeps_roots)
        elif self._keeping.keeps_roots:
            self._keep(event, -1, NOT_IN_A_LIST, array)
        self._append(INPUT, name, 1, first_output)

    def fact(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        """Notes a fact; facts are JSON values."""
        if scope is not self._scope:
            self.place(scope)
        self.segment.facts.append((self.segment.events.count, dict(facts)))
        self._append(FACT, kind, 0, self.segment.outputs.count)

    def _append(self, kind: int, name: str, outputs: int, first_output: int) -> None:
        segment = self.segment
        segment.events.append(
            kind, outputs, segment.names.number(name), 0, self._where, 0, 0, segment.links.count, first_output,
            perf_counter_ns() - self.origin_ns, 0.0,
        )  # fmt: skip


class _OpNumbers(dict[str, int]):
    """The numbers of operations, as they stand in the manifest."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(zip(all_operations(), itertools.count()))
        self._sink = sink

    def __missing__(self, name: str) -> int:
        numbers = dict(zip(self._sink.operations or OPS, itertools.count()))
        if name not in numbers:
            raise UnknownOperationError(
                f'the operation "{name}" was defined after this recording took up its model; define it before'
            )
        self.update(numbers)
        return numbers[name]


def _no_digest(values: Array, seed: int) -> bytes:
    return NO_HASH


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
