"""Decode time against context as a picture (Matplotlib, extra `notebooks`)."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.cache_report import Findings
from haaw.memory.plot import save_plot

STYLES = {
    "static": ("#000000", "o", "-"),
    "dynamic": ("#0072b2", "s", "--"),
    "paged": ("#009e73", "^", "-."),
    "sliding": ("#56b4e9", "v", ":"),
    "quantised": ("#e69f00", "D", "-"),
    "quantised to 4 bits": ("#e69f00", "d", "--"),
    "offloaded": ("#cc79a7", "P", "-"),
    "concatenated": ("#d55e00", "X", "-"),
    "none": ("#777777", "*", "-"),
}
"""Of the Okabe-Ito palette, which colour-blind readers can tell apart; marks and dashes say the same again."""


def draw(found: Findings, machine: str, path: Path) -> None:
    """Writes the picture: a decode step on the left, the cache alone on the right, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, found.contexts, found.decode_ms)
    _lines(right, found.contexts, found.alone_ms)
    left.set(title="decode step, model included", ylabel="ms a token (median and quartiles)")
    right.set(title="append and view of all layers alone")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")
    figure.suptitle(machine, fontsize="small")
    save_plot(figure, path)


def _lines(axes: Any, contexts: list[int], figures: list[dict[str, list[float]]]) -> None:
    names = dict.fromkeys(name for each in figures for name in each)
    for name in names:
        colour, mark, dashes = STYLES.get(name, ("#777777", ".", "-"))
        points = [
            (context, each[name]) for context, each in zip(contexts, figures, strict=True) if name in each
        ]
        xs = [context for context, _ in points]
        axes.plot(
            xs, [statistics.median(times) for _, times in points],
            color=colour, marker=mark, linestyle=dashes, markersize=5, label=name,
        )  # fmt: skip
        low, high = zip(*(_quartiles(times) for _, times in points), strict=True)
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(contexts, [f"{context:,}" for context in contexts])
    axes.set_xlabel("tokens in the cache")
    axes.grid(alpha=0.3)


def _quartiles(times: list[float]) -> tuple[float, float]:
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, high
