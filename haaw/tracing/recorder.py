"""The recorder: notes every operation, which windows it read, what it made, where and how long.

The function of `@op` hands it every operation of a traced run, and it only remembers; those of a step are noted
together at its end, as packed rows of the tables in `schema.py` (`noting.py`, `noting_together.py`).
"""

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import CodeType
from typing import Any

from haaw import journey
from haaw.arrays import Array
from haaw.errors import BadInputError
from haaw.ops.embedding import embed
from haaw.ops.op import Op
from haaw.ops.recorder import LISTENING, Recorder, Scope
from haaw.tracing.buffers import OrphanError, Owners
from haaw.tracing.held import HeldOperations
from haaw.tracing.keeping import Keeping
from haaw.tracing.noting import Notes
from haaw.tracing.noting_together import NotingTogether
from haaw.tracing.segment import Segment
from haaw.tracing.sink import Sink

MOST_ROWS = 50_000
MOST_PENDING_BYTES = 64 << 20
FLUSH_EVERY_NS = 1_000_000_000

MOST_REQUESTS = 65_535
"""As many as the field of an event's row can tell apart."""

frame_at = sys._getframe  # looked up for every operation

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
        self._notes = Notes(sink, keeping, hash_outputs)
        self._together = NotingTogether(self._notes, sink, keeping)
        self._weights_begun = 0, Segment(0, 0)  # how many weights, and their layouts
        self._unwritten: Segment | None = None
        self._flush_at_ns = perf_counter_ns() + FLUSH_EVERY_NS
        self._journey_until_ns: int | None = None
        self._numbers = itertools.count(1)  # handed out in any thread
        self._requests = 0
        self._held = HeldOperations()
        self._inside: dict[str, tuple[int, Scope]] = {}  # thread and scope of the step that is recorded
        self._left = threading.Event()
        self._postponed: deque[Callable[[], None]] = deque()
        self._is_awaited = False  # who begins to wait unseen looks again soon
        self._own_ns = 0  # spent on noting and writing since the last request ended

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        """Runs an operation and holds it, as the function of `@op` does, for a recorder that stands in between.

        Errors: `OrphanError` where it reads an array that nothing in the log explains.
        """
        start = perf_counter_ns()
        result = op.plain(*args, **kwargs)
        end = perf_counter_ns()
        caller = frame_at(2)
        code = caller.f_code
        if code is _WRAPPER and caller.f_back is not None:  # another recorder stands in between
            caller = caller.f_back
            code = caller.f_code
        # As an `Operation` is, to the type: some recorder may give a list, or another mapping.
        self._held.extend((
            op, tuple(args), dict(kwargs) if kwargs else None, scope, result, start, end, code, caller.f_lasti
        ))  # fmt: skip
        if end > self._held.due_ns:
            self.look(end)
        return result

    @property
    def held(self) -> HeldOperations:
        """What takes the operations until they are noted."""
        return self._held

    def look(self, now_ns: int) -> None:
        """Notes what is held if it is much. Errors: as `run`."""
        if self._held.is_full(now_ns):
            self._note_all()

    @property
    def closed(self) -> bool:
        """Whether nothing is recorded any more."""
        return self._held.is_closed

    def _note_all(self) -> None:
        """Notes the operations that are held, and remembers which of their results live on."""
        begun_ns = perf_counter_ns()
        batch, notes = self._held.batch, self._notes
        before = notes.segment.events.count
        owners: Owners = []
        notes.buffers.held.clear()  # it is, but for an interrupt that came before the last release
        try:  # an interrupt before it leaves everything to be noted later
            self._held.begin()
            noted = self._together.note(batch, owners)
            if noted < len(batch):
                notes.each(batch, noted, owners)
            if not noted:
                self._together.learn(batch)
        except BaseException as error:
            self._held.begin()
            done = notes.segment.events.count - before
            notes.rest(batch, done + isinstance(error, OrphanError), owners)
            raise
        finally:
            batch.clear()
            notes.buffers.release(owners)
            self._own_ns += perf_counter_ns() - begun_ns
        if notes.on_device_bytes > MOST_PENDING_BYTES:
            notes.fetch()
        segment = notes.segment
        if (
            perf_counter_ns() > self._flush_at_ns
            or segment.events.count > MOST_ROWS
            or len(segment.arena) > MOST_PENDING_BYTES
        ):
            self.flush()

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        """Notes an input of the run, and keeps it. One whose memory is known already becomes a new version."""
        if self.closed:
            return
        if self._held:
            self._note_all()
        self._notes.input(name, array, scope)

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        """Notes a fact; facts are JSON values."""
        if self.closed:
            return
        if self._held:
            self._note_all()
        if kind == "phases":  # whose times hold the recorder's own
            facts = {**facts, "recorder_s": self._own_ns / 1e9}
            self._own_ns = 0
        self._notes.fact(kind, facts, scope)

    def tell_journey(self) -> None:
        """Tells what happened before: up-time, the process, imports, opening and reading the weights.

        Told again, only what was not told yet.
        """
        now_ns, before_ns = perf_counter_ns(), self._journey_until_ns
        for entry in journey.so_far():
            start_ns, took_ns = entry["start_ns"], entry["took_ns"] or 0
            if before_ns is not None and (start_ns is None or start_ns + took_ns < before_ns):
                continue
            start_ns = None if start_ns is None else start_ns - self._notes.origin_ns
            self.emit("journey", {**entry, "start_ns": start_ns}, Scope(stage="start-up"))
        self._journey_until_ns = now_ns

    def know_model(self, facts: Mapping[str, Any]) -> None:
        """Takes what the manifest says about the model."""
        self.sink.know_model(facts)

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        """Numbers the weights and begins the file. Errors: `BadInputError` for a second model."""
        if self.closed:
            return
        if self.sink.has_begun and all(id(each) in self._notes.buffers.weights for each in weights.values()):
            return
        if not self.sink.has_begun:
            self.tell_journey()  # the model may have been loaded within the recording
        begun_ns = perf_counter_ns()
        self.sink.begin(weights, self._notes.buffers.next_number)
        self._own_ns += perf_counter_ns() - begun_ns
        self.flush()  # a new segment, in which the weights' layouts come first
        if self.closed:
            return
        self._notes.segment.begin_layouts(weights.values())
        self._notes.buffers.add_weights(
            weights.values(), self._notes.segment.layout_number, self.sink.first_weight_buffer
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
            self._is_awaited = True
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
            if self._is_awaited:
                self._is_awaited = False
                self._left.set()
        self._do_postponed()

    def postpone(self, work: Callable[[], None]) -> bool:
        """Takes work, and does it behind the step that is under way in this thread, if there is one."""
        inside = self._inside.get("step")
        if inside is None or inside[0] != threading.get_ident():
            return False
        self._postponed.append(work)
        return True

    def _do_postponed(self) -> None:
        while self._postponed and "step" not in self._inside:
            work = self._postponed.popleft()
            try:
                work()
            except Exception as error:  # it concerns nobody who is there, as in a finaliser
                sys.excepthook(type(error), error, error.__traceback__)
            except BaseException:
                self._postponed.appendleft(work)
                raise

    def _end_step(self, scope: Scope) -> None:
        if not self.closed:
            self._tell_falls(scope)
            self.flush()
            self._notes.buffers.end_step()

    def _tell_falls(self, scope: Scope) -> None:
        for fall in self.keeping.falls():
            self.emit("degraded", fall, scope)

    def flush(self) -> None:
        """Writes the segment, if there is anything in it and the file has begun, and starts the next one."""
        if self._held:
            self._note_all()
        self._notes.fetch()
        segment = self._notes.segment
        self._flush_at_ns = perf_counter_ns() + FLUSH_EVERY_NS
        if not self.sink.has_begun:
            return
        if self._unwritten is not None:  # an interrupt came when it was to be written
            self._write()
        if segment.events.count or self._notes.is_torn:
            self._unwritten = segment
            self._next_segment(segment)
            self._write()

    def _next_segment(self, segment: Segment) -> None:
        room = [rows + 64 for rows in segment.row_counts]  # as many come as a rule, and a few more
        following = Segment(segment.number + 1, segment.first_event + segment.events.count, room)
        weights = self._notes.buffers.weight_arrays
        if self._weights_begun[0] != len(weights):
            begun = Segment(0, 0)
            begun.begin_layouts(weights)
            self._weights_begun = len(weights), begun
        following.begin_like(self._weights_begun[1])
        self._notes.begin(following)

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
            if self._notes.segment.events.count and not self.closed:
                self.sink.write(self._notes.segment)
                self.events += self._notes.segment.events.count
        if not written_bytes or self.keeping.is_spent:
            self.close()

    def finish(self, error: str | None = None) -> None:
        """Writes what is left and ends the file; `error` names the exception that ended the recording.

        Waits for a step that another thread is in.
        """
        scope = Scope(stage="end")
        try:
            try:
                self._do_postponed()
            finally:
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
            "buffers": self._notes.buffers.next_number,
            "requests": self._requests,
            "took_ns": perf_counter_ns() - self._notes.origin_ns,
            "error": error,
        }
        self.sink.finish(summary)
        self.close()

    def close(self) -> None:
        """Stops listening and lets go of every array."""
        self._held.close()
        self._unwritten = None
        self._notes.clear()
        self._together.clear()
