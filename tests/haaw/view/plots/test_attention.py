"""Attention pictures show the weights of the trace, with the tokens that they belong to."""

import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.view.plots import plot_attention, plot_attention_heads

pytest.importorskip("matplotlib")


def labels(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def test_a_prefill_is_a_heat_map_of_one_heads_weights(trace):
    figure = plot_attention(trace, "prefill 0", 2, 1)
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(
        shown.data, trace.value("prefill 0/layer 2/attention.weights", head=1).array
    )
    assert shown.mask.tolist() == np.triu(np.ones((12, 12), dtype=bool), 1).tolist()  # keys behind the query
    assert labels(figure.axes[0].yaxis)[:5] == ["0  '<s>'", "1  'Ella'", "2  ' had'", "3  ' a'", "4  ' red'"]
    assert labels(figure.axes[0].xaxis) == labels(figure.axes[0].yaxis)


def test_a_decode_step_is_a_bar_for_each_key(trace):
    figure = plot_attention(trace, 5, 3, 0)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    np.testing.assert_array_equal(heights, trace.value("decode 5/layer 3/attention.weights", head=0).array[0])
    assert len(labels(figure.axes[0].xaxis)) == 17  # the prompt's 12 tokens and 5 of the answer


def test_without_a_head_the_mean_of_all_is_shown_and_said(trace):
    figure = plot_attention(trace, 5, 3)
    expected_S = trace.value("decode 5/layer 3/attention.weights").array.mean(axis=0)[0]
    np.testing.assert_array_equal([bar.get_height() for bar in figure.axes[0].patches], expected_S)
    assert "mean of 4 heads" in figure.axes[0].get_title(loc="left").replace("\n", " ")


def test_all_heads_of_a_prefill_stand_side_by_side(trace):
    figure = plot_attention_heads(trace, "prefill 0", 1)
    weights_HTS = trace.value("prefill 0/layer 1/attention.weights").array
    for head in range(4):
        np.testing.assert_array_equal(figure.axes[head].images[0].get_array().data, weights_HTS[head])
        assert figure.axes[head].get_title(loc="left") == f"head {head}"


def test_all_heads_of_a_decode_step_are_rows(trace):
    figure = plot_attention_heads(trace, 4, 1)
    weights_HTS = trace.value("decode 4/layer 1/attention.weights").array
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), weights_HTS[:, 0])
    assert figure.axes[0].get_ylabel() == "head"


def test_the_sentence_names_the_key_with_the_greatest_weight(trace):
    weights_S = trace.value("decode 5/layer 3/attention.weights", head=0).array[0]
    best = int(weights_S.argmax())
    said = plot_attention(trace, 5, 3, 0).description
    assert f"at {best} ({weights_S[best]:.2f})" in said.split("looks most at ")[1].split(", ")[0]


@pytest.mark.parametrize(
    ("where", "words"),
    [((5, 9, 0), "no layer 9"), ((5, 1, 7), "no head 7"), (("decode 99", 0, 0), "no decode 99")],
)
def test_a_place_that_is_not_there_is_an_error(trace, where, words):
    with pytest.raises(BadInputError, match=words):
        plot_attention(trace, *where)
