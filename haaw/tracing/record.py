"""`haaw.record`: every request made in a block is written to a trace file."""

import platform
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any, Self

from haaw.errors import BadInputError
from haaw.ops.recorder import Scope, choosing_recorder, chosen_recorder
from haaw.tracing.keeping import Keeping
from haaw.tracing.policy import Keep
from haaw.tracing.recorder import TraceRecorder
from haaw.tracing.sink import Sink


class Recording:
    """A trace in the making; a context manager. `path` is its file, `failure` says why it ended early, if it did."""

    def __init__(
        self,
        path: str | Path,
        keep: str | Sequence[Any] | Keep = "replayable",
        *,
        hash: str = "on",
        budget: str | int | None = None,
    ) -> None:
        if hash not in ("on", "off"):
            raise BadInputError(f'hash is {hash!r:.40}; it is "on" or "off"')
        self.path = Path(path)
        self.keep = keep if isinstance(keep, Keep) else Keep.parse(keep, budget=budget)
        self._hash = hash
        self._recorder: TraceRecorder | None = None
        self._chosen: AbstractContextManager[None] | None = None

    @property
    def recorder(self) -> TraceRecorder:
        """What listens. Errors: `BadInputError` outside the `with` block."""
        if self._recorder is None:
            raise BadInputError('this recording has not begun; use it as in: with haaw.record("run.haaw"): …')
        return self._recorder

    @property
    def failure(self) -> str | None:
        """Why the file ends early; None if it does not."""
        return None if self._recorder is None else self._recorder.sink.failure

    @property
    def ended_early(self) -> str | None:
        """Why the file lacks the end of the run, in a sentence: it could not be written, or its budget was spent."""
        if self._recorder is None or not self._recorder.keeping.is_spent or self.failure is not None:
            return self.failure
        return (
            f"the trace {self.path.name} ends after {self._recorder.events:,} events: its budget of "
            f"{self.keep.budget_bytes:,} bytes was spent"
        )

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise BadInputError("this recording has been used; make a new one for another file")
        if chosen_recorder() is not None:
            raise BadInputError("another recording is under way; end it before a new one begins")
        sink = Sink(self.path, self.keep.to_dict())
        self._recorder = TraceRecorder(sink, Keeping(self.keep), hash_outputs=self._hash)
        began_unix_ns = time_ns()
        self._chosen = choosing_recorder(self._recorder)
        try:
            self._chosen.__enter__()
            facts = {"unix_ns": began_unix_ns, "system": platform.system()}
            self._recorder.emit("recording", facts, Scope(stage="start-up"))
            self._recorder.tell_journey()
        except BaseException as error:  # an interrupt, say: no recorder may stay behind
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self.recorder
        assert self._chosen is not None
        ran, end = recorder.sink.has_begun, Scope(stage="end")
        try:
            # A step, so that nobody else may listen while the choice, a variable of the same context, changes.
            recorder.begin_step(end)
            self._chosen.__exit__(kind, error, trace)
        finally:
            try:
                recorder.end_step(end)
            finally:
                recorder.finish(None if error is None else type(error).__name__)
        if self.ended_early is not None:
            warnings.warn(self.ended_early, stacklevel=2)
        elif error is None and not ran:
            warnings.warn(
                f"the trace {self.path.name} holds no run: no request was made and run in its block; one made before "
                "it, or in a thread without the block's context (contextvars.copy_context().run), is not recorded",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        state = "not begun" if self._recorder is None else "ended" if self._recorder.closed else "under way"
        return f"<recording {self.path.name}, {state}, keeps {self.keep}>"


def record(
    path: str | Path,
    keep: str | Sequence[Any] | Keep = "replayable",
    *,
    hash: str = "on",
    budget: str | int | None = None,
) -> Recording:
    """Records every request made in the block into a trace file: `with haaw.record("run.haaw"): model.generate(…)`.

    `keep` is "events" (what ran, with hashes), "replayable" (and what cannot be derived, so that any value can
    be computed again) or "full" (every result), with rules behind it for single operations, layers or steps; `budget`
    bounds the bytes kept. `hash="off"` leaves the hashes out. A trace that cannot be written ends early and says so;
    the answer goes on. Errors: `BadInputError` for an impossible policy or place, or within another recording.
    """
    return Recording(path, keep, hash=hash, budget=budget)
