"""Any value as a picture: its numbers, the axes of the trace, and a sign that does not rest on colour."""

import numpy as np
import pytest
from support.traced import PROMPT, model_of

from haaw.errors import BadInputError
from haaw.view.plots import plot_value

pytest.importorskip("matplotlib")


def test_a_matrix_of_one_sign_is_one_map_with_the_axes_of_the_trace(trace):
    figure = plot_value(trace, "prefill 0/layer 1/attention.weights", 2)
    axes = figure.axes[0]
    np.testing.assert_array_equal(
        axes.images[0].get_array(), trace.value("prefill 0/layer 1/attention.weights", 2).array
    )
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("T: token", "S: position in the cache")
    assert axes.get_yticklabels()[1].get_text() == "1  'Ella'"


def test_both_signs_in_many_cells_are_two_maps(trace):
    figure = plot_value(trace, "prefill 0/layer 1/attention.update")
    value_TZ = trace.value("prefill 0/layer 1/attention.update").array
    above, below = (axes.images[0].get_array() for axes in figure.axes[:2])
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["above zero", "below zero"]
    np.testing.assert_array_equal(above.filled(0) + below.filled(0), value_TZ)
    assert above.min() > 0 > below.max()


def test_both_signs_in_few_cells_have_a_minus_where_one_is_below(trace):
    figure = plot_value(trace, "prefill 0/layer 0/attention.scores", 0)
    value_TS = trace.value("prefill 0/layer 0/attention.scores", 0).array
    finite = np.isfinite(value_TS)
    assert (value_TS[finite] < 0).any()
    assert (value_TS[finite] > 0).any()
    marks = figure.axes[0].lines[0]
    marked = set(zip(marks.get_ydata().tolist(), marks.get_xdata().tolist(), strict=True))
    assert marked == set(map(tuple, np.argwhere(finite & (value_TS < 0)).tolist()))
    assert figure.axes[0].images[0].get_array().mask.tolist() == (~finite).tolist()


def test_a_row_is_a_line(trace):
    line = plot_value(trace, "decode 3/output.logits").axes[0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), trace.logits(3).array[0])


def test_heads_have_maps_of_their_own(trace):
    figure = plot_value(trace, "prefill 0/layer 1/attention.weights")
    weights_HTS = trace.value("prefill 0/layer 1/attention.weights").array
    maps = [
        axes.images[0].get_array()
        for axes in figure.axes
        if axes.get_title(loc="left").startswith("H: query head")
    ]
    np.testing.assert_array_equal(np.stack(maps), weights_HTS)


def test_four_axes_are_an_error_with_advice(record):
    trace = record(
        model_of("random"), list(PROMPT), max_tokens=2, cache="paged", cache_options={"block_size": 4}
    )
    with pytest.raises(BadInputError, match="too much for one picture; draw a part"):
        plot_value(trace, "prefill 0/layer 1/attention.kv_append_blocks#1")
