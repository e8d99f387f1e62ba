"""The recorder: notes every operation, which windows it read, what it made, where and how long.

Its `run` stands in every operation of a traced run, so it only remembers; the operations of a step are noted together
at its end, as packed rows of the tables in `schema.py`.
"""

import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Mapping
from operator import itemgetter
from time import perf_counter_ns
from types import CodeType
from typing import Any

import numpy as np

from haaw.arrays import Array, is_array, owner, to_host
from haaw.errors import BadInputError
from haaw.ops.embedding import embed
from haaw.ops.op import OPS, Op
from haaw.ops.recorder import LISTENING, Recorder, Scope
from haaw.tracing.buffers import NO_LAYOUT, Buffers, OrphanError, Owners, Window, offset
from haaw.tracing.hashing import array_hash, xxhash_library
from haaw.tracing.held import OP, SCOPE, HeldOperations, Operation
from haaw.tracing.keeping import Keeping
from haaw.tracing.schema import FACT, INPUT, NONE, NOT_IN_A_LIST, OPERATION
from haaw.tracing.segment import Segment, encoded, pack_place
from haaw.tracing.sink import Sink
from haaw.tracing.sites import site_entry
from haaw.tracing.step_arguments import PLAIN, exact
from haaw.tracing.step_plan import ALLOCATES, LEAST_OPERATIONS, Numbers, StepPlan, StepRows

MOST_ROWS = 50_000
MOST_PENDING_BYTES = 64 << 20
MOST_HELD_BYTES, OPERATION_BYTES = 16 << 20, 1024
"""So many bytes of results are held, and so many more counted for each operation, before all are noted together: a
whole decode step as a rule. Between two matrix products, which push everything else out of the processor's caches,
noting takes thrice as long."""
FLUSH_EVERY_NS = 1_000_000_000
NO_HASH = bytes(16)

MOST_REQUESTS = 65_535
"""As many as the field of an event's row can tell apart."""

MOST_PLANS = 16
"""So many lengths of steps are remembered: each kind of request has its own."""

MOST_ARGUMENT_TEXTS = 1024
"""So many sets of arguments that are no arrays are remembered as they are written; positions change in every step."""

OnDevice = tuple[int, int | None, int, Array, bool]
"""An array that is to come to the host: event, row in the outputs for its hash (or None), slot, values, keep or not."""

ndarray, frame_at = np.ndarray, sys._getframe  # looked up for every operation

_WRAPPER: CodeType = embed.__code__
"""The code of the function that `@op` puts around every operation; its caller is the call site."""


class TraceRecorder(Recorder):
    """Writes everything that happens to a sink. `hash_outputs="off"` leaves the hashes out.

    Steps of several requests may alternate, also in several threads: one step is recorded at a time.
    """

    def __init__(self, sink: Sink, keeping: Keeping, *, hash_outputs: str = "on") -> None:
        self.sink = sink
        self.keeping = keeping
        self.events = 0
        self._origin_ns = perf_counter_ns()
        self._buffers = Buffers()
        self._digest = xxhash_library().xxh3_128_digest if hash_outputs == "on" else _no_digest
        self._hashes = hash_outputs == "on"
        self._op_numbers = {name: number for number, name in enumerate(OPS)}
        self._sites: dict[
            tuple[int, int], tuple[CodeType, str]
        ] = {}  # holds the code: its identity stays its own
        self._segment = Segment(0, 0)
        self._weights_begun = 0, Segment(0, 0)  # how many weights, and their layouts
        self._unwritten: Segment | None = None
        self._is_torn = False  # whether the segment has rows of an operation that was not noted to the end
        self._scope: Scope | None = None
        self._where = b""
        self._flush_at_ns = perf_counter_ns() + FLUSH_EVERY_NS
        self._on_device: list[OnDevice] = []
        self._on_device_bytes = 0
        self._numbers = itertools.count(1)  # handed out in any thread
        self._requests = 0
        self._batch = HeldOperations()
        self._plans: dict[int, StepPlan] = {}  # by the number of operations in a batch
        self._argument_texts: dict[tuple[Any, ...], str] = {}
        self._slow_turns: dict[int, int] = {}  # batches of that length that no plan fitted, since one did
        self._inside: dict[str, tuple[int, Scope]] = {}  # thread and scope of the step that is recorded
        self._left = threading.Event()
        self._own_ns = 0  # spent on noting and writing since the last request ended

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        """Runs an operation and notes it.

        Errors: `OrphanError` where it reads an array that nothing in the log explains.
        """
        if self._batch.is_closed:
            return op.plain(*args, **kwargs)
        start = perf_counter_ns()
        result = op.plain(*args, **kwargs)
        end = perf_counter_ns()
        caller = frame_at(2)
        if (
            caller.f_code is _WRAPPER and caller.f_back is not None
        ):  # a breakpoint's recorder stands in between
            caller = caller.f_back
        batch = self._batch  # another one, if an operation within this one filled it
        batch.extend((op, args, kwargs or None, scope, result, start, end, caller.f_code, caller.f_lasti))
        if type(result) is ndarray:
            batch.nbytes += OPERATION_BYTES + result.nbytes
        else:  # nothing, a device's array, or several results
            batch.nbytes += OPERATION_BYTES + getattr(result, "nbytes", 0)
        if batch.nbytes > MOST_HELD_BYTES:
            self._note_all()
        return result

    @property
    def closed(self) -> bool:
        """Whether nothing is recorded any more."""
        return self._batch.is_closed

    def _note_all(self) -> None:
        """Notes the operations that are held, and remembers which of their results live on."""
        begun_ns = perf_counter_ns()
        batch, self._batch = self._batch, HeldOperations()
        before = self._segment.events.count
        owners: Owners = []
        self._buffers.held.clear()  # it is, but for an interrupt that came before the last release
        try:
            if not (noted := self._note_together(batch, owners)):
                self._segment.make_room(len(batch))
                self._note_each(batch, 0, owners)
                self._learn(batch)
            elif noted < len(batch):
                self._segment.make_room(len(batch) - noted)
                self._note_each(batch, noted, owners)
        except BaseException as error:
            done = self._segment.events.count - before
            self._note_rest(batch, done + isinstance(error, OrphanError), owners)
            raise
        finally:
            batch.clear()
            self._buffers.release(owners)
            self._own_ns += perf_counter_ns() - begun_ns
        if self._on_device_bytes > MOST_PENDING_BYTES:
            self._fetch()
        segment = self._segment
        if (
            perf_counter_ns() > self._flush_at_ns
            or segment.events.count > MOST_ROWS
            or segment.arena_bytes > MOST_PENDING_BYTES
        ):
            self.flush()

    def _note_together(self, batch: HeldOperations, owners: Owners) -> int:
        """Notes the operations that repeat an earlier batch, at once; gives how many."""
        plan = self._plans.get(len(batch))
        if plan is None:
            return 0
        numbers = Numbers(self._site_number, self._arguments_number, self._digest, self._digest_other)
        rows = plan.match(batch, self._segment, self._buffers, numbers)
        if rows is None:
            return 0
        events = self._segment.events
        done = events.count + plan.length
        try:
            self._take(plan, rows, batch, owners)
            events.count = done  # last: an interrupt before it leaves everything to be noted one by one
        except BaseException:
            if events.count != done:
                self._buffers.held.clear()
                owners.clear()
                for lasting, version in zip(plan.bindings.lasting, rows.versions.tolist(), strict=True):
                    lasting.version = version
            raise
        self._slow_turns[len(batch)] = 0
        return plan.length

    def _take(self, plan: StepPlan, rows: StepRows, batch: HeldOperations, owners: Owners) -> None:
        """Takes over everything but the events' count."""
        segment, buffers = self._segment, self._buffers
        first_event = segment.events.count
        rows.events["first_link"] += segment.links.count
        rows.events["first_output"] += segment.outputs.count
        rows.events["start_ns"] -= self._origin_ns
        segment.events.write(rows.events)
        segment.links.extend(rows.links)
        segment.outputs.extend(rows.outputs)
        numbers = range(buffers.next_number, buffers.next_number + len(rows.owners))
        buffers.next_number = numbers.stop
        owners.extend((rows.owners, numbers))
        if plan.length < len(batch):
            layouts = np.where(plan.results.is_owner, rows.layouts, NO_LAYOUT).tolist()
            buffers.held.update(zip(map(id, rows.owners), zip(numbers, layouts, strict=True), strict=True))
        after = rows.versions + plan.bindings.write_counts
        for lasting, version in zip(plan.bindings.lasting, after.tolist(), strict=True):
            lasting.version = version
        self._scope = None
        if self.keeping.keeps_results or self.keeping.keeps_roots:
            self._keep_together(plan, rows, batch, first_event)

    def _keep_together(self, plan: StepPlan, rows: StepRows, batch: HeldOperations, first_event: int) -> None:
        layouts, links = rows.layouts.tolist(), rows.links["layout"].tolist()
        keeping = self.keeping
        ops, scopes = batch.column(OP, plan.length), batch.column(SCOPE, plan.length)
        roots = [(each.event, each.slot, each.place, True) for each in plan.bindings.roots]
        made = enumerate(zip(plan.results.events.tolist(), plan.results.slots, strict=True))
        results = (
            [(event, slot, place, False) for place, (event, slot) in made] if keeping.keeps_results else []
        )
        for event, slot, place, is_root in sorted(roots + results, key=itemgetter(0)):
            if is_root:
                keeps, layout = keeping.keeps_roots, links[plan.bindings.link_row[place]]
                values = rows.given.value(place)
            else:
                keeps = keeping.keeps(ops[event].name, scopes[event])
                layout, values = layouts[place], rows.made.arrays[place]
            if keeps:
                keeping.keep(
                    self._segment, self.sink, first_event + event, slot, NOT_IN_A_LIST, layout, values
                )

    def _learn(self, batch: HeldOperations) -> None:
        """Plans for the next batch like this one: when the second comes, and ever more seldom if none fits."""
        turns = self._slow_turns[len(batch)] = self._slow_turns.get(len(batch), 0) + 1
        if len(batch) < LEAST_OPERATIONS or turns & (turns - 1):
            return
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
            self._slow_turns.clear()
        if turns > 1 or len(batch) in self._plans:
            self._plans[len(batch)] = StepPlan(batch, self._buffers, self._op_numbers)

    def _note_each(self, batch: HeldOperations, first: int, owners: Owners) -> None:
        # A frame of its own, since its loop variable would keep the last operation's arrays alive.
        for operation in batch.operations(first):
            self._note_operation(operation, owners)

    def _note_rest(self, batch: HeldOperations, first: int, owners: Owners) -> None:
        """After an error or an interrupt: what can be noted still is, so that caches that live on stay known."""
        self._is_torn = True
        self._segment.make_room(len(batch))
        for operation in batch.operations(first):
            with contextlib.suppress(OrphanError):
                self._note_operation(operation, owners)

    def _note_operation(self, operation: Operation, owners: Owners) -> None:
        op, args, kwargs, scope, result, start, end, code, instruction = operation
        if scope is not self._scope:
            self._place(scope)
        segment, buffers = self._segment, self._buffers
        links, outputs, events = segment.links, segment.outputs, segment.events
        weights, held, lasting, layouts = buffers.weights, buffers.held, buffers.lasting, segment.layout_of
        first_link = links.count
        plain: tuple[Any, ...] = ()
        for slot, value in enumerate(args):
            kind = type(value)
            if kind is np.ndarray:
                known = weights.get(id(value)) or held.get(id(value))
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
        arguments = self._arguments_number(op, plain) if plain else 0
        event, first_output = events.count, outputs.count
        if op.writes is not None:
            self._note_write(op, event, args, kwargs)
        elif type(result) is np.ndarray and result.base is None and op.name[:11] != ALLOCATES:
            found = layouts.get((result.dtype, result.shape, result.strides))
            layout, seed, contiguous = found or segment.layout(result)
            digest = self._digest(result, seed) if contiguous else self._digest_other(result)
            number = buffers.hold(result, result, layout, owners)
            outputs.pack_into(outputs.buffer, first_output * 30, number, 0, layout, 0, digest)
            outputs.count = first_output + 1
            if self.keeping.keeps_results and self.keeping.keeps(op.name, scope):
                self._keep(event, -1, NOT_IN_A_LIST, result)
        else:
            self._note_outputs(op, event, result, scope, owners)
        site = self._site_number(code, instruction)
        events.pack_into(
            events.buffer, event * 44,
            OPERATION, outputs.count - first_output, self._op_numbers[op.name], links.count - first_link, self._where,
            site, arguments, first_link, first_output, start - self._origin_ns, end - start,
        )  # fmt: skip
        events.count = event + 1

    def _window(self, op: Op, slot: int, array: Array) -> Window:
        window = self._buffers.locate(array)
        if window is None:
            raise OrphanError(
                f"{op.name} reads an array that nothing in the trace explains: {op.parameters[slot]} {array.shape} is "
                "no window on a weight, a declared input or an earlier result; compute it by an operation, or declare "
                "it"
            )
        return window

    def _link(self, op: Op, slot: int, item: int, array: Array) -> None:
        number, version, at = self._window(op, slot, array)
        layout = self._segment.layout_of.get((array.dtype, array.shape, array.strides))
        self._segment.links.append(
            slot, item, (layout or self._segment.layout(array))[0], number, version, at
        )

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

    def _arguments_number(self, op: Op, plain: tuple[Any, ...]) -> int:
        """The number of the arguments that are no arrays, `plain` being slots and values in turns."""
        table, slots, values = self._segment.args, plain[::2], plain[1::2]
        key = op.name, slots, *map(exact, values)
        try:
            number = table.number_of.get(key)
        except TypeError:  # a list among them
            key = op.name, slots, *(exact(_hashable(value)) for value in values)
            number = table.number_of.get(key)
        if number is not None:
            return number
        text = self._argument_texts.get(key)
        if text is None:
            if len(self._argument_texts) >= MOST_ARGUMENT_TEXTS:
                self._argument_texts.clear()
            named = {op.parameters[slot]: value for slot, value in zip(slots, values, strict=True)}
            text = self._argument_texts[key] = json.dumps(named)
        return table.number(key, text)

    def _note_outputs(self, op: Op, event: int, result: Any, scope: Scope, owners: Owners) -> None:
        """Notes several results, those of another library, and reserved memory: whatever the short way leaves."""
        segment, buffers = self._segment, self._buffers
        allocates = op.name.startswith(ALLOCATES)
        keeps = not allocates and self.keeping.keeps(op.name, scope)
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
            digest = self._digest_other(value) if on_host else NO_HASH
            segment.outputs.append(buffers.hold(value, base, layout, owners), 0, layout, at, digest)
            if not on_host:
                self._later(event, segment.outputs.count - 1, -1 - number, value, keeps)
            elif keeps:
                self._keep(event, -1 - number, NOT_IN_A_LIST, value)

    def _digest_other(self, values: Array) -> bytes:
        return array_hash(values) if self._hashes else NO_HASH

    def _note_write(self, op: Op, event: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """A write makes a new version of its buffer; what it wrote and nothing else can give back is kept."""
        for slot, name in enumerate(op.parameters):
            value: Array = args[slot] if slot < len(args) else (kwargs or {}).get(name)
            if type(value) in PLAIN or not is_array(value):
                continue
            lasting = self._buffers.lasting_of(value)
            if name == op.writes:
                if lasting is None:
                    raise OrphanError(
                        f"{op.name} writes to an array that is no buffer of a cache: {name} {value.shape}"
                    )
                lasting.version += 1
                at = 0 if value.base is None else offset(value, owner(value))
                layout = self._segment.layout(value)[0]
                self._segment.outputs.append(lasting.number, lasting.version, layout, at, NO_HASH)
            elif lasting is None and self.keeping.keeps_roots:
                if isinstance(value, np.ndarray):
                    self._keep(event, slot, NOT_IN_A_LIST, value)
                else:
                    self._later(event, None, slot, value, keeps=True)

    def _keep(self, event: int, slot: int, item: int, value: np.ndarray) -> None:
        layout = self._segment.layout(value)[0]
        self.keeping.keep(self._segment, self.sink, event, slot, item, layout, value)

    def _later(self, event: int, row: int | None, slot: int, value: Array, keeps: bool) -> None:
        """A device's array comes to the host in a batch, so that nothing waits for a single operation."""
        if keeps or (self._hashes and row is not None):
            self._on_device.append((event, row, slot, value, keeps))
            self._on_device_bytes += int(value.nbytes)

    def _fetch(self) -> None:
        batch, self._on_device, self._on_device_bytes = self._on_device, [], 0
        for event, row, slot, value, keeps in batch:
            host = to_host(value)
            if row is not None:
                self._segment.outputs.set_hash(row, self._digest_other(host))
            if keeps:
                self._keep(event, slot, NOT_IN_A_LIST, host)

    def _site_number(self, code: CodeType, instruction: int) -> int:
        key = (id(code), instruction)
        number = self._segment.sites.number_of.get(key)
        if number is not None:
            return number
        known = self._sites.get(key)
        if known is None:
            known = self._sites[key] = code, encoded(site_entry(code, instruction))
        return self._segment.sites.number(key, known[1])

    def _place(self, scope: Scope) -> None:
        segment = self._segment
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

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        """Notes an input of the run, and keeps it. One whose memory is known already becomes a new version."""
        if self.closed:
            return
        if self._batch:
            self._note_all()
        if scope is not self._scope:
            self._place(scope)
        segment, buffers = self._segment, self._buffers
        lasting = buffers.lasting_of(array)
        if lasting is not None:
            lasting.version += 1
        elif buffers.locate(array) is None:
            buffers.add_lasting(array)
        number, version, at = buffers.locate(array) or (0, 0, 0)
        event, first_output = segment.events.count, segment.outputs.count
        on_host = isinstance(array, np.ndarray)
        digest = self._digest_other(array) if on_host else NO_HASH
        segment.outputs.append(number, version, segment.layout(array)[0], at, digest)
        if not on_host:
            copy = array.copy()  # it may be written to before the step ends
            self._later(event, first_output, -1, copy, self.keeping.keeps_roots)
        elif self.keeping.keeps_roots:
            self._keep(event, -1, NOT_IN_A_LIST, array)
        self._note(INPUT, name, 1, first_output)

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        """Notes a fact; facts are JSON values."""
        if self.closed:
            return
        if self._batch:
            self._note_all()
        if scope is not self._scope:
            self._place(scope)
        if kind == "phases":  # whose times hold the recorder's own
            facts = {**facts, "recorder_s": self._own_ns / 1e9}
            self._own_ns = 0
        self._segment.facts.append((self._segment.events.count, dict(facts)))
        self._note(FACT, kind, 0, self._segment.outputs.count)

    def _note(self, kind: int, name: str, outputs: int, first_output: int) -> None:
        segment = self._segment
        segment.events.append(
            kind, outputs, segment.names.number(name), 0, self._where, 0, 0, segment.links.count, first_output,
            perf_counter_ns() - self._origin_ns, 0.0,
        )  # fmt: skip

    def know_model(self, facts: Mapping[str, Any]) -> None:
        """Takes what the manifest says about the model."""
        self.sink.know_model(facts)

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        """Numbers the weights and begins the file. Errors: `BadInputError` for a second model."""
        if self.closed:
            return
        if self.sink.has_begun and all(id(each) in self._buffers.weights for each in weights.values()):
            return
        begun_ns = perf_counter_ns()
        self.sink.begin(weights, self._buffers.next_number)
        self._own_ns += perf_counter_ns() - begun_ns
        self.flush()  # a new segment, in which the weights' layouts come first
        if self.closed:
            return
        self._segment.begin_layouts(weights.values())
        self._buffers.add_weights(
            weights.values(), self._segment.layout_number, self.sink.first_weight_buffer
        )

    def number_request(self) -> int | None:
        """Requests are numbered from 1. Errors: `BadInputError` for more than a trace can tell apart."""
        if self.closed:
            return None
        number = next(self._numbers)
        if number > MOST_REQUESTS:
            raise BadInputError(
                f"a trace holds at most {MOST_REQUESTS:,} requests; record the others in another file"
            )
        self._requests = number
        return number

    def begin_step(self, scope: Scope) -> None:
        """Lets one step in at a time."""
        thread = threading.get_ident()
        mine = thread, scope
        # One call of C decides, so that an interrupt finds nobody inside, or somebody who is known.
        while (inside := self._inside.setdefault("step", mine))[0] != thread:
            self._left.wait(0.01)
            self._left.clear()
        if inside is not mine and LISTENING.get() is None:  # left behind by an interrupt
            self._inside["step"] = mine

    def end_step(self, scope: Scope) -> None:
        """Writes what the step left behind. A second call, and one for a step within another, does nothing."""
        inside = self._inside.get("step")
        if inside is None or inside[1] is not scope:
            return
        try:
            self._end_step(scope)
        finally:
            self._inside.pop("step", None)
            self._left.set()

    def _end_step(self, scope: Scope) -> None:
        if not self.closed:
            self._tell_falls(scope)
            self.flush()
            self._buffers.end_step()

    def _tell_falls(self, scope: Scope) -> None:
        for fall in self.keeping.falls():
            self.emit("degraded", fall, scope)

    def flush(self) -> None:
        """Writes the segment, if there is anything in it and the file has begun, and starts the next one."""
        if self._batch:
            self._note_all()
        segment = self._segment
        if self._on_device:
            self._fetch()
        self._flush_at_ns = perf_counter_ns() + FLUSH_EVERY_NS
        if not self.sink.has_begun:
            return
        if self._unwritten is not None:  # an interrupt came when it was to be written
            self._write()
        if segment.events.count or self._is_torn:
            self._unwritten = segment
            self._next_segment(segment)
            self._write()

    def _next_segment(self, segment: Segment) -> None:
        following = Segment(segment.number + 1, segment.first_event + segment.events.count)
        weights = self._buffers.weight_arrays
        if self._weights_begun[0] != len(weights):
            begun = Segment(0, 0)
            begun.begin_layouts(weights)
            self._weights_begun = len(weights), begun
        following.begin_like(self._weights_begun[1])
        self._scope, self._segment, self._is_torn = None, following, False

    def _write(self) -> None:
        assert self._unwritten is not None
        begun_ns = perf_counter_ns()
        written_bytes = self.sink.write(self._unwritten)
        self._own_ns += perf_counter_ns() - begun_ns
        self.events = self._unwritten.first_event + self._unwritten.events.count
        self._unwritten = None
        self.keeping.spend(written_bytes)
        if self.keeping.is_spent:
            self._tell_falls(Scope(stage="deliver"))
            if self._segment.events.count and not self.closed:
                self.sink.write(self._segment)
                self.events += self._segment.events.count
        if not written_bytes or self.keeping.is_spent:
            self.close()

    def finish(self, error: str | None = None) -> None:
        """Writes what is left and ends the file; `error` names the exception that ended the recording.

        Waits for a step that another thread is in.
        """
        scope = Scope(stage="end")
        try:
            self.begin_step(scope)
            self._finish(error)
        finally:
            self.end_step(scope)

    def _finish(self, error: str | None) -> None:
        try:
            if not self.closed:
                self.sink.begin_without_model()
                self.flush()
        finally:
            self._end_file(error)

    def _end_file(self, error: str | None) -> None:
        summary = {
            "events": self.events,
            "segments": self.sink.segments,
            "kept_bytes": self.keeping.kept_bytes,
            "buffers": self._buffers.next_number,
            "requests": self._requests,
            "took_ns": perf_counter_ns() - self._origin_ns,
            "error": error,
        }
        self.sink.finish(summary)
        self.close()

    def close(self) -> None:
        """Stops listening and lets go of every array."""
        self._batch.is_closed = True
        self._segment, self._unwritten = Segment(0, 0), None
        self._batch.clear()
        self._on_device.clear()
        self._buffers.clear()
        self._sites.clear()
        self._plans.clear()


def _no_digest(values: Array, seed: int) -> bytes:
    return NO_HASH


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
