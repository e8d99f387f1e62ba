"""A request's life: every end with its evidence, limits to the token, deltas and counts that add up.

FAULTS: S18 (several end tokens), S20 to S26 (limits, lengths, prompts), S93 (one end, known at the end only).
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from support.gguf_models import tiny_gguf
from support.tiny_models import tiny_language_model

import haaw
from haaw.errors import BadInputError
from haaw.generation.finish import Finish


def released(caches) -> bool:
    return all(cache.length == 0 and cache.memory().allocated_bytes == 0 for cache in caches)


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 8])
def test_the_limit_is_exact(max_tokens: int, request_for, caches) -> None:
    """S20: asking for N gave N + 1. S22: and the reason said that the model had ended."""
    request = request_for([7, 8, 9], max_tokens=max_tokens)
    answer = request.run()
    assert answer.token_ids == tuple([7, 8, 9, 7, 8, 9, 7, 8][:max_tokens])
    assert answer.finish == Finish("length", {"max_tokens": max_tokens})
    assert not answer.finish.complete
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, max_tokens)
    assert request._model.step_tokens == [5] + [1] * max(
        0, max_tokens - 1
    )  # no step whose choice nobody wants
    assert released(caches)


@pytest.mark.parametrize("end", [9, 2, 4])
def test_any_of_several_end_tokens_ends_an_answer(end: int, request_for) -> None:
    """S18: a chat model ran past its turn marker since one of two end tokens was unknown."""
    answer = request_for([7, 8, end, 7], eos_ids=[9, 2, 4]).run()
    assert answer.finish == Finish("eos", {"token_id": end})
    assert answer.finish.complete
    assert answer.token_ids == (7, 8, end)
    assert answer.text == "7 8 "


def test_an_end_token_on_the_last_permitted_step_is_a_natural_end(request_for) -> None:
    assert request_for([7, 9], eos_ids=[9], max_tokens=2).run().finish.reason == "eos"
    assert request_for([7, 9], eos_ids=[9], context=7).run().finish.reason == "eos"


@pytest.mark.parametrize(("prompt_tokens", "new"), [(5, 5), (9, 1), (10, 0)])
def test_prompt_and_answer_never_exceed_the_context(prompt_tokens: int, new: int, request_for) -> None:
    """S26: nothing is shifted away; the answer ends. A prompt that fills the context leaves room for nothing."""
    answer = request_for([7], prompt_tokens=prompt_tokens, context=10, max_tokens=100).run()
    assert answer.finish == Finish("context", {"context_length_tokens": 10})
    assert answer.token_ids == (7,) * new
    assert len(answer.prompt_ids) + len(answer.token_ids) == 10


def test_a_prompt_longer_than_the_context_is_refused_with_both_counts(request_for) -> None:
    """S25: it was cut silently."""
    with pytest.raises(BadInputError, match=r"65 tokens.*64.*shorten"):
        request_for([7], prompt_tokens=65, context=64)


def test_an_empty_prompt_is_refused(request_for) -> None:
    """S23, S24: an empty text and an empty list of ids are treated alike."""
    with pytest.raises(BadInputError, match="no token ids"):
        request_for([7], prompt_tokens=0)
    model = tiny_language_model(1)
    for prompt in ("", []):
        with pytest.raises(BadInputError, match="no token ids"):
            model.generate(prompt)


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 6, 256])
def test_the_prompt_is_taken_in_chunks(chunk: int, request_for) -> None:
    request = request_for([7, 8], max_tokens=3, prefill_chunk_tokens=chunk)
    assert request.run().token_ids == (7, 8, 7)
    steps = request._model.step_tokens
    assert sum(steps[:-2]) == 5
    assert max(steps[:-2]) == min(chunk, 5)
    assert len(steps[:-2]) == -(-5 // chunk)


def test_deltas_add_up_to_the_answer(request_for) -> None:
    request = request_for([7, 8, 9], eos_ids=[9])
    deltas = list(request)
    answer = request.answer
    assert "".join(delta.text for delta in deltas) == answer.text == "7 8 "
    assert (
        tuple(token_id for delta in deltas for token_id in delta.token_ids) == answer.token_ids == (7, 8, 9)
    )
    assert [delta.token_bytes for delta in deltas] == [b"7 ", b"8 ", b"9 "]
    assert str(deltas[0]) == "7 "
    for earlier, later in itertools.pairwise(deltas):
        assert earlier.computed_s <= earlier.handed_over_s <= later.computed_s
    assert answer.first_token_s == deltas[0].computed_s


def test_streamed_text_is_the_text_decoded_in_one_go(tmp_path: Path, rng: np.random.Generator) -> None:
    """A random byte-level model answers with bytes that are rarely UTF-8: the hardest text to cut in pieces."""
    model = haaw.load(tiny_gguf(tmp_path / "tiny.gguf"))
    for max_tokens in (0, 1, 2, 3, 40):
        prompt = rng.integers(0, 256, 6).tolist()
        request = model.request(prompt, max_tokens=max_tokens, temperature=1.5)
        deltas = list(request)
        answer = request.answer
        shown = [token_id for token_id in answer.token_ids if token_id not in model.tokenizer.eos_ids]
        assert "".join(delta.text for delta in deltas) == answer.text == model.tokenizer.decode(shown)
        assert answer.usage.completion_tokens == len(answer.token_ids)


def test_usage_counts_ids_and_not_what_the_text_would_encode_to(tmp_path: Path) -> None:
    """S21: the ids of "h" and "e" are two tokens, though their text encodes to the one token "he"."""
    from support.scripted import ScriptedModel

    from haaw.generation.language_model import LanguageModel

    tokenizer = haaw.load(tiny_gguf(tmp_path / "tiny.gguf")).tokenizer
    model = LanguageModel("scripted", ScriptedModel(list(b"he"), prompt_length=3), tokenizer)
    answer = model.generate([1, 2, 3], max_tokens=4)
    assert answer.text == "hehe"
    assert answer.usage.to_dict() == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert len(tokenizer.encode(answer.text)) == 2


def test_a_request_goes_through_its_states_in_order(request_for) -> None:
    seen = []

    def look(step: int) -> None:
        seen.append(request.state)

    request = request_for([7], max_tokens=3, prefill_chunk_tokens=2, before_step=look)
    assert request.state == "queued"
    with pytest.raises(BadInputError, match="has not ended"):
        _ = request.answer
    request.run()
    assert seen == ["prefilling", "prefilling", "prefilling", "decoding", "decoding"]
    assert request.state == "finished"


def test_a_request_runs_once(request_for) -> None:
    request = request_for([7], max_tokens=2)
    stream = iter(request)
    next(stream)
    with pytest.raises(BadInputError, match="make a new one"):
        request.run()
    assert len(list(stream)) == 1
    with pytest.raises(BadInputError, match="make a new one"):
        iter(request)
    assert request.answer.token_ids == (7, 7)


def test_the_same_prompt_gives_the_same_ids_in_every_form() -> None:
    model = tiny_language_model(1)
    ids = [3, 14, 15]
    answers = {
        model.generate("3 14 15", max_tokens=6).token_ids,
        model.generate(ids, max_tokens=6).token_ids,
        model.generate(np.array(ids), max_tokens=6, form="raw").token_ids,
        tuple(delta.token_ids[0] for delta in model.stream(tuple(ids), max_tokens=6)),
    }
    assert len(answers) == 1


@pytest.mark.parametrize("heads", ["together", "separate"])
@pytest.mark.parametrize("chunk", [1, 2, 256])
def test_an_answer_equals_the_decode_loop_without_a_cache(heads: str, chunk: int, rng) -> None:
    from support.steps import all_logits

    model = tiny_language_model(2, dtype="float64")
    ids = rng.integers(0, 64, 9).tolist()
    expected: list[int] = []
    for _ in range(12):
        expected.append(int(all_logits(model.transformer, ids + expected)[-1].argmax()))
    answer = model.generate(ids, max_tokens=12, heads=heads, prefill_chunk_tokens=chunk)
    assert list(answer.token_ids) == expected


PROMPTS_REFUSED = {
    "an id beyond the vocabulary": ([1, 64], "id 64; this model's ids go from 0 to 63"),
    "a negative id": ([1, -1], "id -1"),
    "a huge id": ([2**70], "this model's ids"),
    "a fraction": ([1.0], "1.0 is no token id"),
    "a truth value": ([True], "True is no token id"),
    "texts": (["1", "2"], "no token id"),
    "messages and ids": ([{"role": "user", "content": "x"}, 1], "no token id"),
    "nothing": (None, "a prompt is"),
    "a number": (7, "a prompt is"),
    "bytes": (b"abc", "a prompt is"),
    "a mapping": ({"role": "user", "content": "x"}, "a prompt is"),
    "a message without a template": ([{"role": "user", "content": "x"}], "no chat template"),
}


@pytest.mark.parametrize(("prompt", "says"), PROMPTS_REFUSED.values(), ids=PROMPTS_REFUSED.keys())
def test_what_is_no_prompt_is_refused(prompt, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        tiny_language_model(1).request(prompt)


SETTINGS_REFUSED = {
    "an unknown name": ({"max_new_tokens": 5}, "max_new_tokens"),
    "a negative limit": ({"max_tokens": -1}, "max_tokens is -1"),
    "a fraction": ({"max_tokens": 1.5}, "max_tokens is 1.5"),
    "a truth value": ({"max_tokens": True}, "max_tokens is True"),
    "a text": ({"max_tokens": "5"}, "max_tokens"),
    "an empty chunk": ({"prefill_chunk_tokens": 0}, "prefill_chunk_tokens is 0"),
    "an unknown form of attention": ({"heads": "both"}, "together"),
    "an unknown form of prompt": ({"form": "plain"}, '"auto", "chat" or "raw"'),
    "a system prompt without a chat": ({"system": "Be brief."}, "system"),
    "the chat form without a template": ({"form": "chat"}, "template"),
}


@pytest.mark.parametrize(("settings", "says"), SETTINGS_REFUSED.values(), ids=SETTINGS_REFUSED.keys())
def test_settings_that_mean_nothing_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        tiny_language_model(1).request("1 2 3", **settings)
