"""The simulation as a picture: the memory over time under both methods (Matplotlib, extra `notebooks`)."""

import os
from collections.abc import Sequence
from typing import Any

from haaw.errors import BadInputError, MissingLibraryError
from haaw.memory.outcome import Outcome

COLOURS = {"held": "#0072b2", "allocated": "#e69f00", "scattered": "#9a9a9a"}
"""Of the Okabe-Ito palette, which colour-blind readers can tell apart; hatching says the same again."""


def plot_outcomes(outcomes: Sequence[Outcome]) -> Any:
    """A Matplotlib figure: for each outcome, positions held and allocated by step, and requests at work below.

    Errors: `MissingLibraryError` without Matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError("a plot needs Matplotlib: pip install 'haaw[notebooks]'") from error
    figure = Figure(figsize=(5.2 * len(outcomes), 5.6), layout="constrained")
    axes = figure.subplots(2, len(outcomes), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1))
    most = max((outcome.timeline.step[-1] + 1 for outcome in outcomes if outcome.steps), default=1)
    for column, outcome in enumerate(outcomes):
        _memory(axes[0, column], outcome)
        line = outcome.timeline
        axes[1, column].plot(line.step, line.running, color=COLOURS["held"], label="running")
        axes[1, column].plot(
            line.step, line.waiting, color=COLOURS["allocated"], linestyle="--", label="waiting"
        )
        axes[1, column].set_xlabel("step (one token for each request at work)")
        axes[1, column].set_xlim(0, most)
    axes[0, 0].set_ylabel("positions of the memory")
    axes[1, 0].set_ylabel("requests")
    axes[0, -1].legend(loc="upper right", fontsize="small")
    axes[1, -1].legend(loc="upper right", fontsize="small")
    return figure


def _memory(axes: Any, outcome: Outcome) -> None:
    line = outcome.timeline
    axes.fill_between(line.step, line.held, step="post", color=COLOURS["held"], label="useful", linewidth=0)
    axes.fill_between(
        line.step, line.held, line.allocated, step="post", facecolor=COLOURS["allocated"], edgecolor="white",
        hatch="//", linewidth=0, label="allocated, unused",
    )  # fmt: skip
    upto = [
        allocated + scattered for allocated, scattered in zip(line.allocated, line.scattered, strict=True)
    ]
    axes.fill_between(
        line.step, line.allocated, upto, step="post", facecolor=COLOURS["scattered"], edgecolor="white",
        hatch="..", linewidth=0, label="free, but too scattered",
    )  # fmt: skip
    axes.axhline(outcome.capacity, color="black", linewidth=0.8)
    axes.set_ylim(0, outcome.capacity * 1.03)
    axes.set_title(
        f"{outcome.method}: {outcome.utilisation:.0%} used, at most {outcome.most_at_once} at once, "
        f"{outcome.steps:,} steps",
        fontsize="medium",
    )


def save_plot(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure. Errors: `BadInputError` for a name whose ending is no kind of picture."""
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise BadInputError(f"the plot cannot be written to {os.fspath(path)!r:.200}: {error}") from error
