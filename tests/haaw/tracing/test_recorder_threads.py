"""Requests in several threads: they take turns by steps, and each replays."""

import threading

import pytest
from support.traced import CACHES, PROMPT, assert_identical, model_of, nothing_stays, opened, replayed

import haaw
import haaw.models.llama


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


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
