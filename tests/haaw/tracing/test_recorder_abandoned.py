"""Streams that nobody reads on, closed by the garbage collector, also in the middle of another request's step."""

import gc
import sys
from typing import Any

import numpy as np
import pytest
from support.interrupts import PACKAGE, interrupt_at
from support.traced import CACHES, assert_identical, model_of, nothing_stays, opened

import haaw
from haaw.caches.page_pool import PagePool
from haaw.generation.request import Request
from haaw.ops.recorder import LISTENING, Scope, choosing_recorder, chosen_recorder, emit, recording
from haaw.tracing.recorder import TraceRecorder
from haaw.tracing.trace import Trace

PACKAGES = tuple(f"{PACKAGE}/{part}" for part in ("tracing/", "ops/recorder.py", "ops/op.py"))
KINDS = ["dynamic", "concatenated", "sliding", "quantised", "static", "paged"]


def sound(path: Any, model: Any, requests: int) -> None:
    """All is well with the trace, and it tells the end of each request."""
    with opened(path, model) as trace:
        assert trace.verify() == []
        assert_identical(trace.replay())
        for kind in ("finish", "released", "phases"):
            assert sorted(event.place.request for event in trace.facts(kind)) == [*range(1, requests + 1)]


def closed_within(tmp_path: Any, rng: np.random.Generator, strike: int | None = None) -> int:
    """A stream is dropped at an instruction of another request's steps; gives how many instructions there were."""
    model = model_of(rng.choice(["llama", "gpt2"]))
    path, (one, other) = tmp_path / "run.haaw", rng.choice(KINDS, 2)
    with haaw.record(path, keep=str(rng.choice(["replayable", "full"]))) as made:
        abandoned = model.request((3, 4, 5), max_tokens=6, **CACHES[one])
        box = [iter(abandoned)]
        for _ in range(rng.integers(1, 4)):
            next(box[0])
        request = model.request((6, 7, 8, 9), max_tokens=6, **CACHES[other])
        with interrupt_at(strike or 0, every="instruction", packages=PACKAGES, action=box.clear) as seen:
            request.run()
        box.clear()
        assert abandoned.finish.evidence["by"] == "the reader of the stream"
        assert abandoned.state == "finished"
        after = model.generate((1, 2), max_tokens=4, **CACHES[other])
    nothing_stays(made.recorder)
    assert len(request.token_ids) == 6
    assert len(after.token_ids) == 4
    sound(path, model, 3)
    return seen[0]


def check_closings(tmp_path: Any, rng: np.random.Generator, closings: int) -> None:
    for seed in rng.integers(2**32, size=closings).tolist():
        instructions = closed_within(tmp_path, np.random.default_rng(seed))
        strike = int(np.random.default_rng(seed + 1).integers(1, int(0.98 * instructions)))
        print(seed, strike)
        closed_within(tmp_path, np.random.default_rng(seed), strike)


def test_a_stream_that_is_closed_within_another_step_disturbs_nothing(tmp_path, rng):
    check_closings(tmp_path, rng, 12)


@pytest.mark.long
def test_240_streams_that_are_closed_within_other_steps_disturb_nothing(tmp_path, rng):
    check_closings(tmp_path, rng, 240)


def leave_behind(model: Any) -> None:
    """A stream in a circle of references, as it is left by whoever keeps an exception."""
    stream = iter(model.request((3, 4, 5), max_tokens=9))
    next(stream)
    circle: list[Any] = [stream]
    circle.append(circle)


@pytest.mark.parametrize("objects", range(5, 420, 23))
def test_the_collector_may_come_at_any_moment(tmp_path, objects, monkeypatch):
    told: list[Any] = []
    for hook in ("unraisablehook", "excepthook"):
        monkeypatch.setattr(sys, hook, lambda *error: told.append(error))
    model, before = model_of("llama"), gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        with haaw.record(tmp_path / "run.haaw") as made:
            model.generate((1, 2, 3), max_tokens=4)
            leave_behind(model)
            gc.set_threshold(gc.get_count()[0] + objects, 1000, 1000)
            gc.enable()
            model.generate((6, 7, 8), max_tokens=8)
            gc.collect()
    finally:
        gc.set_threshold(*before)
        gc.enable()
    assert told == []
    nothing_stays(made.recorder)
    sound(tmp_path / "run.haaw", model, 3)


def test_what_an_unrecorded_request_gives_back_is_told_behind_the_step(tmp_path):
    """Its blocks go back to a pool that a recorded request shares, while an operation of that one runs."""
    model = model_of("llama")
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=20, block_size=4)
    unrecorded = model.request((3, 4, 5), max_tokens=6, cache="paged", cache_options={"pool": pool})
    box = [iter(unrecorded)]
    next(box[0])
    with haaw.record(tmp_path / "run.haaw") as made:
        made.recorder.know_weights(model.transformer.named_weights())
        with recording(made.recorder, stage="decode", step=1, request=1):
            box.clear()
            assert unrecorded.state != "finished"
            emit("within")
        assert unrecorded.state == "finished"
    assert pool.free_blocks == 20
    with Trace(tmp_path / "run.haaw") as trace:
        assert [event.name for event in trace.facts() if event.place.stage == "decode"] == ["within"]


@pytest.fixture
def recorder(tmp_path):
    with haaw.record(tmp_path / "run.haaw") as made:
        made.recorder.know_weights({"w": np.ones(1, dtype=np.float32)})
        yield made.recorder


def step(recorder: TraceRecorder) -> Any:
    return recording(recorder, stage="decode", request=1)


def test_what_is_postponed_is_done_once_and_in_order_behind_the_step(recorder):
    done: list[str] = []

    def first() -> None:
        with step(recorder):
            assert recorder.postpone(lambda: done.append("third"))
        done.append("first")

    assert not recorder.postpone(first)
    with step(recorder):
        with step(recorder):
            assert recorder.postpone(first)
            assert recorder.postpone(lambda: done.append("second"))
        assert done == []
    assert done == ["second", "third", "first"]


def test_an_error_of_what_is_postponed_is_told_as_one_of_a_finaliser(recorder, monkeypatch):
    told: list[Any] = []
    done: list[int] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: told.append(error[0]))
    with step(recorder):
        recorder.postpone(lambda: 1 / 0)
        recorder.postpone(lambda: done.append(1))
    assert told == [ZeroDivisionError]
    assert done == [1]


def test_what_an_interrupt_kept_from_being_done_is_done_behind_the_next_step(recorder):
    struck: list[int] = []

    def work() -> None:
        struck.append(1)
        if len(struck) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), step(recorder):
        recorder.postpone(work)
    with step(recorder):
        assert struck == [1]
    assert struck == [1, 1]
    recorder.end_step(Scope())  # of a step that is not under way
    assert struck == [1, 1]


def test_what_is_still_to_be_done_is_done_before_the_file_ends(tmp_path):
    struck: list[int] = []

    def work() -> None:
        struck.append(1)
        if len(struck) == 1:
            raise KeyboardInterrupt
        with step(made.recorder):
            emit("told_late")

    with haaw.record(tmp_path / "run.haaw") as made:
        made.recorder.know_weights({"w": np.ones(1, dtype=np.float32)})
        with pytest.raises(KeyboardInterrupt), step(made.recorder):
            made.recorder.postpone(work)
    with Trace(tmp_path / "run.haaw") as trace:
        assert trace.facts("told_late")
        assert trace.complete


def test_a_choice_that_is_closed_is_none(tmp_path):
    """An interrupt may leave it chosen; the next recording must not be refused for it."""
    with haaw.record(tmp_path / "one.haaw") as made, choosing_recorder(made.recorder):
        made.recorder.know_weights({"w": np.ones(1, dtype=np.float32)})
        made.recorder.close()
        assert chosen_recorder() is None
        assert recording(made.recorder, stage="decode").__enter__() is None
        assert LISTENING.get() is None


def test_a_request_that_is_interrupted_while_its_end_is_written_down_still_ends(monkeypatch):
    stopped_by, struck = Request._stopped_by, []

    def interrupted(self: Request, by: str) -> None:
        struck.append(by)
        if len(struck) == 1:
            raise KeyboardInterrupt
        stopped_by(self, by)

    model = model_of("llama")
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=20, block_size=4)
    request = model.request((1, 2, 3), max_tokens=5, cache="paged", cache_options={"pool": pool})
    stream = iter(request)
    next(stream)
    assert pool.free_blocks < 20
    monkeypatch.setattr(Request, "_stopped_by", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    assert pool.free_blocks == 20
    assert request.finish.reason == "cancelled"
    assert request.state == "finished"
