"""However a request is stopped, it ends in one state, keeps whole steps, gives its cache back and harms no other.

FAULTS: S87 to S90 (cancellation and counts), S96 (failure in mid-stream), S103 (interrupted in a half state).
"""

import contextvars
import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from support.gguf_models import tiny_gguf
from support.scripted import ScriptedModel
from support.tiny_models import tiny_language_model

import haaw
import haaw.models.llama
from haaw.errors import BadInputError
from haaw.generation.finish import Finish
from haaw.generation.language_model import LanguageModel
from haaw.ops.recorder import LISTENING


def released(caches) -> bool:
    return bool(caches) and all(cache.length == 0 and cache.memory().allocated_bytes == 0 for cache in caches)


def raise_at(step_of_error: int, error: BaseException):
    def before_step(step: int) -> None:
        if step == step_of_error:
            raise error

    return before_step


def test_a_keyboard_interrupt_inside_layer_2_at_step_5_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """S103: interrupting left the model in a half state."""
    model = tiny_language_model(1, layers=4)
    fresh = model.generate([1, 2, 3], max_tokens=12)
    true, calls = haaw.models.llama.swiglu, []

    def interrupted(gate_TF, up_TF):
        calls.append(1)
        if len(calls) == 5 * 4 + 2 + 1:  # prefill is step 0; layers count from 0
            raise KeyboardInterrupt
        return true(gate_TF, up_TF)

    request = model.request([1, 2, 3], max_tokens=12)
    with monkeypatch.context() as patch:
        patch.setattr(haaw.models.llama, "swiglu", interrupted)
        with pytest.raises(KeyboardInterrupt):
            request.run()
    partial = request.answer
    assert partial.finish == Finish("cancelled", {"by": "keyboard", "phase": "decode"})
    assert partial.token_ids == fresh.token_ids[:5]
    assert partial.text == "".join(f"{token_id} " for token_id in fresh.token_ids[:5])
    assert not partial.finish.complete
    assert request.state == "finished"
    again = model.generate([1, 2, 3], max_tokens=12)
    assert (again.token_ids, again.text, again.finish) == (fresh.token_ids, fresh.text, fresh.finish)


@pytest.mark.parametrize("step", range(4))
def test_an_interrupt_at_any_step_gives_the_cache_back(step: int, request_for, caches) -> None:
    request = request_for(
        [7, 8], prefill_chunk_tokens=3, max_tokens=4, before_step=raise_at(step, KeyboardInterrupt())
    )
    with pytest.raises(KeyboardInterrupt):
        request.run()
    assert request.answer.finish.reason == "cancelled"
    assert request.answer.finish.evidence["phase"] == ("prefill" if step < 2 else "decode")
    assert request.answer.token_ids == ((), (), (7,), (7, 8))[step]
    assert released(caches)


@pytest.mark.parametrize("step", range(4))
def test_an_error_is_a_failure_with_its_reason_and_goes_on_to_the_caller(
    step: int, request_for, caches
) -> None:
    """S96: a failure after the first piece looked like a short answer."""
    request = request_for(
        [7, 8], prefill_chunk_tokens=3, max_tokens=4, before_step=raise_at(step, MemoryError("no room"))
    )
    deltas = []
    with pytest.raises(MemoryError):
        deltas.extend(request)
    assert request.answer.finish.reason == "failed"
    assert "MemoryError: no room" in request.answer.finish.evidence["error"]
    assert request.answer.token_ids == ((), (), (7,), (7, 8))[step]
    assert released(caches)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("step", [0, 2])
def test_scores_that_are_no_numbers_end_the_request_as_failed(
    step: int, value: float, request_for, caches
) -> None:
    request = request_for(
        [7, 8], before_step=lambda n: np.full(300, value, np.float32) if n == step else None
    )
    answer = request.run()
    assert answer.finish.reason == "failed"
    assert "score" in answer.finish.evidence["error"]
    assert answer.token_ids == (7, 8)[:step]
    assert released(caches)


def test_one_nan_among_the_scores_is_enough(request_for) -> None:
    scores_V = np.zeros(300, np.float32)
    scores_V[200] = np.nan
    assert request_for([7], before_step=lambda step: scores_V).run().finish.reason == "failed"


@pytest.mark.filterwarnings("error")
def test_weights_whose_products_overflow_fail_without_warnings() -> None:
    model = tiny_language_model(1)
    model.transformer.weights.layers[0].gate_up_ZD[...] = 3e38
    answer = model.generate([1, 2, 3])
    assert answer.finish.reason == "failed"


def test_a_damaged_weight_fails_one_request_and_not_the_next() -> None:
    model = tiny_language_model(1)
    norm_D = model.transformer.weights.layers[1].mlp_norm_D
    good, before = model.generate([1, 2]), norm_D[3].copy()
    norm_D[3] = np.nan
    assert model.generate([1, 2]).finish.reason == "failed"
    norm_D[3] = before
    assert model.generate([1, 2]).token_ids == good.token_ids


@pytest.mark.parametrize("taken", [1, 3])
def test_a_stream_that_is_closed_is_cancelled_by_its_reader(taken: int, request_for, caches) -> None:
    request = request_for([7, 8])
    stream = iter(request)
    for _ in range(taken):
        next(stream)
    stream.close()
    assert request.answer.finish.reason == "cancelled"
    assert request.answer.finish.evidence["by"] == "the reader of the stream"
    assert request.answer.token_ids == (7, 8, 7)[:taken]
    assert released(caches)


def test_a_stream_that_is_dropped_gives_its_cache_back(request_for, caches) -> None:
    request = request_for([7, 8])
    for _ in request:
        break
    gc.collect()
    assert request.answer.finish.reason == "cancelled"
    assert released(caches)


def test_a_stream_that_was_never_begun_holds_no_cache(request_for, caches) -> None:
    iter(request_for([7, 8])).close()
    assert caches == []


def test_a_request_cancelled_before_it_runs_does_no_work(request_for) -> None:
    """S88: a queued request whose caller had gone was still run."""
    request = request_for([7, 8])
    request.cancel(by="the teacher")
    answer = request.run()
    assert answer.finish == Finish("cancelled", {"by": "the teacher", "phase": "queue"})
    assert answer.token_ids == ()
    assert request._model.step_tokens == []


def test_another_thread_may_cancel_during_a_chunked_prefill(request_for, caches) -> None:
    """S89: a long prompt was only given up after the whole prefill. Here: at most one more chunk."""
    begun, cancelled = threading.Event(), threading.Event()

    def before_step(step: int) -> None:
        if step == 3:
            begun.set()
            assert cancelled.wait(10)

    request = request_for([7], prompt_tokens=100, prefill_chunk_tokens=10, before_step=before_step)

    def cancel() -> None:
        assert begun.wait(10)
        request.cancel(by="another thread")
        cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    answer = request.run()
    canceller.join()
    assert answer.finish == Finish("cancelled", {"by": "another thread", "phase": "prefill"})
    assert request._model.step_tokens == [10] * 4
    assert released(caches)


def test_another_thread_may_cancel_between_decode_steps(request_for, caches) -> None:
    """S87: generation went on after the reader had left."""
    request = request_for([7, 8])
    stream = iter(request)
    next(stream)
    next(stream)
    canceller = threading.Thread(target=request.cancel)
    canceller.start()
    canceller.join()
    assert list(stream) == []
    assert request.answer.finish == Finish("cancelled", {"by": "caller", "phase": "decode"})
    assert request.answer.token_ids == (7, 8)
    assert released(caches)


def test_a_request_that_has_ended_cannot_be_cancelled_any_more(request_for) -> None:
    request = request_for([7], max_tokens=2)
    request.run()
    request.cancel()
    assert request.answer.finish.reason == "length"


def test_a_stream_may_be_read_in_other_threads_and_contexts() -> None:
    """No context variable may stay set across a `yield`: each piece is taken in a thread of its own."""
    model = tiny_language_model(3)
    expected = model.generate([5, 6], max_tokens=5)
    request = model.request([5, 6], max_tokens=5)
    stream = iter(request)
    ids: list[int] = []

    def take() -> None:
        assert LISTENING.get() is None
        delta = next(stream, None)
        ids.extend(delta.token_ids if delta else ())
        assert LISTENING.get() is None

    for turn in range(6):
        if turn % 2:
            contextvars.copy_context().run(take)
        else:
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
    assert tuple(ids) == request.answer.token_ids == expected.token_ids


def test_requests_that_take_turns_do_not_mix() -> None:
    """S86: parallel requests received each other's content."""
    model = tiny_language_model(4)
    prompts = [[n, 2 * n, 3 * n] for n in range(1, 7)]
    alone = [model.generate(prompt, max_tokens=8).token_ids for prompt in prompts]
    requests = [model.request(prompt, max_tokens=8) for prompt in prompts]
    streams = [iter(request) for request in requests]
    for _ in range(9):
        for stream in streams:
            next(stream, None)
    assert [request.answer.token_ids for request in requests] == alone


def test_an_id_that_the_tokenizer_does_not_know_is_a_failure_that_keeps_the_text(tmp_path: Path) -> None:
    """Models may have more rows of scores than their tokenizer has tokens."""
    tokenizer = haaw.load(tiny_gguf(tmp_path / "tiny.gguf")).tokenizer
    model = LanguageModel("padded", ScriptedModel([104, 299], prompt_length=3), tokenizer)
    request = model.request([1, 2, 3])
    with pytest.raises(BadInputError, match=r"299.*263 tokens"):
        request.run()
    assert (request.answer.finish.reason, request.answer.text) == ("failed", "h")
    assert request.answer.token_ids == (104,)
