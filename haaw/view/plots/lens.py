"""The logit lens as a picture: what the model would say if it stopped after each layer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.text_view import bytes_of_tokens, tokens
from haaw.view.plots import canvas
from haaw.view.plots.canvas import ORANGE, SHARE_TICKS
from haaw.view.plots.labels import PLAIN, clipped, token_label
from haaw.view.plots.lens_values import LogitLens, logit_lens
from haaw.view.plots.residual import steps_to_show

if TYPE_CHECKING:
    from haaw.tracing.steps import StepLike
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture

RANKS = 5
MOST_POSITIONS = 12


def plot_logit_lens(
    trace: "Trace",
    step: "StepLike | None" = None,
    *,
    position: int | None = None,
    positions: int = MOST_POSITIONS,
    request: int | None = None,
) -> "Picture":
    """The most likely next token after every layer, through the model's last norm and output table.

    With a step: the five likeliest tokens of each layer at one position (the step's last, unless given). Without: the
    likeliest token of each layer at the last `positions` of the request. Cells that agree with the last layer are
    framed. Needs the model's weights; without them only its own logits are shown, if they were kept, and the picture
    says why. Errors: `BadInputError`, `ValueNotKeptError`, `MissingLibraryError`.
    """
    steps = steps_to_show(trace, step, request)
    if step is not None:
        return _ranked(trace, logit_lens(trace, steps[0], position=position, best=RANKS)[0])
    if position is not None:
        raise BadInputError(f"position is {position!r:.40} without a step; say in which step it was computed")
    if isinstance(positions, bool) or not isinstance(positions, int) or not 1 <= positions <= 200:
        raise BadInputError(f"positions is {positions!r:.40}; it is a whole number from 1 to 200")
    lenses: list[LogitLens] = []
    for each in reversed(steps):
        lenses = [*logit_lens(trace, each, last=positions - len(lenses), best=1), *lenses]
        if len(lenses) >= positions or lenses[0].position == 0:
            break
    return _along(trace, lenses[-positions:])


def _ranked(trace: "Trace", lens: LogitLens) -> "Picture":
    """Layers by rank, for one position."""
    figure, axes = _cells(
        trace, lens.probabilities_LN, lens.ids_LN, lens.ids_LN == lens.ids_LN[-1, 0], lens.parts
    )
    axes.set_xticks(range(RANKS), ["likeliest", "2nd", "3rd", "4th", "5th"], fontsize="small")
    token = _token_at(trace, lens)
    canvas.title(
        axes, f"logit lens: what each layer would say after {token} at {lens.position} ({lens.step.name})"
    )
    _say_what_is_missing(figure, [lens])
    agreeing = lens.parts[_agreeing_from(lens.ids_LN[:, 0])]
    last = _label(trace, lens.ids_LN[-1, 0])
    figure.description = (
        f"Logit lens after {token} at {lens.position}. The last layer says {last} "
        f"({lens.probabilities_LN[-1, 0]:.2f}), "
        + (
            "and no layer right before it."
            if agreeing == lens.parts[-1]
            else f"as every layer does from {agreeing} on."
        )
    )
    return figure


def _along(trace: "Trace", lenses: Sequence[LogitLens]) -> "Picture":
    """Layers by position; a position of which only the logits are known has its last row alone."""
    parts = max((lens.parts for lens in lenses), key=len)
    ids_LT = np.full((len(parts), len(lenses)), -1)
    shares_LT = np.full(ids_LT.shape, np.nan)
    for place, lens in enumerate(lenses):
        ids_LT[-len(lens.parts) :, place] = lens.ids_LN[:, 0]
        shares_LT[-len(lens.parts) :, place] = lens.probabilities_LN[:, 0]
    figure, axes = _cells(trace, np.ma.masked_invalid(shares_LT), ids_LT, ids_LT == ids_LT[-1], parts)
    canvas.token_ticks(
        axes.xaxis, [_token_at(trace, lens) for lens in lenses], [lens.position for lens in lenses]
    )
    axes.set_xlabel("position and token that the layers have read")
    canvas.title(axes, "logit lens: the token that each layer would say next")
    _say_what_is_missing(figure, lenses)
    told = ", ".join(_label(trace, token_id) for token_id in ids_LT[-1].tolist())
    figure.description = f"Logit lens at {len(lenses)} positions. The last layer says, in order: {told}."
    return figure


def _cells(
    trace: "Trace",
    shares_LN: np.ndarray,
    ids_LN: np.ndarray,
    is_framed_LN: np.ndarray,
    parts: tuple[str, ...],
) -> tuple["Picture", Any]:
    """A heat map of probabilities with the token in each cell; the last layer is at the bottom."""
    from_top, columns = shares_LN.shape
    figure = canvas.new_picture(2.4 + 1.05 * columns, 1.7 + 0.3 * from_top)
    axes = figure.subplots()
    image = canvas.heat(axes, shares_LN, canvas.shares())
    canvas.scale(figure, image, axes, "probability", ticks=SHARE_TICKS)
    axes.set_yticks(range(from_top), parts, fontsize="small")
    axes.set_ylabel("after")
    for row, column in np.argwhere(ids_LN >= 0).tolist():
        ink = canvas.on_colour(image, shares_LN[row, column])
        label = clipped(_label(trace, ids_LN[row, column]), 11)
        axes.text(column, row, label, ha="center", va="center", color=ink, fontsize=8, **PLAIN)
        if is_framed_LN[row, column]:
            _frame(axes, row, column)
    return figure, axes


def _frame(axes: Any, row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    corner = (column - 0.46, row - 0.42)
    axes.add_patch(Rectangle(corner, 0.92, 0.84, fill=False, edgecolor=ORANGE, linewidth=1.6))


def _say_what_is_missing(figure: "Picture", lenses: Sequence[LogitLens]) -> None:
    missing = [lens for lens in lenses if lens.why is not None]
    if missing:
        said = f"Of {len(missing)} of {len(lenses)} positions only the model's own logits are shown: {missing[0].why}."
        wide = round(figure.get_size_inches()[0] * 13)
        figure.supxlabel(canvas.wrapped([said], wide), fontsize="small", x=0.01, ha="left", **PLAIN)


def _agreeing_from(ids_L: np.ndarray) -> int:
    """The first row from which on all rows are as the last one."""
    other = np.flatnonzero(ids_L != ids_L[-1])
    return int(other[-1]) + 1 if len(other) else 0


def _token_at(trace: "Trace", lens: LogitLens) -> str:
    return clipped(tokens(trace, request=lens.step.request).labels(lens.position + 1)[lens.position])


def _label(trace: "Trace", token_id: Any) -> str:
    known = bytes_of_tokens(trace).get(int(token_id))
    if known is None and trace.token_bytes is not None:
        known = trace.token_bytes(int(token_id))
    return token_label(known, int(token_id))
