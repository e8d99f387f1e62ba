"""Who looks at whom: the attention weights of one head over the tokens, and all heads of a layer side by side."""

from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.attention_view import AttentionPattern
from haaw.view.plots import canvas
from haaw.view.plots.canvas import BLUE, SHARE_TICKS
from haaw.view.plots.labels import clipped

if TYPE_CHECKING:
    from haaw.tracing.steps import StepLike
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture

MOST_NAMED_KEYS = 60
KEYS_AXIS, QUERIES_AXIS = "key: position and token looked at", "query: position and token that looks"


def plot_attention(
    trace: "Trace",
    step: "StepLike",
    layer: int,
    head: int | None = None,
    *,
    request: int | None = None,
    sequence: int | None = None,
) -> "Picture":
    """The attention weights of one head over the tokens; without a head, the mean of all heads.

    A heat map (queries T, keys S) where the step has several tokens, else bars. Keys that come after the query
    are hatched. Errors: as those of `trace.attention`, and `MissingLibraryError`.
    """
    pattern = trace.attention(step, layer, head, request=request, sequence=sequence)
    weights_TS = pattern.weights_HTS.mean(axis=0) if head is None else pattern.weights_HTS[0]
    words = pattern.path if head is not None else f"{pattern.path}, mean of {len(pattern.heads)} heads"
    figure = _bars(pattern, weights_TS[0]) if len(weights_TS) == 1 else _map(pattern, weights_TS)
    canvas.title(figure.axes[0], words)
    figure.description = f"Attention weights, {words}. {_strongest(pattern, weights_TS)}"
    return figure


def _strongest(pattern: AttentionPattern, weights_TS: np.ndarray) -> str:
    best = np.argsort(-weights_TS[-1], kind="stable")[:3].tolist()
    told = ", ".join(
        f"{pattern.keys[at]} at {pattern.key_positions[at]} ({weights_TS[-1, at]:.2f})" for at in best
    )
    return f"{pattern.queries[-1]} at {pattern.query_positions[-1]} looks most at {told}."


def _bars(pattern: AttentionPattern, weights_S: np.ndarray) -> "Picture":
    count = len(weights_S)
    figure = canvas.new_picture(min(max(4.5, 0.24 * count), 13), 3.4)
    axes = figure.subplots()
    axes.bar(np.arange(count), weights_S, color=BLUE, width=0.8)
    axes.set_xlim(-0.7, count - 0.3)
    axes.set_ylim(0, None)
    axes.set_ylabel("attention weight")
    axes.set_xlabel(KEYS_AXIS)
    _keys(axes, pattern, MOST_NAMED_KEYS)
    canvas.quiet(axes, grid="y")
    return figure


def _map(pattern: AttentionPattern, weights_TS: np.ndarray) -> "Picture":
    rows, columns = weights_TS.shape
    figure = canvas.new_picture(min(max(5.0, 2.6 + 0.27 * columns), 11), min(max(3.6, 1.8 + 0.25 * rows), 10))
    axes = figure.subplots()
    image = canvas.heat(axes, _seen(pattern, weights_TS), canvas.shares())
    canvas.scale(figure, image, axes, "attention weight", ticks=SHARE_TICKS)
    axes.set_xlabel(KEYS_AXIS)
    axes.set_ylabel(QUERIES_AXIS)
    _keys(axes, pattern, canvas.MOST_TICKS)
    canvas.token_ticks(axes.yaxis, list(map(clipped, pattern.queries)), pattern.query_positions)
    return figure


def _keys(axes: Any, pattern: AttentionPattern, most: int) -> None:
    canvas.token_ticks(axes.xaxis, list(map(clipped, pattern.keys)), pattern.key_positions, most=most)


def _seen(pattern: AttentionPattern, weights_TS: np.ndarray) -> np.ndarray:
    """The weights with the keys masked that come after their query."""
    later_TS = np.array(pattern.key_positions)[None, :] > np.array(pattern.query_positions)[:, None]
    return np.ma.masked_array(weights_TS, later_TS)


def plot_attention_heads(
    trace: "Trace",
    step: "StepLike",
    layer: int,
    *,
    request: int | None = None,
    sequence: int | None = None,
) -> "Picture":
    """All heads of a layer at a glance: small heat maps; for a step of one token, one of heads by keys.

    Errors: as those of `trace.attention`, and `MissingLibraryError`.
    """
    pattern = trace.attention(step, layer, request=request, sequence=sequence)
    heads, rows, _ = pattern.weights_HTS.shape
    figure = _rows_of_heads(pattern) if rows == 1 else _grid(pattern)
    spread_H = np.array([_entropy(pattern.weights_HTS[number, -1]) for number in range(heads)])
    narrow, broad = (pattern.heads[int(at)] for at in (spread_H.argmin(), spread_H.argmax()))
    figure.description = (
        f"Attention weights, {pattern.path}, {heads} heads. For the last token, head {narrow} looks at the fewest "
        f"keys ({spread_H.min():.1f} bits) and head {broad} at the most ({spread_H.max():.1f} bits)."
    )
    return figure


def _entropy(weights_S: np.ndarray) -> float:
    wide_S = weights_S[weights_S > 0].astype(np.float64)
    return float(-(wide_S * np.log2(wide_S)).sum())


def _rows_of_heads(pattern: AttentionPattern) -> "Picture":
    heads, _, keys = pattern.weights_HTS.shape
    figure = canvas.new_picture(min(max(5.5, 2 + 0.24 * keys), 13), 2.0 + 0.28 * heads)
    axes = figure.subplots()
    image = canvas.heat(axes, pattern.weights_HTS[:, 0], canvas.shares())
    canvas.scale(figure, image, axes, "attention weight", ticks=SHARE_TICKS)
    axes.set_yticks(range(heads), list(map(str, pattern.heads)), fontsize="small")
    axes.set_ylabel("head")
    axes.set_xlabel(KEYS_AXIS)
    _keys(axes, pattern, MOST_NAMED_KEYS)
    canvas.title(axes, f"{pattern.path}, for {clipped(pattern.queries[0])} at {pattern.query_positions[0]}")
    return figure


def _grid(pattern: AttentionPattern) -> "Picture":
    heads = len(pattern.heads)
    columns = min(heads, 4 if heads <= 16 else 8)
    rows = -(-heads // columns)
    figure = canvas.new_picture(2.1 * columns + 1.2, 2.15 * rows + 0.9)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    image = None
    for place, axes in enumerate(grid.flat):
        if place >= heads:
            axes.set_visible(False)
            continue
        image = canvas.heat(axes, _seen(pattern, pattern.weights_HTS[place]), canvas.shares())
        canvas.title(axes, f"head {pattern.heads[place]}")
    _few_ticks(grid[0, 0], pattern)
    canvas.scale(figure, image, list(grid.flat), "attention weight", ticks=SHARE_TICKS)
    figure.supxlabel("key (position)", fontsize="medium")
    figure.supylabel("query (position)", fontsize="medium")
    canvas.heading(figure, pattern.path)
    return figure


def _few_ticks(axes: Any, pattern: AttentionPattern) -> None:
    """Positions alone: there is no room for tokens. Shared axes follow."""
    for axis, positions in ((axes.xaxis, pattern.key_positions), (axes.yaxis, pattern.query_positions)):
        every = max(1, -(-len(positions) // 6))
        places = list(range(0, len(positions), every))
        axis.set_ticks(places, [str(positions[place]) for place in places], fontsize="small")
