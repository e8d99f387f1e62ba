"""Draws the course of the loss into a PNG file."""

from __future__ import annotations

import io
from pathlib import Path

from weights_tools.train.checkpoint import TrainingError, write_whole


def plot_losses(losses: list[tuple[int, float]], path: Path, *, smooth_steps: int = 50) -> None:
    """Draw loss over steps, single and smoothed. Raises `TrainingError` without Matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TrainingError(
            "The loss plot needs Matplotlib; install it with: pip install 'haaw[train]'"
        ) from error
    figure = Figure(figsize=(7, 4))
    axes = FigureCanvasAgg(figure).figure.subplots()
    steps = [step for step, _ in losses]
    values = [loss for _, loss in losses]
    means = [
        sum(values[max(0, i - smooth_steps + 1) : i + 1]) / min(i + 1, smooth_steps)
        for i in range(len(values))
    ]
    axes.plot(steps, values, linewidth=0.4, alpha=0.5, label="batch")
    axes.plot(steps, means, label=f"mean of {smooth_steps}")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("weighted loss (nats a token)")
    axes.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    write_whole(path, out.getvalue())
