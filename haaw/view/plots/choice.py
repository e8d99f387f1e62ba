"""How a token was chosen: the candidates through every filter, and the draw."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import BadInputError
from haaw.generation.answer import Answer
from haaw.tracing.choice_view import Choice, Stage
from haaw.view.plots import canvas
from haaw.view.plots.canvas import BLUE, GREY, ORANGE
from haaw.view.plots.labels import PLAIN, token_label

if TYPE_CHECKING:
    from haaw.tracing.steps import StepLike
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture

SAME_AS_BEFORE = ("candidates",)


def plot_candidates(
    source: "Trace | Answer", step: "StepLike" = 0, *, request: int | None = None
) -> "Picture":
    """The likeliest candidates as bars, before the filters and after each; the chosen one is marked.

    Each column shows the probabilities among the tokens that are left; a cross stands where a filter has dropped a
    token. For a draw, a strip shows the random number among the survivors. Of an answer with log-probabilities: the
    model's own probabilities of its token number `step`. Errors: `BadInputError` where nothing was chosen or the
    numbers are not there, `MissingLibraryError`.
    """
    if isinstance(source, Answer):
        return _of_answer(source, step)
    choice = source.candidates(step, request=request)
    stages = [stage for stage in choice.stages if stage.name not in SAME_AS_BEFORE]
    is_drawn = choice.uniform is not None
    figure = canvas.new_picture(
        1.7 + 1.75 * len(stages), 1.4 + 0.27 * len(choice.candidates) + 0.9 * is_drawn
    )
    rows, heights = (2, (len(choice.candidates), 1.2)) if is_drawn else (1, (1,))
    grid = figure.add_gridspec(rows, len(stages), height_ratios=heights)
    first, most = None, 0.0
    for column, stage in enumerate(stages):
        axes = figure.add_subplot(grid[0, column], sharex=first, sharey=first)
        first = first or axes
        most = max(most, _stage(axes, choice, stage))
        axes.tick_params(labelleft=column == 0)
    assert first is not None
    first.set_xlim(0, 1.06 * most)
    _names(first, choice)
    if is_drawn:
        _draw(figure.add_subplot(grid[1, :]), choice)
    label = token_label(choice.chosen.bytes, choice.chosen.id)
    canvas.heading(figure, f"{choice.step}: how {label} was chosen")
    figure.description = _told(choice, label)
    return figure


def _told(choice: Choice, label: str) -> str:
    left = ", ".join(f"{stage.name} leaves {stage.left:,}" for stage in choice.stages[1:])
    how = "is the likeliest" if choice.uniform is None else f"is drawn with {choice.uniform:.4f}"
    return (
        f"Candidates of {choice.step}. {label} {how}, with a probability of {choice.chosen.probability:.3f} before "
        f"the filters. {left[:1].upper()}{left[1:]}{'.' if left else ''}"
    ).strip()


def _stage(axes: Any, choice: Choice, stage: Stage) -> float:
    """One column: a bar for each candidate that is left, a cross for each that is not. The longest bar."""
    longest = 0.0
    place = {token_id: number for number, token_id in enumerate(stage.ids_N.tolist())}
    probabilities_N = stage.probabilities_N
    for row, candidate in enumerate(choice.candidates):
        is_chosen = candidate.id == choice.chosen.id
        if candidate.id in place:
            length = float(probabilities_N[place[candidate.id]])
            longest = max(longest, length)
            axes.barh(row, length, color=ORANGE if is_chosen else BLUE, height=0.72)
        else:
            across = axes.get_yaxis_transform()  # beside the axis, whatever the scale
            axes.plot(0.05, row, "x", color=GREY, markersize=5, transform=across)
    canvas.title(axes, stage.name, f"{stage.left:,} left", size="small")
    axes.set_xlabel("probability", fontsize="small")
    axes.tick_params(labelsize="small")
    canvas.quiet(axes, grid="x")
    return longest


def _names(axes: Any, choice: Choice) -> None:
    words = [
        ("▶ " if each.id == choice.chosen.id else "") + token_label(each.bytes, each.id)
        for each in choice.candidates
    ]
    axes.set_yticks(range(len(words)), words, fontsize="small", **PLAIN)
    axes.set_ylim(len(words) - 0.4, -0.6)


def _draw(axes: Any, choice: Choice) -> None:
    """The survivors one behind the other from 0 to 1, and where the random number fell."""
    stage = choice.stages[-1]
    edges_N = np.concatenate([[0.0], np.cumsum(stage.probabilities_N)])
    for number, token_id in enumerate(stage.ids_N.tolist()):
        is_chosen = token_id == choice.chosen.id
        axes.barh(
            0, edges_N[number + 1] - edges_N[number], left=edges_N[number], height=1,
            color=ORANGE if is_chosen else BLUE, alpha=1 if is_chosen else 0.45, edgecolor="white", linewidth=0.8,
        )  # fmt: skip
    axes.axvline(choice.uniform, color=canvas.text_colour(), linewidth=1.5)
    axes.set(xlim=(0, 1), ylim=(-0.5, 0.5), yticks=[])
    axes.set_xlabel(
        f"the draw: u = {choice.uniform:.4f} falls on the chosen token (survivors by id)", fontsize="small"
    )
    axes.tick_params(labelsize="small")
    axes.spines[:].set_visible(False)


def _of_answer(answer: Answer, number: Any) -> "Picture":
    if not answer.log_probabilities:
        raise BadInputError(
            "this answer has no log-probabilities; ask for them, as in logprobs=5, or give a trace"
        )
    count = len(answer.log_probabilities)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        raise BadInputError(f"there is no token {number!r:.40} of the answer; there are 0 to {count - 1}")
    chosen = answer.log_probabilities[number]
    listed = list(chosen.top)
    if chosen.token_id not in [each.token_id for each in listed]:
        listed.append(chosen)
    figure = canvas.new_picture(5, 1.3 + 0.27 * len(listed))
    axes = figure.subplots()
    for row, each in enumerate(listed):
        colour = ORANGE if each.token_id == chosen.token_id else BLUE
        axes.barh(row, math.exp(each.log_probability), color=colour, height=0.72)
    words = [
        ("▶ " if each.token_id == chosen.token_id else "") + token_label(each.token_bytes, each.token_id)
        for each in listed
    ]
    axes.set_yticks(range(len(words)), words, fontsize="small", **PLAIN)
    axes.set_ylim(len(words) - 0.4, -0.6)
    axes.set_xlabel("probability before the filters", fontsize="small")
    canvas.quiet(axes, grid="x")
    label = token_label(chosen.token_bytes, chosen.token_id)
    canvas.title(axes, f"token {number} of the answer: {label}")
    probability = math.exp(chosen.log_probability)
    figure.description = f"Token {number} of the answer is {label}, with a probability of {probability:.3f}."
    return figure
