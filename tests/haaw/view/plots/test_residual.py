"""Norms of the residual stream and the logit lens agree with the trace and with the model's own logits."""

import numpy as np
import pytest
from support.traced import PROMPT, model_of

from haaw.errors import BadInputError
from haaw.tracing.steps import find_step
from haaw.view.plots import plot_logit_lens, plot_residual_norms
from haaw.view.plots.lens_values import logit_lens

pytest.importorskip("matplotlib")

LAYERS = 6  # of the embedded model
PARTS = ["embedding", *(f"layer {layer}" for layer in range(LAYERS))]


def stream(trace, step):
    yield trace.value(f"{step}/embedding.x").array
    for layer in range(LAYERS):
        yield trace.value(f"{step}/layer {layer}/mlp.x").array


def ticks(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def softmax(logits_V):
    wide_V = np.exp(logits_V.astype(np.float64) - logits_V.max())
    return wide_V / wide_V.sum()


def test_norms_are_those_of_the_vectors(trace):
    figure = plot_residual_norms(trace, "prefill 0")
    expected_LT = [np.linalg.norm(x_TD.astype(np.float64), axis=1) for x_TD in stream(trace, "prefill 0")]
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), expected_LT, rtol=1e-12)
    assert ticks(figure.axes[0].yaxis) == PARTS


def test_without_a_step_every_position_of_the_request_is_there_once(trace):
    figure = plot_residual_norms(trace)
    shown_LT = figure.axes[0].images[0].get_array()
    assert shown_LT.shape == (
        len(PARTS),
        21,
    )  # 12 tokens of the prompt, and the nine that were run for another
    last_L = [np.linalg.norm(x_TD[0].astype(np.float64)) for x_TD in stream(trace, "decode 9")]
    np.testing.assert_allclose(shown_LT[:, -1], last_L, rtol=1e-12)


def test_positions_that_cannot_be_had_are_left_blank_and_counted(record):
    trace = record(
        model_of("tiny"), "Ella had", "events; full: step=2", weights=False, form="raw", max_tokens=4
    )
    figure = plot_residual_norms(trace)
    assert "3 of 4 steps cannot be had" in figure.axes[0].get_title(loc="left").replace("\n", " ")


def test_the_last_row_of_the_lens_is_what_the_model_said(trace):
    for step in ("prefill 0", "decode 5"):
        (lens,) = logit_lens(trace, find_step(trace, step))
        probabilities_V = softmax(trace.logits(step).array[-1])
        order = np.argsort(-probabilities_V, kind="stable")[: lens.ids_LN.shape[1]]
        assert lens.ids_LN[-1].tolist() == order.tolist()
        # The lens takes all its rows through one product, so the last bits of a logit may differ.
        np.testing.assert_allclose(lens.probabilities_LN[-1], probabilities_V[order], rtol=1e-4)


def test_earlier_rows_are_their_vectors_through_the_last_norm_and_the_output_table(trace):
    """By hand in float64: x / sqrt(mean(x²) + eps) · weight, then the product with the tied embedding."""
    weights = trace.weights()
    norm_D, table_VD = weights["norm"].astype(np.float64), weights["embedding"].astype(np.float64)
    eps = next(event for event in trace if event.name == "rms_norm").args["eps"]
    (lens,) = logit_lens(trace, find_step(trace, "decode 5"))
    assert list(lens.parts) == PARTS
    for row, x_TD in enumerate(stream(trace, "decode 5")):
        x_D = x_TD[-1].astype(np.float64)
        probabilities_V = softmax(table_VD @ (x_D / np.sqrt((x_D**2).mean() + eps) * norm_D))
        np.testing.assert_allclose(lens.probabilities_LN[row], probabilities_V[lens.ids_LN[row]], rtol=1e-4)
        assert lens.ids_LN[row, 0] == probabilities_V.argmax()


def test_the_picture_of_one_step_shows_the_lens_with_the_final_token_framed(trace):
    figure = plot_logit_lens(trace, "decode 5")
    axes = figure.axes[0]
    (lens,) = logit_lens(trace, find_step(trace, "decode 5"), best=5)
    np.testing.assert_array_equal(axes.images[0].get_array(), lens.probabilities_LN)
    assert ticks(axes.yaxis) == PARTS
    assert len(axes.texts) == 5 * len(PARTS)
    assert len(axes.patches) == int((lens.ids_LN == lens.ids_LN[-1, 0]).sum())


def test_the_picture_of_the_request_names_the_likeliest_token_of_each_layer_and_position(trace):
    figure = plot_logit_lens(trace, positions=11)
    words = np.array([text.get_text() for text in figure.axes[0].texts]).reshape(len(PARTS), 11)
    (lens,) = logit_lens(trace, find_step(trace, "decode 4"))
    assert words[:, -6].tolist() == [
        repr(trace.token_bytes(int(each)).decode()) for each in lens.ids_LN[:, 0]
    ]
    assert len(figure.axes[0].patches) == int((words == words[-1]).sum())  # framed
    shares_LT = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(shares_LT[:, -6], lens.probabilities_LN[:, 0], rtol=1e-12)


def test_an_earlier_position_of_a_prefill_can_be_asked_for(trace):
    (lens,) = logit_lens(trace, find_step(trace, 0), position=3)
    assert lens.position == 3
    with pytest.raises(BadInputError, match="no token at position 30; it has 0 to 11"):
        plot_logit_lens(trace, 0, position=30)


def test_a_family_with_another_norm_has_a_lens_as_well(record):
    trace = record(model_of("gpt2"), list(PROMPT), max_tokens=3, temperature=0)
    (lens,) = logit_lens(trace, find_step(trace, 2), best=3)
    probabilities_V = softmax(trace.logits(2).array[-1])
    np.testing.assert_allclose(lens.probabilities_LN[-1], np.sort(probabilities_V)[::-1][:3], rtol=1e-5)


def test_without_the_model_its_own_logits_are_shown_and_the_picture_says_why(record):
    trace = record(model_of("tiny"), "Ella had", "full", weights=False, form="raw", max_tokens=3)
    figure = plot_logit_lens(trace, 1)
    assert ticks(figure.axes[0].yaxis) == ["logits"]
    assert "needs the weights" in figure.get_supxlabel().replace("\n", " ")
    best = np.sort(softmax(trace.logits(1).array[-1]))[::-1][:5]
    np.testing.assert_allclose(figure.axes[0].images[0].get_array()[0], best, rtol=1e-12)


def test_where_nothing_can_be_had_the_error_says_what_is_needed(without_model):
    with pytest.raises(BadInputError, match="weights of the model"):
        plot_logit_lens(without_model, 1)
    with pytest.raises(BadInputError, match="weights of the model"):
        plot_residual_norms(without_model)


def test_a_step_without_a_residual_stream_is_an_error(trace):
    with pytest.raises(BadInputError, match="no residual stream"):
        plot_residual_norms(trace, "prepare")
