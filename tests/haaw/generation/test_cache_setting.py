"""Requests over every kind of cache: the same answer, a closed log, and in the mode "none" nothing that is kept."""

from contextlib import nullcontext
from typing import Any

import pytest
from support.fake_array import FakeLibrary
from support.orphans import OrphanRecorder
from support.scripted import ScriptedModel
from support.tiny_models import NumberText, tiny_language_model

from haaw.caches.dynamic import DynamicCache
from haaw.caches.kinds import KINDS
from haaw.caches.protocol import CacheError
from haaw.errors import BadInputError
from haaw.generation.conversation import Conversation
from haaw.generation.engine import advance_without_cache
from haaw.generation.language_model import LanguageModel
from haaw.ops.recorder import choosing_recorder

PROMPT = [5, 9, 2, 60, 33, 33, 1, 17, 42, 8, 0]
EXACT: dict[str, dict[str, Any]] = {
    "dynamic": {"cache": "dynamic", "cache_options": {"first_capacity": 3}},
    "concatenated": {"cache": "concatenated"},
    "offloaded": {"cache": "offloaded"},
    "paged": {"cache": "paged", "cache_options": {"block_size": 4}},
    "static": {"cache": "static"},
    "sliding over the context": {"cache": "sliding", "cache_options": {"window": 128}},
    "none": {"cache": "none"},
}
CHUNKS = pytest.mark.parametrize("chunk", [1, 4, 256])
EVERY = pytest.mark.parametrize("settings", EXACT.values(), ids=EXACT)


@CHUNKS
@EVERY
def test_the_answer_does_not_depend_on_the_cache(settings, chunk):
    model = tiny_language_model(1)
    answer = model.generate(PROMPT, max_tokens=40, prefill_chunk_tokens=chunk, **settings)
    assert answer.token_ids == model.generate(PROMPT, max_tokens=40).token_ids
    assert answer.finish.reason == "length"


def recorded(settings: dict[str, Any], **changes: Any) -> tuple[OrphanRecorder, Any]:
    recorder, model = OrphanRecorder(), tiny_language_model(1, **changes)
    with choosing_recorder(recorder):
        answer = model.generate(PROMPT, max_tokens=30, prefill_chunk_tokens=4, **settings)
    recorder.check_weights()
    return recorder, answer


APPROXIMATE = {
    "quantised": {"cache": "quantised", "cache_options": {"group": 4, "residual": 4}},
    "sliding over 5": {"cache": "sliding", "cache_options": {"window": 5}},
    "sliding over 3 and 2 sinks": {"cache": "sliding", "cache_options": {"window": 3, "sinks": 2}},
}


@pytest.mark.parametrize("settings", (EXACT | APPROXIMATE).values(), ids=EXACT | APPROXIMATE)
@pytest.mark.parametrize("heads", ["together", "separate"])
def test_a_request_reads_nothing_that_is_not_accounted_for(settings, heads):
    _, answer = recorded({**settings, "heads": heads})
    assert answer.token_ids == tiny_language_model(1).generate(PROMPT, max_tokens=30, **settings).token_ids


@pytest.mark.parametrize("settings", (EXACT | APPROXIMATE).values(), ids=EXACT | APPROXIMATE)
def test_another_array_library_is_served_as_well(settings):
    _, answer = recorded(settings, xp=FakeLibrary())
    assert answer.token_ids == tiny_language_model(1).generate(PROMPT, max_tokens=30, **settings).token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_chosen_by_one_word(kind):
    assert len(tiny_language_model(1).generate(PROMPT, max_tokens=3, cache=kind).token_ids) == 3


@pytest.mark.parametrize(("chunk", "prefill"), [(100, [7]), (7, [7]), (3, [3, 3, 1])])
def test_without_a_cache_every_step_takes_all_ids_anew(chunk, prefill):
    """Three new ids: the prompt of 7, then 8 and 9 tokens; in chunks within the step."""
    scripted = ScriptedModel([5, 6, 7], prompt_length=7)
    model = LanguageModel("scripted", scripted, NumberText())
    model.generate([1] * 7, max_tokens=3, cache="none", prefill_chunk_tokens=chunk)
    steps = [[min(chunk, total - start) for start in range(0, total, chunk)] for total in (7, 8, 9)]
    assert steps[0] == prefill
    assert scripted.step_tokens == [tokens for step in steps for tokens in step]


def test_without_a_cache_nothing_lives_from_one_step_to_the_next():
    recorder, _ = recorded({"cache": "none"})
    steps = {
        scope.step for name, scope in recorder.scopes if name == "kv_allocate" and scope.stage == "decode"
    }
    assert steps == set(range(1, 30))  # keys and values of their own in every step
    assert recorder.counts["kv_append"] > 2 * 2 * 30


@pytest.mark.parametrize("fails", [False, True])
def test_without_a_cache_the_one_of_a_step_is_released_behind_it(fails):
    model = ScriptedModel(
        [5], prompt_length=7, before_step=lambda step: 1 / 0 if fails and step == 2 else None
    )
    made: list[DynamicCache] = []

    def make() -> DynamicCache:
        made.append(DynamicCache(model.cache_layout, model.prototype_Z))
        return made[-1]

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        advance_without_cache(model, make, [1] * 7, chunk_tokens=3)
    assert len(model.step_tokens) == (2 if fails else 3)
    (cache,) = made
    assert (cache.memory().allocated_bytes, cache.length) == (0, 0)
    with pytest.raises(CacheError, match="released"):
        cache.fork()


def test_a_window_shorter_than_the_context_is_remarked_on():
    model = tiny_language_model(1)
    request = model.request(PROMPT, cache="sliding", cache_options={"window": 60, "sinks": 4})
    (note,) = request.notes
    assert note.startswith("this cache keeps the last 60 positions and the first 4")
    assert "approximation" in note
    assert model.request(PROMPT, cache="sliding", cache_options={"window": 128}).notes == ()


def test_a_conversation_refuses_a_cache_that_cannot_be_made_at_once():
    class Template:
        def render_to_ids(self, messages, tokenizer):
            raise AssertionError

    plain = tiny_language_model(1)
    model = LanguageModel("with a template", plain.transformer, plain.tokenizer, Template())
    with pytest.raises(BadInputError, match="window of 0"):
        Conversation(model, cache="sliding", cache_options={"window": 0})
