"""What a recorder must offer, and which one is listening: the scope of an operation and the way to emit events.

Knows nothing of files, hashes or replay. A recorder is active only inside one engine step, in one
thread or task: `recording(...)` is entered when the step begins and left before anything is yielded.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from haaw.arrays import Array

if TYPE_CHECKING:
    from haaw.ops.op import Op


class Scope(NamedTuple):
    """Where in a run an operation stands; fields that do not apply are None."""

    stage: str | None = None
    step: int | None = None
    sequence: int | None = None
    layer: int | None = None
    head: int | None = None
    part: str | None = None
    request: int | None = None


Operation: TypeAlias = (
    "tuple[Op, tuple[Any, ...], dict[str, Any] | None, Scope, Any, int, int, CodeType, int]"
)
"""What ran, its arguments (named ones, or None), where, its result, start and end (ns), code and instruction of the
call."""


class Held(Protocol):
    """Takes operations that were run, by one call each, the cheapest that there is."""

    extend: Callable[[Operation], None]
    due_ns: float
    """Once an operation ended after it, its recorder wants to know (`Recorder.look`)."""


class Recorder(Protocol):
    """Listens to operations and events; may answer an operation with a value of its own."""

    @property
    def held(self) -> Held | None:
        """Takes the operations of a step; None lets `run` run each. Asked for once a step."""
        return None

    def look(self, now_ns: int) -> None:
        """Told when an operation ended, if it ended after `held.due_ns`."""
        return

    def run(self, op: "Op", args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        """Runs `op.plain(*args, **kwargs)`, records it, and returns its result (or a substitute)."""

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        """Makes `array` known as an input of the run: ids, positions, random numbers."""

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        """Makes the model's arrays known by their canonical names."""

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        """Records something that is not an array operation, such as a delta or the end state."""

    def number_request(self) -> int | None:
        """The number of a request that is being made; None where the recorder does not tell them apart."""
        return None

    @property
    def closed(self) -> bool:
        """Whether nothing is recorded any more."""
        return False

    def postpone(self, work: Callable[[], None]) -> bool:
        """Takes work that would disturb a step, if one is under way in this thread, and does it behind the step."""
        return False

    def know_model(self, facts: Mapping[str, Any]) -> None:
        """Told which model the next request runs on: name, family, sizes. JSON values only."""
        return

    def begin_step(self, scope: Scope) -> None:
        """Told when the block of a `recording` begins."""
        return

    def end_step(self, scope: Scope) -> None:
        """Told when the block of a `recording` ends, also by an exception, and also if it never began.

        Told again with the same scope where the first time ended in an error, which may be an interrupt.
        """
        return


class Listening:
    """A recorder, what takes its operations, and the scope it stands in, for one engine step.

    `whole` is the scope of the step itself; `before` listened before.
    """

    __slots__ = ("before", "held", "recorder", "scope", "whole")

    def __init__(self, recorder: Recorder, whole: Scope, before: "Listening | None") -> None:
        self.recorder = recorder
        self.held = recorder.held
        self.scope = self.whole = whole
        self.before = before


LISTENING: ContextVar[Listening | None] = ContextVar("haaw_listening", default=None)

_CHOSEN: ContextVar[Recorder | None] = ContextVar("haaw_chosen_recorder", default=None)


def chosen_recorder() -> Recorder | None:
    """The recorder that new requests take, made the choice of a block by `choosing_recorder`; none that is closed."""
    recorder = _CHOSEN.get()
    return None if recorder is None or recorder.closed else recorder


def choosing_recorder(recorder: Recorder) -> AbstractContextManager[None]:
    """Lets requests that are created in the block take `recorder`, and keep it wherever they run."""
    return _Choice(recorder)


class _Choice:
    __slots__ = ("before", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.before = recorder, _CHOSEN.get()

    def __enter__(self) -> None:
        _CHOSEN.set(self.recorder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CHOSEN.set(self.before)


def recording(recorder: Recorder | None, **scope: Any) -> AbstractContextManager[None]:
    """Lets `recorder` listen to every operation in the block, in `Scope(**scope)`; None, or a closed one, does not."""
    if recorder is None or recorder.closed:
        return _NOTHING
    return _Step(recorder, Scope(**scope))


class _Step:
    """An interrupt may come at any instruction, and no recorder may stay behind.

    No generator: one that was interrupted within `contextlib` would go on when its exception is dropped, in the middle
    of another step. For the one instruction before anything here is protected see `stop_listening`.
    """

    __slots__ = ("before", "recorder", "whole")

    def __init__(self, recorder: Recorder, whole: Scope) -> None:
        self.recorder, self.whole = recorder, whole
        self.before = LISTENING.get()

    def __enter__(self) -> None:
        try:
            self.recorder.begin_step(self.whole)
            LISTENING.set(Listening(self.recorder, self.whole, self.before))
        except BaseException:
            self.leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        try:
            _listen_again(self.before)
            self.recorder.end_step(self.whole)
        except BaseException:
            try:
                _listen_again(self.before)
                self.recorder.end_step(self.whole)
            except BaseException:
                _listen_again(self.before)
                self.recorder.end_step(self.whole)
                raise
            raise


def _listen_again(before: Listening | None) -> None:
    """Always before the step ends: what the garbage collector brings meanwhile is postponed until then."""
    if LISTENING.get() is not before:
        LISTENING.set(before)


def stop_listening(recorder: Recorder | None, request: int | None) -> None:
    """Ends a step of a request that an interrupt has left behind, if there is one."""
    listening = LISTENING.get()
    if listening is None or listening.recorder is not recorder or listening.whole.request != request:
        return
    try:
        LISTENING.set(listening.before)
    finally:
        listening.recorder.end_step(listening.whole)


def postponed(work: Callable[[], None], recorder: Recorder | None) -> bool:
    """Whether work is put off, since a step of `recorder`, or of who listens, is under way in this thread.

    The garbage collector may close an abandoned stream anywhere, also while such a recorder is at work.
    """
    listening = LISTENING.get()
    recorders = (recorder, None if listening is None else listening.recorder)
    return any(each is not None and each.postpone(work) for each in recorders)


class _Narrowed:
    __slots__ = ("inner", "listening", "outer")

    listening: Listening
    inner: Scope
    outer: Scope

    def __enter__(self) -> None:
        self.listening.scope = self.inner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listening.scope = self.outer


_NOTHING = nullcontext()
_SAME: Any = object()
_get, _new, _new_object = LISTENING.get, tuple.__new__, object.__new__


def scope(
    *, stage: str | None = _SAME, step: int | None = _SAME, sequence: int | None = _SAME, layer: int | None = _SAME,
    head: int | None = _SAME, part: str | None = _SAME, request: int | None = _SAME,
) -> AbstractContextManager[None]:  # fmt: skip
    """Puts a block of code in a narrower place, such as one layer; free when nobody listens."""
    listening = _get()
    if listening is None:
        return _NOTHING
    # A step has some sixty scopes, each met with cold caches: no dict, no list, no call that can be spared.
    outer = listening.scope
    stage_, step_, sequence_, layer_, head_, part_, request_ = outer
    inner = _new(Scope, (
        stage_ if stage is _SAME else stage,
        step_ if step is _SAME else step,
        sequence_ if sequence is _SAME else sequence,
        layer_ if layer is _SAME else layer,
        head_ if head is _SAME else head,
        part_ if part is _SAME else part,
        request_ if request is _SAME else request,
    ))  # fmt: skip
    narrowed = _new_object(_Narrowed)  # calling the class would call an `__init__`
    narrowed.listening, narrowed.inner, narrowed.outer = listening, inner, outer
    return narrowed


def declare(name: str, array: Array) -> Array:
    """Declares `array` as an input of the run to whoever listens, and returns it."""
    listening = LISTENING.get()
    if listening is not None:
        listening.recorder.declare(name, array, listening.scope)
    return array


def emit(kind: str, **facts: Any) -> None:
    """Tells whoever listens of something that is not an array operation."""
    listening = LISTENING.get()
    if listening is not None:
        listening.recorder.emit(kind, facts, listening.scope)
