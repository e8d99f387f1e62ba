"""A run is a closed program: every array that an operation reads is accounted for (design, section 3)."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from support.fake_array import FakeLibrary
from support.orphans import OrphanRecorder
from support.tiny_models import tiny_language_model, tiny_llama

from haaw.caches.dynamic import DynamicCache
from haaw.generation.engine import advance
from haaw.models.pack import pack_tokens
from haaw.ops.recorder import choosing_recorder, recording

PROMPT = [5, 9, 2, 60, 33, 33, 1, 17, 42, 8, 0]
EVERY_STEP_OF_THE_PLAN = {
    "temperature": 0.8,
    "top_k": 30,
    "top_p": 0.95,
    "min_p": 0.01,
    "seed": 3,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {4: 1.5, 5: float("-inf")},
    "logprobs": 3,
}
FORMS = pytest.mark.parametrize("heads", ["together", "separate"])
SHAPES = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": True},
        {"kv_heads": 4},
        {"kv_heads": 1, "head_dim": 10},
        {"layers": 1, "query_heads": 1, "kv_heads": 1},
    ],
    ids=["grouped", "tied", "as many key heads", "one key head", "one head"],
)


def run_recorded(prompt: Sequence[int], seed: int = 1, *, changes: dict | None = None, **settings):
    recorder = OrphanRecorder()
    model = tiny_language_model(seed, **(changes or {}))
    with choosing_recorder(recorder):
        answer = model.generate(prompt, **settings)
    recorder.check_weights()
    return recorder, answer


@FORMS
@SHAPES
@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_a_request_reads_nothing_that_is_not_accounted_for(heads, changes, chunk):
    recorder, answer = run_recorded(
        PROMPT, changes=changes, max_tokens=12, prefill_chunk_tokens=chunk, heads=heads
    )
    plain = tiny_language_model(1, **changes).generate(
        PROMPT, max_tokens=12, prefill_chunk_tokens=chunk, heads=heads
    )
    assert answer.token_ids == plain.token_ids
    layers, steps = changes.get("layers", 2), -(-len(PROMPT) // chunk) + 11
    assert recorder.counts["swiglu"] == layers * steps
    assert {scope.stage for _, scope in recorder.scopes} == {"prefill", "decode"}


@FORMS
def test_a_prompt_of_one_token_is_accounted_for(heads):
    recorder, _ = run_recorded([7], max_tokens=3, heads=heads)
    assert recorder.counts["causal_mask"] == 0


@pytest.mark.parametrize("left_out", [None, *EVERY_STEP_OF_THE_PLAN])
def test_every_step_of_the_sampling_plan_is_accounted_for(left_out):
    settings = {name: value for name, value in EVERY_STEP_OF_THE_PLAN.items() if name != left_out}
    recorder, answer = run_recorded(PROMPT, max_tokens=8, **settings)
    assert len(answer.token_ids) == 8
    assert recorder.counts["draw"] + recorder.counts["greedy"] == 8


@FORMS
def test_a_prompt_longer_than_a_block_of_attention_is_accounted_for(heads):
    prompt = np.random.default_rng(5).integers(0, 64, 300).tolist()
    changes = {"context_length_tokens": 512}
    for chunk in (256, 300):
        _, answer = run_recorded(
            prompt, changes=changes, max_tokens=3, heads=heads, prefill_chunk_tokens=chunk
        )
        small = tiny_language_model(1, **changes).generate(prompt, max_tokens=3, prefill_chunk_tokens=7)
        assert answer.token_ids == small.token_ids


def test_a_cache_that_grows_while_decoding_is_accounted_for():
    recorder, _ = run_recorded(PROMPT, max_tokens=100)
    assert recorder.counts["kv_move"] == 4  # 64 to 128 positions: keys and values of two layers
    assert [kind for kind, _ in recorder.events].count("cache_grown") == 2


@FORMS
def test_several_packed_sequences_are_accounted_for_and_equal_each_alone(heads):
    model, recorder = tiny_llama(2), OrphanRecorder()
    prompts = [[3, 1, 4], [1], [5, 9, 2, 6, 5], [3]]
    caches = [DynamicCache(model.cache_layout, model.prototype_Z, first_capacity=4) for _ in prompts]
    alone = [DynamicCache(model.cache_layout, model.prototype_Z) for _ in prompts]
    recorder.know_weights(model.named_weights())
    for step in range(3):
        with recording(recorder, stage="prefill", step=step):
            pack = pack_tokens(list(zip(prompts, caches, strict=True)), model.prototype_Z)
            logits_BV = model.forward(pack, heads=heads)
            pack.commit()
        assert [cache.length for cache in caches] == [(step + 1) * len(prompt) for prompt in prompts]
        for row, (prompt, cache) in enumerate(zip(prompts, alone, strict=True)):
            single_BV = advance(model, cache, prompt, heads=heads)
            np.testing.assert_allclose(logits_BV[row], single_BV[0], rtol=2e-5, atol=2e-5)
    assert recorder.counts["take_rows"] == 3
    assert {scope.sequence for name, scope in recorder.scopes if name == "softmax"} == {0, 1, 2, 3}


@FORMS
def test_logits_of_all_rows_are_accounted_for(heads):
    model, recorder = tiny_llama(2), OrphanRecorder()
    recorder.know_weights(model.named_weights())
    with recording(recorder, stage="prefill"):
        cache = DynamicCache(model.cache_layout, model.prototype_Z)
        rows_TV = advance(model, cache, PROMPT, heads=heads, rows="all")
        forked = cache.fork()
        cache.crop_to(4)
        advance(model, cache, PROMPT[4:], heads=heads)
        advance(model, forked, [1, 2], heads=heads)
    assert rows_TV.shape == (len(PROMPT), model.vocabulary_size)


@FORMS
def test_the_two_forms_of_attention_differ_by_rounding_only(heads):
    ids = [
        run_recorded(PROMPT, seed=4, max_tokens=20, heads=form)[1].token_ids for form in ("together", heads)
    ]
    assert ids[0] == ids[1]


def test_a_run_on_another_array_library_is_accounted_for():
    recorder, answer = run_recorded(PROMPT, changes={"xp": FakeLibrary()}, max_tokens=5, heads="separate")
    assert (
        answer.token_ids == tiny_language_model(1).generate(PROMPT, max_tokens=5, heads="separate").token_ids
    )
    assert recorder.counts["softmax"] == 2 * 4 * 5


def test_a_float32_run_makes_no_float64_and_a_float64_run_nothing_else():
    for dtype, alien in (("float32", "float64"), ("float64", "float32")):
        recorder, _ = run_recorded(PROMPT, changes={"dtype": dtype}, max_tokens=4, **EVERY_STEP_OF_THE_PLAN)
        assert not [op for op, seen in recorder.result_dtypes if seen == alien]


def test_scopes_name_layers_heads_and_parts():
    recorder, _ = run_recorded(PROMPT, max_tokens=3, heads="separate")
    places = [(scope.layer, scope.head) for name, scope in recorder.scopes if name == "softmax"]
    assert places == 3 * list(itertools.product(range(2), range(4)))
    parts = {name: scope.part for name, scope in recorder.scopes}
    expected = {"embed": "embedding", "swiglu": "mlp", "softmax": "attention", "greedy": "choose"}
    assert {name: parts[name] for name in expected} == expected


@pytest.mark.weights
@FORMS
def test_smollm2_reads_nothing_that_is_not_accounted_for(smollm2, heads):
    recorder = OrphanRecorder(hash_weights="end")
    with choosing_recorder(recorder):
        answer = smollm2.generate("Why is the sky blue?", max_tokens=3, heads=heads, prefill_chunk_tokens=24)
    recorder.check_weights()
    assert len(answer.token_ids) == 3
    assert recorder.counts["softmax"] >= 30 * 4 * (9 if heads == "separate" else 1)
