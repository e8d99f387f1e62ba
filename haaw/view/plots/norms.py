"""How long the vectors of the residual stream are, layer by layer and position by position."""

from typing import TYPE_CHECKING

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.text_view import tokens
from haaw.view.plots import canvas
from haaw.view.plots.labels import clipped
from haaw.view.plots.residual import residual, steps_to_show

if TYPE_CHECKING:
    from haaw.tracing.steps import StepLike
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture


def plot_residual_norms(
    trace: "Trace", step: "StepLike | None" = None, *, request: int | None = None
) -> "Picture":
    """The length ‖x‖₂ of each token's vector after the embedding and after every layer: a heat map (layers, positions).

    Without a step, all steps of the request, each position once. What a trace does not hold is hatched, and the
    picture says so. Errors: `ValueNotKeptError` where nothing can be had, and `MissingLibraryError`.
    """
    norms_by_position: dict[int, np.ndarray] = {}
    missing: list[BadInputError] = []
    parts: tuple[str, ...] = ()
    steps = steps_to_show(trace, step, request)
    for each in steps:
        try:
            stream = residual(trace, each)
            norms_LT = np.array(
                [np.sqrt((x_TD.astype(np.float64) ** 2).sum(axis=1)) for x_TD in stream.vectors(trace)]
            )
        except BadInputError as error:
            missing.append(error)
            continue
        parts = stream.parts
        for place, position in enumerate(stream.positions):
            norms_by_position.setdefault(position, norms_LT[:, place])
    if not norms_by_position:
        raise missing[0]
    figure = _drawn(trace, norms_by_position, parts, steps[0].request)
    canvas.title(
        figure.axes[0],
        "residual stream: length of each vector"
        + (f", {steps[0].name}" if step is not None else "")
        + (f" ({len(missing)} of {len(steps)} steps cannot be had)" if missing else ""),
    )
    return figure


def _drawn(
    trace: "Trace", norms_by_position: dict[int, np.ndarray], parts: tuple[str, ...], request: int | None
) -> "Picture":
    from matplotlib.colors import LogNorm

    first, last = min(norms_by_position), max(norms_by_position)
    positions = list(range(first, last + 1))
    nothing_L = np.full(len(parts), np.nan)
    norms_LT = np.array([norms_by_position.get(each, nothing_L) for each in positions]).T
    norms_LT = np.ma.masked_invalid(norms_LT)
    figure = canvas.new_picture(min(max(5.5, 2.2 + 0.25 * len(positions)), 13), 2.2 + 0.24 * len(parts))
    axes = figure.subplots()
    least = max(float(norms_LT.min()), 1e-12)
    image = canvas.heat(axes, norms_LT, LogNorm(least, max(float(norms_LT.max()), least * 1.01)))
    bar = canvas.scale(figure, image, axes, "length ‖x‖₂ (logarithmic)")
    ticks = [digit * 10.0**power for power in range(-12, 13) for digit in (1, 2, 5)]
    shown = [tick for tick in ticks if norms_LT.min() <= tick <= norms_LT.max()]
    bar.set_ticks(shown, labels=[f"{tick:,g}" for tick in shown])
    bar.minorticks_off()
    axes.set_yticks(range(len(parts)), parts, fontsize="small")
    axes.set_ylabel("after")
    axes.set_xlabel("position and token")
    labels = tokens(trace, request=request).labels(last + 1)[first:]
    canvas.token_ticks(axes.xaxis, list(map(clipped, labels)), positions, most=60)
    place, column = np.unravel_index(int(norms_LT.argmax()), norms_LT.shape)
    figure.description = (
        f"Lengths of the residual stream at {len(norms_by_position)} positions, from {norms_LT.min():.3g} to "
        f"{norms_LT.max():.3g}; the longest is {labels[column]} at {positions[column]} after {parts[place]}."
    )
    return figure
