"""Candidates through the filters: every bar is a probability of the trace, and the draw falls where it fell."""

import math

import numpy as np
import pytest
from support.traced import model_of

from haaw.errors import BadInputError
from haaw.view.plots import plot_candidates
from haaw.view.plots.canvas import ORANGE

pytest.importorskip("matplotlib")
STEP = 3


def columns(figure):
    return [axes for axes in figure.axes if axes.get_xlabel() == "probability"]


def test_every_bar_is_a_probability_among_the_survivors(trace):
    figure, choice = plot_candidates(trace, STEP), trace.candidates(STEP)
    stages = [stage for stage in choice.stages if stage.name != "candidates"]
    assert len(columns(figure)) == len(stages) == 6
    for axes, stage in zip(columns(figure), stages, strict=True):
        survivors = [row for row, each in enumerate(choice.candidates) if each.id in stage.ids_N]
        assert [round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches] == survivors
        scores_N = {int(i): float(score) for i, score in zip(stage.ids_N, stage.scores_N, strict=True)}
        total = sum(math.exp(score) for score in scores_N.values())
        expected = [math.exp(scores_N[choice.candidates[row].id]) / total for row in survivors]
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches], expected, rtol=1e-6)
        crosses = [round(float(line.get_ydata()[0])) for line in axes.lines]
        assert sorted([*crosses, *survivors]) == list(range(len(choice.candidates)))


def test_the_number_of_survivors_is_the_one_that_the_run_itself_noted(trace):
    noted = next(each.facts for each in trace.facts("candidates") if each.place.step == STEP)
    titles = {axes.get_title(loc="left") for axes in columns(plot_candidates(trace, STEP))}
    for name, left in noted["left"][1:]:
        assert f"keep_{name}\n{left:,} left" in titles


def test_the_chosen_token_is_marked_by_colour_and_by_a_sign(trace):
    from matplotlib.colors import to_hex

    figure, choice = plot_candidates(trace, STEP), trace.candidates(STEP)
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    marked = [row for row, name in enumerate(names) if name.startswith("▶ ")]
    assert [choice.candidates[row].id for row in marked] == [choice.chosen.id]
    assert [to_hex(bar.get_facecolor()) == ORANGE for bar in figure.axes[0].patches].index(True) == marked[0]


def test_the_strip_of_the_draw_has_the_chosen_token_where_the_run_noted_it(trace):
    drawn = next(each.facts for each in trace.facts("drawn") if each.place.step == STEP)
    axes = next(axes for axes in plot_candidates(trace, STEP).axes if "the draw" in axes.get_xlabel())
    assert axes.lines[0].get_xdata()[0] == drawn["uniform"]
    chosen = [bar for bar in axes.patches if bar.get_alpha() == 1]
    assert len(chosen) == 1
    assert chosen[0].get_x() == pytest.approx(drawn["below"], abs=1e-6)
    assert chosen[0].get_x() + chosen[0].get_width() == pytest.approx(drawn["upto"], abs=1e-6)


def test_a_greedy_choice_has_no_draw(record):
    figure = plot_candidates(record(model_of("tiny"), "Ella had", form="raw", max_tokens=2, temperature=0), 1)
    assert all("draw" not in axes.get_xlabel() for axes in figure.axes)
    assert "is the likeliest" in figure.description


def test_an_answer_with_log_probabilities_is_enough_for_the_models_own(answered):
    answer = answered[1]
    figure = plot_candidates(answer, 2)
    noted = answer.log_probabilities[2]
    expected = [math.exp(each.log_probability) for each in noted.top]
    assert [bar.get_width() for bar in figure.axes[0].patches][: len(expected)] == expected


def test_an_answer_without_them_and_a_token_that_is_not_there_are_errors(answered):
    plain = model_of("tiny").generate("Ella had", form="raw", max_tokens=1)
    with pytest.raises(BadInputError, match="logprobs=5"):
        plot_candidates(plain)
    with pytest.raises(BadInputError, match="there are 0 to 9"):
        plot_candidates(answered[1], 10)


def test_a_step_that_chose_nothing_is_an_error(trace):
    with pytest.raises(BadInputError, match="chose no token"):
        plot_candidates(trace, "prepare")
