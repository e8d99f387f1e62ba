"""A learner's own function in the place of an operation: every way to be right, and every way to be wrong, named."""

import json
import math
from typing import Any

import numpy as np
import pytest
from support.traced import PROMPT, SAMPLING, model_of, opened

import haaw
from haaw.errors import BadInputError
from haaw.tracing import learner
from haaw.tracing.trace import Trace

CHUNKED = {
    "max_tokens": 4,
    "prefill_chunk_tokens": 5,
}  # prefill 0 to 2, decode 1 to 3; two layers each: 12 calls


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module", params=["full", "replayable"])
def trace(request, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run.haaw"
    with haaw.record(path, keep=request.param):
        model.generate(PROMPT, **CHUNKED, **SAMPLING)
    with opened(path, model) as trace:
        yield trace


def softmax(scores_HTS):
    e_HTS = np.exp(scores_HTS - scores_HTS.max(axis=-1, keepdims=True))
    return e_HTS / e_HTS.sum(axis=-1, keepdims=True)


def test_a_right_function_is_right_in_every_call(trace):
    report = trace.replay(op="softmax", using=softmax)
    assert report.ok
    assert len(report) == 12
    assert not report.wrong
    assert report.contrast == ""
    assert set(report.counts) <= {learner.IDENTICAL, learner.WITHIN}
    assert max(call.error_in_budgets for call in report) <= 1
    assert [call.path for call in report][-1] == "decode 3/layer 1/attention.weights"


def test_one_that_is_wrong_in_decode_alone_is_told_so(trace):
    """A sum over the wrong axis is the same thing where there are several tokens, and not with one."""

    def wrong_with_one(scores_HTS):
        right_HTS = softmax(scores_HTS)
        return right_HTS if scores_HTS.shape[1] > 1 else right_HTS * np.float32(1.001)

    report = trace.replay(op="softmax", using=wrong_with_one, stage=None)
    wrong = {(call.stage, call.step) for call in report.wrong}
    assert wrong == {
        ("decode", 1),
        ("decode", 2),
        ("decode", 3),
        ("prefill", 2),
    }  # the last chunk is one token
    decode = trace.replay(
        op="softmax", using=lambda s: softmax(s) if s.shape[2] <= 11 else softmax(s)[:, :, ::-1].copy()
    )
    assert decode.contrast == "prefill ok, decode differs"
    assert "prefill ok, decode differs" in str(decode)
    assert not decode.ok
    assert {call.verdict for call in decode.wrong} == {learner.DIFFERS}
    assert {call.stage for call in decode.wrong} == {"decode"}


def test_one_that_is_wrong_in_one_layer_is_told_so(trace):
    calls = []

    def wrong_in_layer_1(scores_HTS):
        calls.append(1)
        return softmax(scores_HTS) if len(calls) % 2 else scores_HTS * 0

    report = trace.replay(op="softmax", using=wrong_in_layer_1)
    assert {call.layer for call in report.wrong} == {1}
    assert report.contrast == "layer 0 ok, layer 1 differs"


def test_the_first_element_that_differs_is_named_by_its_axes(trace):
    def wrong_in_one_place(scores_HTS):
        right_HTS = softmax(scores_HTS)
        right_HTS[2, 0, 3] = 7
        return right_HTS

    report = trace.replay(op="softmax", using=wrong_in_one_place, stage="decode", step=1, layer=1)
    (call,) = report
    assert call.verdict == learner.DIFFERS
    assert call.detail.startswith("weights_HTS at H 2, T 0, S 3 is 7.0 and was 0.")
    assert "(1 of 48 elements differ)" in call.detail  # 4 heads, one token, 12 positions
    assert call.error_in_budgets > 1000


@pytest.mark.parametrize(
    ("using", "verdict", "detail"),
    [
        (lambda s: 1 / 0, learner.RAISED, "ZeroDivisionError: division by zero"),
        (
            lambda s: None,
            learner.WRONG_SHAPE,
            "weights_HTS should have the shape (4, 1, 12), and it is NoneType",
        ),
        (lambda s: softmax(s)[0], learner.WRONG_SHAPE, "should have the shape (4, 1, 12), and it is (1, 12)"),
        (
            lambda s: softmax(s).astype(np.float64),
            learner.WRONG_DTYPE,
            "should be float32, and it is float64",
        ),
        (lambda s: np.float32(3), learner.WRONG_SHAPE, "should have the shape (4, 1, 12)"),
        (lambda s: (softmax(s), 1), learner.WRONG_SHAPE, "and it is tuple"),
        (lambda s: softmax(s) * np.nan, learner.DIFFERS, "is nan"),
        (lambda s: softmax(s) + np.inf, learner.DIFFERS, "is inf"),
        (lambda s: softmax(s).astype(np.complex64), learner.WRONG_DTYPE, "complex64"),
        (lambda s: np.array([[None]]), learner.WRONG_SHAPE, "should have the shape"),
        (lambda s: np.full(s.shape, None), learner.WRONG_DTYPE, "object"),
    ],
)
def test_every_way_to_be_wrong_is_named(trace, using, verdict, detail):
    (call,) = trace.replay(op="softmax", using=using, stage="decode", step=1, layer=0)
    assert call.verdict == verdict
    assert detail in call.detail


def test_inputs_cannot_be_changed_and_the_recorded_ones_stay_as_they_are(trace):
    def writes(scores_HTS):
        scores_HTS -= scores_HTS.max(axis=-1, keepdims=True)
        return softmax(scores_HTS)

    def forces(scores_HTS):
        scores_HTS.flags.writeable = True
        scores_HTS[...] = 0
        return scores_HTS

    report = trace.replay(op="softmax", using=writes)
    assert set(report.counts) == {learner.WROTE}
    trace.replay(op="softmax", using=forces)
    assert trace.replay(op="softmax", using=softmax).ok
    assert trace.replay().ok


def test_a_product_in_float64_is_within_the_budget(trace):
    def linear(x_TA, weight_ZA, bias_Z=None):
        return (x_TA.astype(np.float64) @ weight_ZA.astype(np.float64).T).astype(np.float32)

    report = trace.replay(op="linear", using=linear)
    assert report.ok
    assert report.counts[learner.WITHIN] > 0
    assert all(call.error_in_budgets <= 1 for call in report)
    halved = trace.replay(op="linear", using=lambda x, w: linear(x, w).astype(np.float16).astype(np.float32))
    assert len(halved.wrong) == len(halved)  # eleven bits are not enough


def test_a_function_that_cannot_be_called_so_is_refused(trace):
    with pytest.raises(BadInputError, match=r"cannot be called as softmax\(scores_HTS\)"):
        trace.replay(op="softmax", using=lambda scores, axis: scores)
    with pytest.raises(BadInputError, match="cannot be called as rms_norm"):
        trace.replay(op="rms_norm", using=lambda x, w: x)  # eps is given by its name
    with pytest.raises(BadInputError, match="must be a function"):
        trace.replay(op="softmax", using=3)
    with pytest.raises(BadInputError, match="name the operation"):
        trace.replay(using=softmax)
    with pytest.raises(BadInputError, match="kv_append"):
        trace.replay(op="kv_append", using=lambda buffer, rows, *, start: None)


def test_arguments_come_by_position_and_by_keyword_as_in_the_call_itself(trace):
    seen = set()

    def rms_norm(*args, **kwargs):
        seen.add((len(args), tuple(kwargs)))
        x_TD, weight_D = args
        mean_T1 = np.mean(np.square(x_TD, dtype=np.float64), axis=-1, keepdims=True)
        return (x_TD / np.sqrt(mean_T1 + kwargs["eps"]) * weight_D).astype(np.float32)

    assert trace.replay(op="rms_norm", using=rms_norm).ok
    assert seen == {(2, ("eps",))}


def test_several_results_are_judged_each(trace):
    def top_k(ids_N, scores_N, **options):
        chosen = np.sort(np.argsort(-scores_N, kind="stable")[: options["k"]])
        return ids_N[chosen], scores_N[chosen]

    report = trace.replay(op="keep_top_k", using=top_k)
    assert report.ok
    assert len(report) == 4
    one = trace.replay(op="keep_top_k", using=lambda ids, scores, **options: ids)
    assert {call.verdict for call in one} == {learner.WRONG_SHAPE}
    assert "ids_N, scores_N should come back, and 1 came" in one[0].detail


def test_a_function_that_ends_the_program_ends_it(trace):
    """Ctrl-C inside a learner's function is no verdict on it."""

    def stopped(scores_HTS):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace.replay(op="softmax", using=stopped)


def test_a_bad_input_of_the_function_itself_is_its_own_error(trace):
    def refuses(scores_HTS):
        raise BadInputError("not today")

    (call,) = trace.replay(op="softmax", using=refuses, stage="decode", step=1, layer=0)
    assert call.verdict == learner.RAISED
    assert "not today" in call.detail


def test_calls_whose_inputs_were_not_kept_are_not_checked(model, tmp_path):
    with haaw.record(tmp_path / "run.haaw", keep="events"):
        model.generate(PROMPT, max_tokens=2)
    with opened(tmp_path / "run.haaw", model) as trace:
        report = trace.replay(op="softmax", using=softmax)
    assert set(report.counts) == {learner.NOT_CHECKED}
    assert not report.ok
    assert not report.wrong


def test_a_full_trace_needs_no_model(model, tmp_path):
    with haaw.record(tmp_path / "run.haaw", keep="full"):
        model.generate(PROMPT, max_tokens=2)
    with Trace(tmp_path / "run.haaw") as trace:
        assert trace.replay(op="softmax", using=softmax).ok


def test_a_report_is_json_and_text(trace):
    report = trace.replay(op="softmax", using=lambda s: softmax(s) * np.float32(1.1))
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["counts"] == {learner.DIFFERS: 12}
    assert len(facts["wrong"]) == 12
    assert "12  calls of softmax" in str(report)
    assert str(report).count("DIFFERS: ") == 10
    assert str(report).endswith("\n… 2 more")
    assert "<table>" in report._repr_html_()


def test_a_function_that_exits_is_one_that_raised(trace):
    def exits(scores_HTS):
        raise SystemExit("done\nhere")

    (call,) = trace.replay(op="softmax", using=exits, stage="decode", step=1, layer=0)
    line = exits.__code__.co_firstlineno + 1
    assert call.verdict == learner.RAISED
    assert call.detail == f"SystemExit: done here (line {line} of test_learner.py)"


def test_an_error_is_told_with_the_line_of_the_learners_own_code(trace):
    def broken(scores_HTS):
        total = scores_HTS.sum()
        return scores_HTS.reshape(7, -1) / total  # a shape that does not fit

    def deep_within(scores_HTS):
        return np.apply_along_axis(lambda row: [1 / (row.sum() * 0).astype(int).item()], -1, scores_HTS)

    for using, line in ((broken, 2), (deep_within, 1)):
        (call,) = trace.replay(op="softmax", using=using, stage="decode", step=1, layer=0)
        assert call.verdict == learner.RAISED
        assert call.detail.endswith(f" (line {using.__code__.co_firstlineno + line} of test_learner.py)")


def test_the_line_of_a_notebooks_cell(trace):
    for file_name in ("<ipython-input-3-0a1b>", "/tmp/ipykernel_12/345.py"):
        cell: dict[str, Any] = {}
        exec(compile("def mine(scores):\n    x = 1\n    return scores.nothing\n", file_name, "exec"), cell)
        (call,) = trace.replay(op="softmax", using=cell["mine"], stage="decode", step=1, layer=0)
        assert call.detail.endswith(" (line 3 of the cell)")


def test_an_error_of_a_built_in_function_has_no_line(trace):
    (call,) = trace.replay(op="softmax", using=math.sqrt, stage="decode", step=1, layer=0)
    assert call.detail == "TypeError: only 0-dimensional arrays can be converted to Python scalars"


def test_an_error_without_bounds_is_no_number_in_json(trace):
    """JSON has no infinity, and other readers refuse it."""
    report = trace.replay(op="softmax", using=lambda scores: scores * np.float32(np.nan))
    facts = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert {each["error_in_budgets"] for each in facts["wrong"]} == {None}


def test_several_results_may_come_as_a_list(trace):
    def top_k(ids_N, scores_N, **options):
        chosen = np.sort(np.argsort(-scores_N, kind="stable")[: options["k"]])
        return [ids_N[chosen], scores_N[chosen]]

    assert trace.replay(op="keep_top_k", using=top_k).ok
