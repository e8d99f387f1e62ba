"""The recorder: nothing stays behind whatever happens, threads, a full disk, budgets and rules, memory, devices.

FAULTS S102: hooks that hold tensors. S103: interrupted in a half state.
"""

import contextlib
import errno
import gc
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
from support.fake_array import FakeArray, FakeLibrary
from support.interrupts import PACKAGE, TRAPPED, interrupt_at, read_to_the_end
from support.tiny_models import NumberText, tiny_language_model, tiny_llama
from support.traced import CACHES, PROMPT, SAMPLING, assert_identical, model_of, opened, replayed, same_answer

import haaw
import haaw.models.llama
from haaw.caches.page_pool import PagePool
from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.ops.recorder import LISTENING, chosen_recorder
from haaw.tracing import verdicts
from haaw.tracing.buffers import OrphanError
from haaw.tracing.recorder import TraceRecorder
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


def nothing_stays(recorder: TraceRecorder | None = None) -> None:
    """Nobody listens, nobody is chosen, and the recorder would let any thread in."""
    assert LISTENING.get() is None
    assert chosen_recorder() is None
    assert recorder is None or not recorder._inside



# What is refused.


def test_two_recordings_in_one_another_are_refused(path, model):
    with haaw.record(path) as outer:
        with pytest.raises(BadInputError, match="another recording is under way"):
            haaw.record(path.with_name("other.haaw")).__enter__()
        answer = model.generate(PROMPT, max_tokens=3)
    nothing_stays(outer.recorder)
    assert not path.with_name("other.haaw").exists()
    assert answer.token_ids
    assert_identical(replayed(path, model))


def test_a_file_that_is_being_recorded_is_not_recorded_over(path, model):
    found = []

    def second() -> None:
        with pytest.raises(BadInputError, match="being written just now"), haaw.record(path):
            pass
        found.append(chosen_recorder())

    with haaw.record(path):
        model.generate(PROMPT, max_tokens=2)
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert found == [None]
    assert_identical(replayed(path, model))


def test_a_recording_is_used_once(path, model):
    with haaw.record(path) as recording:
        model.generate(PROMPT, max_tokens=2)
    with pytest.raises(BadInputError, match="has been used"):
        recording.__enter__()
    with pytest.raises(BadInputError, match="has not begun"):
        _ = haaw.record(path).recorder
    nothing_stays(recording.recorder)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keep": "most"}, "most"),
        ({"keep": 3}, "3"),
        ({"hash": "no"}, '"on" or "off"'),
        ({"budget": "much"}, "budget"),
        ({"budget": 0}, "budget"),
    ],
)
def test_an_impossible_policy_is_refused_before_a_file_is_made(path, arguments, said):
    with pytest.raises(BadInputError, match=said):
        haaw.record(path, **arguments).__enter__()
    assert not path.exists()
    nothing_stays()


@pytest.mark.parametrize("place", ["missing/run.haaw", ".", "taken.txt"])
def test_an_impossible_place_is_refused(tmp_path, place):
    (tmp_path / "taken.txt").write_text("mine")
    with pytest.raises(BadInputError), haaw.record(tmp_path / place):
        pass
    assert (tmp_path / "taken.txt").read_text() == "mine"
    nothing_stays()


def test_a_second_model_is_refused_and_the_same_one_loaded_again_is_not(path, model):
    again, other = model_of("llama"), tiny_language_model(2)
    with haaw.record(path) as recording:
        first = model.generate(PROMPT, max_tokens=4)
        second = again.generate(PROMPT, max_tokens=4)
        with pytest.raises(BadInputError, match="another model"):
            other.generate(PROMPT, max_tokens=4)
        third = model.generate(PROMPT, max_tokens=4)
    assert first.token_ids == second.token_ids == third.token_ids
    nothing_stays(recording.recorder)
    report = replayed(path, model)
    assert_identical(report)
    with opened(path, model) as trace:
        assert len(trace.steps("decode")) == 9


def test_a_recording_in_which_nothing_ran_is_a_trace_of_nothing(path):
    with haaw.record(path):
        pass
    with Trace(path) as trace:
        assert trace.complete
        assert [step.stage for step in trace.steps()] == ["start-up"]
        assert trace.replay().ok
        assert list(trace.container.verify()) == []


# Ends of every kind.


def test_an_exception_in_the_block_ends_the_trace_properly_and_names_it(path, model):
    with pytest.raises(ZeroDivisionError), haaw.record(path) as recording:
        model.generate(PROMPT, max_tokens=3)
        raise ZeroDivisionError
    nothing_stays(recording.recorder)
    with opened(path, model) as trace:
        assert trace.complete
        assert trace.summary["error"] == "ZeroDivisionError"
        assert_identical(trace.replay())


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt(), BadInputError("no")])
def test_an_exception_inside_an_operation_leaves_what_came_before(path, model, monkeypatch, error):
    calls = []

    def failing(gate_TF, up_TF):
        calls.append(1)
        if len(calls) == 2 * 3 + 2:  # the second layer in decode 3; the prefill is the first step
            raise error
        return true(gate_TF, up_TF)

    true = haaw.models.llama.swiglu
    with haaw.record(path) as recording:
        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(haaw.models.llama, "swiglu", failing)
            model.generate(PROMPT, max_tokens=9)
        assert LISTENING.get() is None
        after = model.generate(PROMPT, max_tokens=3)
    nothing_stays(recording.recorder)
    assert after.token_ids == model.generate(PROMPT, max_tokens=3).token_ids
    with opened(path, model) as trace:
        assert trace.complete
        assert [step.name for step in trace.steps(request=1) if step.stage == "decode"] == [
            "decode 1", "decode 2", "decode 3",
        ]  # fmt: skip
        assert_identical(trace.replay())
        assert [each.facts["reason"] for each in trace.facts("finish")][1] == "length"


def test_an_orphan_fails_the_request_and_not_the_next(path, model, monkeypatch):
    true = haaw.models.llama.swiglu

    def computes_outside(gate_TF, up_TF):
        return true(gate_TF * 1, up_TF)

    with haaw.record(path) as recording:
        with monkeypatch.context() as patch, pytest.raises(OrphanError, match=r"swiglu reads .* gate_TF"):
            patch.setattr(haaw.models.llama, "swiglu", computes_outside)
            model.generate(PROMPT, max_tokens=2)
        answer = model.generate(PROMPT, max_tokens=3)
    nothing_stays(recording.recorder)
    assert answer.token_ids == model.generate(PROMPT, max_tokens=3).token_ids
    with opened(path, model) as trace:
        assert_identical(trace.replay(request=2))


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_an_abandoned_stream_leaves_nothing_behind(path, model, taken, how):
    with haaw.record(path) as recording:
        request = model.request(PROMPT, max_tokens=8)
        stream = iter(request)
        for _ in range(taken):
            next(stream)
            assert LISTENING.get() is None
        if how == "closed":
            stream.close()
        del stream
        gc.collect()
        after = model.generate(PROMPT, max_tokens=3)
    nothing_stays(recording.recorder)
    assert after.finish.reason == "length"
    with opened(path, model) as trace:
        assert_identical(trace.replay())
        assert len(trace.steps("decode", request=1)) == max(taken - 1, 0)


def test_a_request_that_outlives_its_recording_goes_on_untraced(path, model):
    expected = model.generate(PROMPT, max_tokens=6)
    with haaw.record(path) as recording:
        unread = model.request(PROMPT, max_tokens=6)
        begun = model.request(PROMPT, max_tokens=6)
        stream = iter(begun)
        next(stream)
        next(stream)
    list(stream)
    assert begun.answer.token_ids == unread.run().token_ids == expected.token_ids
    nothing_stays(recording.recorder)
    with opened(path, model) as trace:
        assert [step.name for step in trace.steps("decode")] == ["decode 1"]
        assert_identical(trace.replay())
    with haaw.record(path.with_name("next.haaw")):
        model.generate(PROMPT, max_tokens=2)
    assert_identical(replayed(path.with_name("next.haaw"), model))


# Ctrl-C at any instruction.

PACKAGES = (*TRAPPED, *(f"{PACKAGE}/{part}/" for part in ("ops", "tracing")))


def interrupted(path: Path, model: LanguageModel, strike: int, pool: PagePool | None = None) -> list[int]:
    """A traced request with Ctrl-C at one instruction, and what must hold behind it."""
    settings = {} if pool is None else {"cache": "paged", "cache_options": {"pool": pool}}
    with haaw.record(path) as recording:
        request = model.request(PROMPT[:3], max_tokens=2, **settings)
        with contextlib.suppress(KeyboardInterrupt), interrupt_at(strike, every="instruction", packages=PACKAGES) as seen:
            read_to_the_end(request)
        assert LISTENING.get() is None
        assert not recording.recorder._inside
        after = model.generate(PROMPT[:3], max_tokens=2, **settings)
    nothing_stays(recording.recorder)
    assert after.finish.reason == "length"
    with opened(path, model) as trace:
        assert trace.complete
        assert_identical(trace.replay(request=2))
        report = trace.replay()
        assert report.ok, report
    return seen


def test_ctrl_c_at_any_instruction_leaves_no_recorder_behind(path, rng):
    model = model_of("llama")
    total = interrupted(path, model, 0)[0]
    for strike in np.sort(rng.integers(1, total, 8)):
        interrupted(path, model, int(strike))


def test_ctrl_c_leaves_a_shared_pool_in_order(path, rng):
    """The buffers of a pool outlive the request that was interrupted when it had just made them."""
    model = model_of("llama")

    def pool() -> PagePool:
        layout = model.transformer.cache_layout
        return PagePool(layout, model.transformer.prototype_Z, blocks=20, block_size=4)

    total = interrupted(path, model, 0, pool())[0]
    for strike in np.sort(rng.integers(1, total, 6)):
        interrupted(path, model, int(strike), pool())


@pytest.mark.long
def test_ctrl_c_at_every_fiftieth_instruction_leaves_no_recorder_behind(path):
    model = model_of("llama")
    for strike in range(1, interrupted(path, model, 0)[0], 50):
        interrupted(path, model, strike)


# Threads.


@pytest.mark.parametrize("cache", ["dynamic", "offloaded"])
def test_requests_in_several_threads_take_turns_by_steps(path, model, cache):
    prompts = [[n, 2 * n, 3 * n] for n in range(1, 6)]
    expected = [model.generate(prompt, max_tokens=6, **CACHES[cache]).token_ids for prompt in prompts]
    with haaw.record(path) as recording:
        requests = [model.request(prompt, max_tokens=6, **CACHES[cache]) for prompt in prompts]
        threads = [threading.Thread(target=request.run) for request in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    nothing_stays(recording.recorder)
    assert [request.answer.token_ids for request in requests] == expected
    with opened(path, model) as trace:
        assert_identical(trace.replay())
        numbers = {step.request for step in trace.steps("decode")}
        assert numbers == {1, 2, 3, 4, 5}
        assert all(len(trace.steps("decode", request=number)) == 5 for number in numbers)


def test_two_threads_read_two_streams_in_turns(path, model):
    expected = [model.generate(prompt, max_tokens=6).token_ids for prompt in (PROMPT, PROMPT[:3])]
    with haaw.record(path):
        requests = [model.request(prompt, max_tokens=6) for prompt in (PROMPT, PROMPT[:3])]
        streams = [iter(request) for request in requests]

        def take(stream) -> None:
            next(stream, None)

        for turn in range(14):  # each piece in a thread of its own
            thread = threading.Thread(target=take, args=(streams[turn % 2],))
            thread.start()
            thread.join()
    assert [request.answer.token_ids for request in requests] == expected
    assert_identical(replayed(path, model))


def test_two_recordings_in_two_threads_keep_apart(tmp_path, model):
    both = threading.Barrier(2)

    def record_one(number: int) -> None:
        with haaw.record(tmp_path / f"{number}.haaw"):
            both.wait()
            model.generate(PROMPT[: 3 + number], max_tokens=6)
            both.wait()

    threads = [threading.Thread(target=record_one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert_identical(replayed(tmp_path / f"{number}.haaw", model))
    nothing_stays()


def test_the_end_of_a_recording_waits_for_a_step_in_another_thread(path, model, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()
    true = haaw.models.llama.swiglu

    def slow(gate_TF, up_TF):
        inside.set()
        go_on.wait(10)
        return true(gate_TF, up_TF)

    monkeypatch.setattr(haaw.models.llama, "swiglu", slow)
    with haaw.record(path):
        request = model.request(PROMPT, max_tokens=2)
        thread = threading.Thread(target=request.run)
        thread.start()
        assert inside.wait(10)
        threading.Timer(0.05, go_on.set).start()
    thread.join()
    assert request.answer.finish.reason == "length"
    with opened(path, model) as trace:
        assert trace.steps("prefill")
        assert_identical(trace.replay())


# A full disk.


class FullDisk:
    """Lets so many bytes be written, and then no more."""

    def __init__(self, monkeypatch, room: int) -> None:
        import haaw.tracing.container_writer as writing

        self.room = room
        true = writing.write_all

        def write_all(file, data):
            size = memoryview(data).nbytes
            if size > self.room:
                true(file, memoryview(data).cast("B")[: self.room])
                self.room = 0
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= size
            true(file, data)

        monkeypatch.setattr(writing, "write_all", write_all)


def test_a_full_disk_ends_the_trace_and_not_the_answer(path, monkeypatch):
    model = model_of("llama")
    expected = model.generate(PROMPT, max_tokens=6, **SAMPLING)
    with haaw.record(path, keep="full"):
        model.generate(PROMPT, max_tokens=6, **SAMPLING)
    size = path.stat().st_size
    steps_seen = set()
    for room in range(0, size, size // 60):
        with monkeypatch.context() as patch:
            FullDisk(patch, room)
            with pytest.warns(UserWarning, match=r"the trace run.haaw ends after \d+ segments: No space left"):
                with haaw.record(path, keep="full") as recording:
                    pieces = list(model.stream(PROMPT, max_tokens=6, **SAMPLING))
                    again = model.generate(PROMPT, max_tokens=6, **SAMPLING)
        assert "".join(piece.text for piece in pieces) == expected.text
        assert same_answer(again, expected)
        assert "No space left" in str(recording.failure)
        nothing_stays(recording.recorder)
        assert not recording.recorder._buffers.weights  # it lets go of everything at once
        if recording.recorder.sink.segments:
            with opened(path, model) as trace:
                assert not trace.complete
                assert len(trace.segments) == recording.recorder.sink.segments
                assert_identical(trace.replay())
                steps_seen.add(len(trace.steps("decode")))
    assert len(steps_seen) > 4


def test_a_disk_that_is_full_from_the_start_is_refused_in_one_sentence(path, monkeypatch):
    import haaw.tracing.container_writer as writing

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "create", full)
    with pytest.raises(BadInputError, match="cannot be created: No space left on device"), haaw.record(path):
        pass
    nothing_stays()


def test_a_disk_that_fills_up_while_the_trace_is_ended_keeps_every_step(path, model, monkeypatch):
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=3)
    with Trace(path) as trace:
        room = trace.container.members["summary.json"].offset - 60
    with monkeypatch.context() as patch:
        FullDisk(patch, room)
        with pytest.warns(UserWarning, match="No space left"), haaw.record(path):
            model.generate(PROMPT, max_tokens=3)
    with opened(path, model) as trace:
        assert not trace.complete
        assert len(trace.steps("decode")) == 2
        assert_identical(trace.replay())


# What is kept.


def test_rules_keep_what_they_name_and_nothing_else(path, model):
    with haaw.record(path, keep="replayable; full: op=softmax layer=1"):
        model.generate(PROMPT, max_tokens=4)
    with opened(path, model) as trace:
        kept = {(event.name, event.place.layer) for event in trace if event.kind == "operation" and event.outputs[0].is_kept}
        assert kept == {("softmax", 1)}
        assert_identical(trace.replay())
        assert trace.replay().counts["identical"] >= 4


def test_events_alone_keep_no_values(path, model):
    with haaw.record(path, keep="events"):
        model.generate(PROMPT, max_tokens=4)
    with Trace(path) as trace:
        assert not any(segment.kept for segment in trace.segments)
        assert all(output.hash for event in trace for output in event.outputs if "kv_" not in event.name)


def test_without_hashes_there_are_none_and_a_full_trace_replays_all_the_same(path, model):
    with haaw.record(path, keep="full", hash="off"):
        model.generate(PROMPT, max_tokens=4)
    with opened(path, model) as trace:
        assert not any(output.hash for event in trace for output in event.outputs)
        report = trace.replay()
    assert report.ok
    assert report.counts["identical"] > 0.7 * len(report)


def test_a_budget_falls_from_level_to_level_and_says_so(path, model):
    sizes = {}
    for keep in ("full", "replayable", "events"):
        with haaw.record(path, keep=keep):
            model.generate(PROMPT, max_tokens=60)
        sizes[keep] = path.stat().st_size
    with haaw.record(path, keep="events"):
        pass
    start = path.stat().st_size
    budget = (sizes["full"] + sizes["replayable"]) // 2 - start
    with haaw.record(path, keep="full", budget=budget):
        model.generate(PROMPT, max_tokens=60)
    with opened(path, model) as trace:
        assert trace.complete
        falls = [fact.facts for fact in trace.facts("degraded")]
        assert [fall["now"] for fall in falls][:1] == ["replayable"]
        assert trace.replay().ok
        assert len(trace.steps("decode")) == 59
    assert path.stat().st_size - start < 1.1 * budget


def test_a_budget_that_is_spent_ends_the_trace_with_a_warning_and_not_the_answer(path, model):
    expected = model.generate(PROMPT, max_tokens=60)
    with haaw.record(path, keep="events"):
        model.generate(PROMPT, max_tokens=1)
    one = path.stat().st_size
    with pytest.warns(UserWarning, match=r"run.haaw ends after [\d,]+ events: its budget of [\d,]+ bytes was spent"):
        with haaw.record(path, keep="full", budget=300_000):
            answer = model.generate(PROMPT, max_tokens=60)
    assert same_answer(answer, expected)
    assert one + 200_000 < path.stat().st_size < one + 330_000
    with opened(path, model) as trace:
        falls = [fact.facts for fact in trace.facts("degraded")]
        assert [fall["now"] for fall in falls] == ["replayable", "events", "nothing"]
        assert all(fall["budget_bytes"] == 300_000 for fall in falls)
        assert trace.complete
        report = trace.replay()
        assert report.ok
        assert report.counts[verdicts.NOT_KEPT] > 0
        assert 3 < len(trace.steps("decode")) < 59


# Memory.


def test_nothing_is_held_when_the_block_is_left(path):
    """S102: hooks that kept every array alive."""
    model = tiny_language_model(1)
    made: list[weakref.ref] = []
    true = TraceRecorder.run

    def run(self, op, args, kwargs, scope):
        result = true(self, op, args, kwargs, scope)
        made.extend(weakref.ref(each) for each in (result if isinstance(result, tuple) else (result,)) if each is not None)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TraceRecorder, "run", run)
        with haaw.record(path, keep="full") as recording:
            model.generate(PROMPT, max_tokens=9, **SAMPLING)
            inside = sum(each() is not None for each in made)
    gc.collect()
    assert len(made) > 400
    assert inside == 0  # nor between two requests
    assert not any(each() is not None for each in made)
    weights = [weakref.ref(each) for each in model.transformer.named_weights().values()]
    del model
    gc.collect()
    assert not any(each() is not None for each in weights)
    assert recording.recorder.closed


def own_bytes() -> tuple[int, int]:
    """Bytes that the files of `haaw.tracing` hold: for the directory of the file, and for everything else."""
    gc.collect()
    filters = [tracemalloc.Filter(True, "*/haaw/tracing/*")]
    found = tracemalloc.take_snapshot().filter_traces(filters).statistics("filename")
    directory = sum(each.size for each in found if "container_" in each.traceback[0].filename)
    return directory, sum(each.size for each in found) - directory


@pytest.mark.parametrize("tokens", [600, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_long_run_takes_no_more_memory_as_it_goes(path, tokens):
    """Only the directory, which is written at the end, grows: by names and places of the members of each step."""
    model = LanguageModel("random", tiny_llama(1, context_length_tokens=tokens + 20, layers=1), NumberText())
    settings = {"max_tokens": tokens, "cache": "sliding", "cache_options": {"window": 16}, **SAMPLING}
    tracemalloc.start()
    try:
        with haaw.record(path):
            stream = iter(model.request(PROMPT, **settings))
            for _ in range(tokens // 10):
                next(stream)
            directory_before, rest_before = own_bytes()
            for _ in range(tokens - tokens // 10 - 1):
                next(stream)
            directory, rest = own_bytes()
            stream.close()
    finally:
        tracemalloc.stop()
    assert rest - rest_before < 32 * 1024
    assert directory - directory_before < 1_000 * tokens


# A device.


def counted(monkeypatch) -> list[str]:
    """Notes for every `.get()` whether the recorder was at the end of a step."""
    seen: list[str] = []
    at_the_end: list[int] = []
    true_get, true_flush = FakeArray.get, TraceRecorder.flush

    def get(self):
        caller = sys._getframe(1)
        while "/haaw/arrays.py" in caller.f_code.co_filename and caller.f_back is not None:
            caller = caller.f_back
        if "/haaw/tracing/" in caller.f_code.co_filename:
            seen.append("at the end of a step" if at_the_end else "in between")
        return true_get(self)

    def flush(self):
        at_the_end.append(1)
        try:
            true_flush(self)
        finally:
            at_the_end.pop()

    monkeypatch.setattr(FakeArray, "get", get)
    monkeypatch.setattr(TraceRecorder, "flush", flush)
    return seen


@pytest.mark.parametrize("keep", ["full", "replayable", "events"])
@pytest.mark.parametrize("cache", ["dynamic", "paged", "quantised"])
def test_on_a_device_nothing_comes_to_the_host_between_two_operations(tmp_path, monkeypatch, keep, cache):
    seen = counted(monkeypatch)
    device = LanguageModel("random", tiny_llama(1, xp=FakeLibrary()), NumberText())
    settings = {"max_tokens": 4, "prefill_chunk_tokens": 5, **SAMPLING, **CACHES[cache]}
    with haaw.record(tmp_path / "device.haaw", keep=keep):
        model = device
        answer = model.generate(PROMPT, **settings)
    of_weights = len(device.transformer.named_weights())
    assert seen.count("in between") <= of_weights  # hashed once, when the file begins
    assert seen.count("at the end of a step") > 100
    with haaw.record(tmp_path / "host.haaw", keep=keep):
        expected = model_of("llama").generate(PROMPT, **settings)
    assert answer.token_ids == expected.token_ids
    assert structure(tmp_path / "device.haaw") == structure(tmp_path / "host.haaw")
    assert_identical(replayed(tmp_path / "device.haaw", model_of("llama"))) if keep != "events" else None


def structure(path: Path) -> list:
    """All of a trace but times, addresses and sizes."""
    with Trace(path) as trace:
        return [
            (
                event.kind,
                event.name,
                event.place,
                [(link.parameter, link.item, link.window) for link in event.inputs],
                [(output.name, output.window, output.hash, output.axes, output.is_kept) for output in event.outputs],
                event.args,
            )
            for event in trace
            if event.place.stage != "start-up"
        ]


def test_large_results_of_a_device_come_over_before_they_pile_up(tmp_path, monkeypatch):
    import haaw.tracing.recorder as recorder

    monkeypatch.setattr(recorder, "MOST_HELD_BYTES", 2_000)
    monkeypatch.setattr(recorder, "MOST_PENDING_BYTES", 10_000)
    most = []
    true = TraceRecorder._later

    def later(self, *arguments, **named):
        true(self, *arguments, **named)
        most.append(self._on_device_bytes)

    monkeypatch.setattr(TraceRecorder, "_later", later)
    device = LanguageModel("random", tiny_llama(1, xp=FakeLibrary()), NumberText())
    with haaw.record(tmp_path / "device.haaw", keep="full"):
        device.generate(PROMPT, max_tokens=3)
    assert 5_000 < max(most) < 20_000
    assert_identical(replayed(tmp_path / "device.haaw", model_of("llama")))


# Small things.


def test_every_dtype_is_recorded_and_replayed(tmp_path):
    for dtype in ("float16", "float64"):
        model = LanguageModel("random", tiny_llama(1, dtype=dtype), NumberText())
        with haaw.record(tmp_path / "run.haaw", keep="full"):
            answer = model.generate(PROMPT, max_tokens=4)
        assert answer.token_ids == model.generate(PROMPT, max_tokens=4).token_ids
        assert_identical(replayed(tmp_path / "run.haaw", model))


def test_more_requests_than_a_row_can_tell_apart_are_refused(path, model, monkeypatch):
    import haaw.tracing.recorder as recorder

    monkeypatch.setattr(recorder, "MOST_REQUESTS", 2)
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=1)
        model.generate(PROMPT, max_tokens=1)
        with pytest.raises(BadInputError, match="at most 2 requests"):
            model.generate(PROMPT, max_tokens=1)
    assert_identical(replayed(path, model))


def test_the_summary_counts_what_is_in_the_file(path, model):
    with haaw.record(path, keep="full"):
        model.generate(PROMPT, max_tokens=3)
        model.generate(PROMPT, max_tokens=3)
    with Trace(path) as trace:
        summary = trace.summary
        assert summary["events"] == len(trace)
        assert summary["segments"] == len(trace.segments)
        assert summary["requests"] == 2
        kept = sum(int(segment.kept_table["nbytes"].sum()) for segment in trace.segments)
        assert summary["kept_bytes"] == kept
        assert summary["error"] is None
        assert "under way" not in repr(trace)
