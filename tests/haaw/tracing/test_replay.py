"""Replays: everything that ran is identical when it is run again, for every model, cache, form and chunking."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from support.trace_files import rewritten, with_manifest
from support.traced import (
    CACHES,
    PROMPT,
    SAMPLING,
    assert_identical,
    model_of,
    opened,
    replayed,
    same_answer,
    seen_logits,
)

import haaw
from haaw.caches.kinds import KINDS, NO_CACHE
from haaw.caches.page_pool import PagePool
from haaw.errors import BadInputError
from haaw.ops.op import OPS
from haaw.tracing import verdicts
from haaw.tracing.container import Container
from haaw.tracing.trace import Trace

FAMILIES = ("llama", "gpt2", "tiny")
TEXT = "Once upon a time there was"
FORMS = {
    "greedy, in one piece, replayable": ("replayable", {"prefill_chunk_tokens": 256}),
    "greedy, chunks of 5, heads apart, full": ("full", {"prefill_chunk_tokens": 5, "heads": "separate"}),
    "drawn, chunks of 1, replayable": ("replayable", {"prefill_chunk_tokens": 1, **SAMPLING}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(family):
    return model_of(family)


@pytest.fixture
def prompt(family):
    return TEXT if family == "tiny" else PROMPT


def check(path, model, prompt, keep, **settings):
    """Traced and untraced give the same bits, and the replay finds nothing but identical results."""
    with seen_logits() as plain:
        expected = model.generate(prompt, **settings)
    with haaw.record(path, keep=keep), seen_logits() as traced:
        answer = model.generate(prompt, **settings)
    assert same_answer(answer, expected)
    assert len(plain) == len(traced) > 1
    for one, other in zip(plain, traced, strict=True):
        assert one.tobytes() == other.tobytes()
    report = replayed(path, model)
    assert_identical(report)
    judged = report.counts.get("identical", 0) + report.counts.get("identical hash, value not kept", 0)
    assert judged > 0.7 * len(report)


def test_every_kind_of_cache_is_tried():
    assert {each["cache"] for each in CACHES.values()} == {*KINDS, NO_CACHE}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cache", CACHES)
def test_a_run_is_the_same_traced_and_untraced_and_replayed(tmp_path, model, prompt, cache, form):
    keep, settings = FORMS[form]
    check(tmp_path / "run.haaw", model, prompt, keep, max_tokens=5, **CACHES[cache], **settings)


@pytest.mark.long
@pytest.mark.parametrize("cache", CACHES)
def test_every_combination_is_the_same_traced_untraced_and_replayed(tmp_path, model, prompt, cache):
    combinations = itertools.product(
        ("full", "replayable"), ("together", "separate"), (1, 5, 256), ({}, SAMPLING)
    )
    for keep, heads, chunk, sampling in combinations:
        settings = {
            "heads": heads,
            "prefill_chunk_tokens": chunk,
            "max_tokens": 20,
            **sampling,
            **CACHES[cache],
        }
        check(tmp_path / "run.haaw", model, prompt, keep, **settings)


@pytest.mark.weights
@pytest.mark.parametrize(("keep", "heads"), [("replayable", "together"), ("full", "separate")])
def test_smollm2_is_the_same_traced_untraced_and_replayed(tmp_path, smollm2, keep, heads):
    check(
        tmp_path / "run.haaw",
        smollm2,
        "Why is the sky blue?",
        keep,
        max_tokens=3,
        heads=heads,
        prefill_chunk_tokens=20,
    )


@pytest.mark.parametrize("keep", ["full", "replayable"])
def test_stories260k_is_the_same_traced_untraced_and_replayed(tmp_path, golden, keep):
    model = haaw.load(golden / "stories260k" / "stories260K.bin")
    check(tmp_path / "run.haaw", model, "Once upon a time", keep, max_tokens=12, prefill_chunk_tokens=3)


@pytest.mark.parametrize("cache", ["dynamic", "paged"])
def test_two_requests_taken_in_turns_replay(tmp_path, cache):
    model, path = model_of("llama"), tmp_path / "run.haaw"
    with haaw.record(path):
        first = model.request(PROMPT, max_tokens=6, **CACHES[cache])
        second = model.request(PROMPT[:4], max_tokens=4, prefill_chunk_tokens=2, **SAMPLING)
        streams = [iter(first), iter(second)]
        while streams:
            streams = [stream for stream in streams if next(stream, None) is not None]
    assert first.answer.token_ids == model.generate(PROMPT, max_tokens=6).token_ids
    assert_identical(replayed(path, model))
    with opened(path, model) as trace:
        assert {step.request for step in trace.steps()} == {None, 1, 2}
        assert_identical(trace.replay(request=2))


def test_a_shared_pool_that_was_filled_before_replays(tmp_path):
    """What lies in a pool when the recording begins is declared, so that the trace explains itself."""
    model, path = model_of("llama"), tmp_path / "run.haaw"
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=40, block_size=4)
    paged = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 5}
    before = model.generate(PROMPT, **paged)
    with haaw.record(path):
        again = model.generate(PROMPT, **paged)
        longer = model.generate([*PROMPT, 7, 7], **paged)
    assert again.reused_tokens == 8
    assert longer.reused_tokens >= 8
    assert again.token_ids == before.token_ids
    untraced = model.generate(PROMPT, **paged)
    with haaw.record(tmp_path / "second.haaw"):
        model.generate(PROMPT, **paged)
    assert untraced.token_ids == before.token_ids
    assert_identical(replayed(path, model))
    assert_identical(replayed(tmp_path / "second.haaw", model))


@pytest.mark.parametrize("keep", ["full", "replayable"])
@pytest.mark.parametrize(
    "place", [{"op": "softmax"}, {"stage": "decode", "step": 3}, {"layer": 1}, {"op": "draw"}]
)
def test_a_selection_is_replayed_alone(tmp_path, keep, place):
    model, path = model_of("llama"), tmp_path / "run.haaw"
    with haaw.record(path, keep=keep):
        model.generate(PROMPT, max_tokens=5, **SAMPLING)
    with opened(path, model) as trace:
        report = trace.replay(**place)
        wanted = [event.number for event in trace if event.kind != "fact" and taken(event, place)]
    assert_identical(report)
    assert [each.event for each in report] == wanted
    assert wanted


def taken(event, place):
    return all(
        (event.name if name == "op" else getattr(event.place, name)) == value for name, value in place.items()
    )


def test_a_selection_that_cannot_be_is_refused(tmp_path):
    model, path = model_of("llama"), tmp_path / "run.haaw"
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=2)
    with opened(path, model) as trace, pytest.raises(BadInputError, match="no operation"):
        trace.replay(op="sofmax")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("recordings"), model_of("llama")
    for keep in ("full", "replayable", "events"):
        with haaw.record(folder / f"{keep}.haaw", keep=keep):
            model.generate(PROMPT, max_tokens=4)
    return folder


def test_without_the_weights_a_full_trace_is_checked_as_far_as_it_goes(recordings):
    with Trace(recordings / "full.haaw") as trace:
        report = trace.replay()
    assert report.ok
    assert set(report.counts) <= {"identical", "nothing of its own to compare", verdicts.NO_WEIGHTS}
    assert 0 < report.counts[verdicts.NO_WEIGHTS] < 0.6 * len(report)
    assert {each.op for each in report if each.verdict == "identical"} >= {
        "softmax",
        "attention_mix",
        "kv_append",
    }
    assert any("weights" in note for note in report.notes)
    assert report.identical_share < 1


def test_with_events_alone_a_replay_says_what_it_starts_from_was_not_kept(recordings):
    model = model_of("llama")
    report = replayed(recordings / "events.haaw", model)
    assert report.ok
    assert report.counts[verdicts.NOT_KEPT] > 0.9 * len(report)
    assert report.identical_share < 0.1


def test_another_model_is_another_result(recordings):
    """The weights of another model give mismatches, and what follows from them is not judged."""
    with Trace(recordings / "replayable.haaw", weights=model_of("llama").transformer.named_weights) as trace:
        weights = {name: array.copy() for name, array in trace.weights().items()}
    name = next(name for name in weights if "down" in name)
    weights[name][0, 0] += 1
    with Trace(recordings / "replayable.haaw", weights=lambda: weights) as trace:
        report = trace.replay()
    assert not report.ok
    assert report.counts[verdicts.INPUTS_DIFFER] > 0
    assert {each.op for each in report.faults} == {"linear"}
    first = report.faults[0]
    assert first.path == "prefill 0/layer 0/mlp.down" or "layer 0" in first.path
    with Trace(recordings / "full.haaw", weights=lambda: weights) as trace:
        alone = trace.replay()
    assert {each.op for each in alone.faults} == {
        "linear"
    }  # every other operation starts from what was recorded
    assert verdicts.INPUTS_DIFFER not in alone.counts
    assert "elements differ" in alone.faults[0].detail


def test_in_another_environment_the_last_bits_may_differ_within_the_budget(recordings, tmp_path):
    def elsewhere(manifest):
        manifest["fingerprint"]["cpu_features"] = ["SSE2"]

    path, model = (
        with_manifest(recordings / "full.haaw", tmp_path / "other.haaw", elsewhere),
        model_of("llama"),
    )
    weights = {name: array.copy() for name, array in model.transformer.named_weights().items()}
    name = next(name for name in weights if "down" in name)
    weights[name] = next_to(weights[name])
    with Trace(path, weights=lambda: weights) as trace:
        report = trace.replay()
    assert report.ok
    assert report.counts[verdicts.WITHIN_BUDGET] > 0
    assert any("cpu_features" in note for note in report.notes)


def test_a_kept_value_that_was_altered_by_one_bit_is_no_other_environment(recordings, tmp_path):
    """What is within the budget of another processor is told apart by the hash."""

    def elsewhere(manifest):
        manifest["fingerprint"]["cpu_features"] = ["SSE2"]

    other = with_manifest(recordings / "full.haaw", tmp_path / "other.haaw", elsewhere)
    with Trace(other) as trace:
        segment, row = next(
            (segment, row)
            for segment in trace.segments
            for row in segment.kept_table
            if row["slot"] == -1 and trace.event(segment.first_event + int(row["event"])).name == "softmax"
        )
        name, at = f"s{segment.number:06d}/arena.npy", int(row["offset"]) - len(segment.arena)

    def changed(content: bytes) -> bytes:
        altered = bytearray(content)
        altered[at] ^= 1  # the last bit of the first weight
        return bytes(altered)

    path = rewritten(other, tmp_path / "altered.haaw", {name: changed})
    report = replayed(path, model_of("llama"))
    assert [each.op for each in report.faults][:1] == ["softmax"]


def next_to(weight):
    """The same weights but for the last bit of one."""
    changed = weight.copy()
    changed[0, 0] = np.nextafter(changed[0, 0], np.float32(9))
    return changed


def test_an_altered_row_of_a_cache_is_found_by_the_replay(recordings, tmp_path):
    """The checksums of the file fit, and a kept row is not what was written."""
    path = recordings / "replayable.haaw"
    with Container.open(path) as container:
        name = [name for name in container.members if name.endswith("arena.npy")][-1]
    altered = rewritten(
        path,
        tmp_path / "altered.haaw",
        {name: lambda content: content[:-9] + bytes([content[-9] ^ 64]) + content[-8:]},
    )
    assert not replayed(altered, model_of("llama")).ok


def test_an_operation_that_this_haaw_lacks_is_not_checked(recordings, tmp_path):
    def other(manifest):
        for op in manifest["ops"]:
            if op["name"] == "swiglu":
                op["name"] = "swiglu_of_later"
            if op["name"] == "softmax":
                op["parameters"] = ["scores_HTS", "sharpness"]

    path = with_manifest(recordings / "replayable.haaw", tmp_path / "later.haaw", other)
    report = replayed(path, model_of("llama"))
    found = {each.op: each.detail for each in report if each.verdict == verdicts.NOT_HERE}
    assert set(found) == {"softmax"}  # what follows is not run at all, swiglu included
    assert report.counts[verdicts.NOT_COMPUTED] > 0
    assert "takes scores_HTS, and that of the trace took scores_HTS, sharpness" in found["softmax"]
    full = replayed(with_manifest(recordings / "full.haaw", tmp_path / "full.haaw", other), model_of("llama"))
    assert {each.op for each in full if each.verdict == verdicts.NOT_HERE} == {"softmax", "swiglu_of_later"}
    assert verdicts.NOT_COMPUTED not in full.counts
    assert full.ok


def test_a_report_is_json_and_text(recordings):
    report = replayed(recordings / "full.haaw", model_of("llama"))
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["ok"] is True
    assert facts["events"] == len(report) == sum(facts["counts"].values())
    assert "100 % of the results identical" in str(report)
    assert "100 % identical" in report._repr_html_()


def test_a_difference_does_not_go_on_through_the_cache(recordings, monkeypatch):
    """An operation that is wrong in the prefill alone: decode steps start from the recorded rows, and are identical."""
    op = OPS["rms_norm"]
    plain = op.plain

    def wrong_for_several(**arguments):
        result = plain(**arguments)
        return result * np.float32(1.0001) if len(result) > 1 else result

    monkeypatch.setitem(OPS, "rms_norm", dataclasses.replace(op, plain=wrong_for_several))
    report = replayed(recordings / "replayable.haaw", model_of("llama"))
    assert {each.op for each in report.faults} == {"rms_norm"}
    assert {each.stage for each in report if each.verdict not in verdicts.SAME} == {"prefill"}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"stage": "decoding"}, 'no stage "decoding"; did you mean "decode"'),
        ({"step": 99}, "no step 99; it has step 0 to 3"),
        ({"stage": "decode", "step": 99}, "no decode 99"),
        ({"request": 7}, "no request 7"),
        ({"request": 0}, "no request 0"),
        ({"layer": 99}, "nothing of layer 99"),
        ({"op": "gelu"}, "nothing of gelu"),
        ({"op": "softmax", "layer": 99, "using": lambda scores: scores}, "nothing of softmax, layer 99"),
    ],
)
def test_a_place_that_is_not_there_is_an_error_and_no_proof(recordings, place, said):
    with (
        opened(recordings / "full.haaw", model_of("llama")) as trace,
        pytest.raises(BadInputError, match=said),
    ):
        trace.replay(**place)


def test_a_model_that_is_another_one_is_named_in_the_notes(recordings):
    with haaw.open_trace(recordings / "full.haaw", model=model_of("gpt2")) as trace:
        (note,) = trace.replay().notes
    assert "made with another model" in note
