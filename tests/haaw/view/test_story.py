"""The story says what the trace says: every number is held against the arrays, the answer or an independent formula."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.story_fixture import PROMPT, recorded

import haaw
from haaw.view.content import Content, to_json


@pytest.fixture(scope="module")
def content(source):
    return Content(source)


@pytest.fixture(scope="module")
def story(content):
    return content.story


def test_it_is_json(content):
    assert json.loads(to_json(content.story))["prompt_tokens"] == content.story["prompt_tokens"]
    assert json.loads(to_json({"a": [float("nan"), 1.0, float("-inf")]})) == {"a": [None, 1.0, None]}


def test_nothing_is_missing_from_a_whole_trace(story):
    assert story["missing"] == {}
    assert story["budget"] == []


def test_the_prompt_tokens_are_the_tokenizers_and_cover_the_text(story):
    tokens = story["tokens"][: story["prompt_tokens"]]
    assert [each["id"] for each in tokens] == haaw.load().tokenizer.encode_prompt(PROMPT)
    spans = [(each["start"], each["end"]) for each in tokens if each["end"] > each["start"]]
    assert "".join(PROMPT[start:end] for start, end in spans) == PROMPT


def test_the_same_request_untraced_gives_the_same_answer(story):
    from support.story_fixture import SETTINGS

    answer = haaw.load().generate(PROMPT, **SETTINGS)
    assert story["text"] == answer.text
    assert [each["id"] for each in story["tokens"][story["prompt_tokens"] :]] == list(answer.token_ids)
    assert story["finish"] == answer.finish.to_dict()


def test_deliveries_joined_are_the_text(story):
    assert "".join(each["text"] for each in story["deliveries"]) == story["text"]
    for each in story["deliveries"]:
        assert story["text"][each["shown_before"] :].startswith(each["text"])


def test_steps_take_every_position_once(story):
    positions = [step["first"] + i for step in story["steps"] for i in range(step["count"])]
    assert positions == list(range(len(positions)))
    assert [step["token"] for step in story["steps"]] == list(
        range(story["prompt_tokens"], len(story["tokens"]))
    )


def test_the_cache_grows_by_its_own_arithmetic(story):
    config = haaw.load().transformer.config
    per_position = 2 * config.layers * config.kv_heads * config.head_dim * 4
    assert story["cache"]["bytes_per_position"] == per_position
    for size, step in zip(story["cache_sizes"], story["steps"], strict=True):
        assert size["useful_bytes"] == (step["first"] + step["count"]) * per_position
        assert size["allocated_bytes"] == size["capacity"] * per_position >= size["useful_bytes"]
    last = story["cache_sizes"][-1]
    assert (
        last["allocated_bytes"] == story["release"]["bytes"]
    )  # what the cache itself says that it gave back
    assert last["useful_bytes"] == story["release"]["useful_bytes"]


def test_phases_hold_the_matrix_products_of_the_config(story):
    """Products alone, by a formula of their own: all projections a token, the scores and mixes a pair of positions."""
    config = haaw.load().transformer.config
    width, heads, channels = config.width, config.query_heads, config.head_dim
    projections = width * (heads + 2 * config.kv_heads) * channels + heads * channels * width
    projections += 3 * width * config.mlp_width
    prompt = story["prompt_tokens"]
    prefill = 2 * config.layers * (prompt * projections + 2 * heads * channels * prompt * prompt)
    prefill += 2 * width * config.vocabulary_size
    counted = next(each for each in story["phases"] if each["phase"] == "prefill")["operations"]
    assert prefill < counted < prefill * 1.03  # norms, softmax, RoPE and the rest are below 3 %


def test_the_recorders_own_time_is_told_and_is_part_of_the_whole(story):
    total = sum(each["took_ns"] for each in story["phases"])
    assert 0 < story["recorder_ns"] < total


def test_phases_are_the_clocks_own(story):
    took = {each["phase"]: each["took_ns"] for each in story["phases"]}
    assert all(each > 0 for each in took.values())
    for phase in ("prefill", "decode"):
        intervals = sum(each[2] for each in story["intervals"] if each[0] == phase)
        assert intervals <= took[phase]


def test_stretches_of_the_clock_do_not_overlap(story):
    spans = sorted((start, start + took) for _, start, took, _ in story["intervals"])
    for (_, end), (start, _) in pairwise(spans):
        assert start >= end


@pytest.mark.parametrize("number", [0, 1, 7, 9])
def test_a_choice_is_what_the_logits_and_the_plan_say(content, story, source, number):
    step = story["steps"][number]
    choice = content.step(step["stage"], step["step"])["choice"]
    logits = source.value(f"{step['stage']} {step['step']}/output.logits").array[-1].astype(np.longdouble)
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    for each in choice["candidates"]:
        assert each["probability"] == pytest.approx(float(shares[each["id"]]), rel=1e-9)
        assert each["score"] == logits[each["id"]]
    assert choice["chosen_id"] == story["tokens"][step["token"]]["id"]
    assert choice["rank"] == 1 + int((shares > shares[choice["chosen_id"]]).sum())
    assert choice["below"] <= choice["uniform"] < choice["upto"]
    assert choice["entropy"] == pytest.approx(float(-(shares * np.log2(shares)).sum()), rel=1e-6)


def test_the_draw_is_the_one_that_was_told(content, story, source):
    told = [fact["facts"] for fact in source.facts() if fact["kind"] == "drawn"]
    for step, drawn in zip(story["steps"], told, strict=True):
        choice = content.step(step["stage"], step["step"])["choice"]
        assert choice["uniform"] == drawn["uniform"]
        assert choice["below"] == pytest.approx(drawn["below"], abs=1e-6)
        assert choice["upto"] == pytest.approx(drawn["upto"], abs=1e-6)


def test_filters_leave_what_they_said(content, story, source):
    told = [dict(fact["facts"]["left"]) for fact in source.facts() if fact["kind"] == "candidates"]
    names = {"keep_top_k": "top_k", "keep_top_p": "top_p", "keep_min_p": "min_p"}
    for step, left in zip(story["steps"], told, strict=True):
        plan = content.step(step["stage"], step["step"])["choice"]["plan"]
        assert {names[each["op"]]: each["after"] for each in plan if each["op"] in names} == {
            name: left[name] for name in names.values()
        }


def test_every_operation_has_its_meaning_and_the_code_that_ran(story):
    for name, op in story["ops"].items():
        assert op["meaning"], name
        assert op["code"].startswith(f"def {name}("), name


def spelling_e_acute() -> dict[str, Any]:
    """Settings under which the embedded model says nothing but "é": its two bytes in turns, a token each."""
    first, second = haaw.load().tokenizer.encode("é")
    return {"logit_bias": {first: 90.0, second: 89.0}, "frequency_penalty": 2.0, "form": "raw"}


def test_bytes_of_an_unfinished_character_are_told(tmp_path):
    story = Content(recorded(tmp_path, "Once", max_tokens=4, **spelling_e_acute())).story
    held = [each for each in story["deliveries"] if each["held_bytes"]]
    assert [(each["held_bytes"], each["text"]) for each in held] == [("c3", ""), ("c3", "")]


def test_text_that_may_begin_a_stop_string_is_told(tmp_path):
    story = Content(recorded(tmp_path, "Once", max_tokens=4, stop=["éé@"], **spelling_e_acute())).story
    assert "é" in {each["held_text"] for each in story["deliveries"]}


def test_a_chat_says_whose_words_are_whose(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who has the ball?"}]
    prompt = Content(recorded(tmp_path, messages, form="chat", max_tokens=3)).story["prompt"]
    assert "".join(part["text"] for part in prompt["parts"]) == prompt["text"]
    assert [(each["role"], each["content"]) for each in prompt["messages"]] == [
        ("system", "Be brief."),
        ("user", "Who has the ball?"),
    ]
    assert any(part["role"] is None and "assistant" in part["text"] for part in prompt["parts"])


def test_ids_without_a_text_are_said_to_have_none(tmp_path):
    story = Content(recorded(tmp_path, [1, 938, 370], max_tokens=2)).story
    assert "prompt" in story["missing"]
    assert [each["id"] for each in story["tokens"][:3]] == [1, 938, 370]


def test_a_request_without_decode_steps_says_so(tmp_path):
    story = Content(recorded(tmp_path, max_tokens=1)).story
    assert set(story["missing"]) == {"decode"}
    story = Content(recorded(tmp_path, max_tokens=0)).story
    assert {"decode", "choose"} <= set(story["missing"])


def test_a_trace_of_events_alone_shows_hashes_and_the_rest(tmp_path):
    content = Content(recorded(tmp_path, keep="events", max_tokens=3))
    assert content.story["missing"] == {}
    step = content.step("decode", 1)
    assert step["choice"] is None
    assert "keep" in step["why_no_choice"]
    with pytest.raises(haaw.HaawError, match="keep"):
        content.value("decode 1/layer 0/attention.weights")


def test_a_replayable_trace_computes_values_again(tmp_path):
    content = Content(recorded(tmp_path, keep="replayable", max_tokens=3))
    value = content.value("decode 1/layer 0/attention.weights")
    assert value["badge"] == "recomputed"
    assert "is the one" in value["provenance"]


def test_a_trace_that_is_cut_off_tells_what_it_has(tmp_path, source):
    whole = source.trace.path.read_bytes()
    cut = tmp_path / "cut.haaw"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    from haaw.view.source import TraceSource

    story = Content(TraceSource(haaw.open_trace(cut))).story
    assert "end" in story["missing"]
    assert 0 < len(story["steps"]) < 10
    assert story["text"]


def test_what_a_budget_cost_is_said(tmp_path):
    with pytest.warns(UserWarning, match="its budget of 300,000 bytes was spent"):
        story = Content(recorded(tmp_path, budget="300kB")).story
    assert story["budget"] == [
        "From prefill 0 on only those values were kept that cannot be computed again, for the budget of 300 kB.",
        "The trace ends early, since its budget of 300 kB was spent.",
    ]
    assert "end" in story["missing"]
    story = Content(recorded(tmp_path, budget="5MB")).story
    assert story["missing"] == {}
    assert all(each.endswith(", for the budget of 5 MB.") for each in story["budget"])
    assert story["budget"][0].startswith("From decode ")
