"""Any value of a trace as a picture, with the axes that the trace gives it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.text_view import tokens
from haaw.tracing.values import Value
from haaw.view.plots import canvas
from haaw.view.plots.canvas import BLUE, GREY, SHADES, TWO_SIDES
from haaw.view.plots.labels import clipped

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture

AXES = {
    "B": "sequence", "T": "token", "S": "position in the cache", "H": "query head", "K": "key/value head",
    "G": "query head of a group", "C": "channel of a head", "D": "channel of the model", "I": "pair of channels",
    "E": "channel of all heads", "U": "channel of all key/value heads", "F": "channel of the MLP", "V": "token id",
    "N": "candidate", "L": "layer", "X": "expert", "R": "rotated channel", "M": "block", "P": "position in a block",
    "A": "channel into a product", "Z": "channel out of a product",
}  # fmt: skip
"""What the letters of a value's axes mean; see `haaw.ops.shapes`."""

MOST_MARKED = 40
"""Rows or columns up to which a cell has room for a sign."""


def plot_value(
    trace: "Trace", path: str, head: int | None = None, *, request: int | None = None
) -> "Picture":
    """A value by its path: a heat map of a matrix, a line of a vector, a row of maps of what has three axes.

    Negative numbers are told from positive ones by colour and by a minus in the cell; where there is no room, by two
    maps, one for each sign. Errors: as those of `trace.value`, and `BadInputError` for a
    value of more than three axes or more than eight maps.
    """
    value = _heads_first(trace.value(path, head, request=request))
    array = _checked(value)
    if array.ndim <= 1 or array.shape[:-1] == (1,):
        figure = _line(value, array.reshape(-1))
    elif array.ndim == 2:
        figure = _matrix(trace, value, array)
    else:
        figure = _maps(value, array)
    finite = array[np.isfinite(array)]
    span = f"from {finite.min():.4g} to {finite.max():.4g}" if finite.size else "without a finite number"
    figure.description = f"{value.path} {value.shape}, {value.source}: {finite.size} numbers {span}."
    return figure


def _heads_first(value: Value) -> Value:
    """The axis of heads in front, so that each head has a map."""
    place = next((value.axes.find(letter) for letter in "HK" if letter in value.axes), 0)
    if value.array.ndim != 3 or len(value.axes) != 3 or place <= 0:
        return value
    axes = value.axes[place] + value.axes[:place] + value.axes[place + 1 :]
    return replace(value, array=np.moveaxis(value.array, place, 0), axes=axes)


def _checked(value: Value) -> np.ndarray:
    array = np.asarray(value.array)
    if array.size == 0:
        raise BadInputError(f"{value.path} is empty, {value.shape}")
    if array.ndim > 3 or (array.ndim == 3 and array.shape[0] > 8):
        advice = (
            "choose one with head="
            if value.axes.startswith("H")
            else "draw a part of trace.value(…) yourself"
        )
        raise BadInputError(
            f"{value.path} has the shape {value.shape}, which is too much for one picture; {advice}"
        )
    return array.astype(np.float64)


def _axis(value: Value, place: int) -> str:
    letter = value.axes[place] if len(value.axes) == value.array.ndim else ""
    return f"{letter}: {AXES[letter]}" if letter in AXES else f"axis {place}"


def _titled(value: Value) -> str:
    said = {"identical": "hash as recorded", "differs": "hash differs", "not hashed": "not hashed"}
    head = "" if value.head is None else f", head {value.head}"
    return f"{value.path}{head} ({value.source}, {said[value.hash_verdict]})"


def _line(value: Value, values_Z: np.ndarray) -> "Picture":
    figure = canvas.new_picture(8, 3)
    axes = figure.subplots()
    axes.plot(values_Z, color=BLUE, linewidth=0.8, marker="." if len(values_Z) < 100 else None)
    axes.axhline(0, color=canvas.text_colour(), linewidth=0.6)
    axes.set_xlabel(_axis(value, value.array.ndim - 1) if value.array.ndim else "")
    axes.set_ylabel("value")
    canvas.title(axes, _titled(value))
    canvas.quiet(axes, grid="y")
    return figure


def _matrix(trace: "Trace", value: Value, values_AZ: np.ndarray) -> "Picture":
    rows, columns = values_AZ.shape
    width, height = min(max(5.0, 0.09 * columns), 11), min(max(2.4, 1.3 + 0.2 * rows), 9)
    if _has_both(values_AZ) and not _has_room(rows, columns):
        figure = canvas.new_picture(width, min(2 * height, 10))
        parts = list(figure.subplots(2, 1, sharex=True, sharey=True))
        _by_sign(figure, parts, values_AZ, _greatest(values_AZ))
        canvas.heading(figure, _titled(value))
    else:
        figure = canvas.new_picture(width, height)
        parts = [figure.subplots()]
        _map(figure, parts, parts[0], values_AZ, _greatest(values_AZ))
        canvas.title(parts[0], _titled(value))
    parts[-1].set_xlabel(_axis(value, 1))
    for axes in parts:
        axes.set_ylabel(_axis(value, 0))
    _tokens_on(parts[0], trace, value)
    return figure


def _maps(value: Value, values_HAZ: np.ndarray) -> "Picture":
    """A map for each entry of the first axis; two where both signs occur."""
    count, both = len(values_HAZ), _has_both(values_HAZ)
    columns = 2 if both else min(count, 4)
    lines = count if both else -(-count // columns)
    figure = canvas.new_picture((4.2 if both else 2.6) * columns + 1, (1.7 if both else 2.3) * lines + 0.8)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for place, values_AZ in enumerate(values_HAZ):
        words = f"{_axis(value, 0)} {place}"
        if both:
            _by_sign(figure, list(grid[place]), values_AZ, _greatest(values_HAZ), words)
        else:
            _map(figure, [grid.flat[place]], grid.flat[place], values_AZ, _greatest(values_HAZ))
            canvas.title(grid.flat[place], words, size="small")
    for axes in grid.flat[lines * columns if both else count :]:
        axes.set_visible(False)
    figure.supxlabel(_axis(value, 2), fontsize="medium")
    figure.supylabel(_axis(value, 1), fontsize="medium")
    canvas.heading(figure, _titled(value))
    return figure


def _has_both(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool((finite < 0).any() and (finite > 0).any())


def _has_room(rows: int, columns: int) -> bool:
    """Whether the cells are large enough for a sign in each."""
    return rows <= MOST_MARKED and columns <= MOST_MARKED


def _greatest(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0


def _by_sign(figure: Any, parts: Sequence[Any], values_AZ: np.ndarray, most: float, words: str = "") -> None:
    """Two maps, of what is above and what is below zero; the other sign is left blank."""
    for axes, sign, name in zip(parts, (1, -1), ("above zero", "below zero"), strict=True):
        own_AZ = np.ma.masked_array(values_AZ, ~(sign * values_AZ > 0))
        _map(figure, [axes], axes, own_AZ, most)
        axes.patch.set(hatch=None)
        canvas.title(axes, f"{words}, {name}" if words else name, size="small")


def _map(figure: Any, beside: Sequence[Any], axes: Any, values_AZ: np.ndarray, most: float) -> None:
    """Shades of one hue where all numbers have one sign; else two hues around zero, and a minus where one is below."""
    from matplotlib.colors import Normalize

    shown_AZ = np.ma.masked_invalid(values_AZ)
    negative_AZ, both = np.ma.filled(shown_AZ < 0, False), _has_both(np.ma.compressed(shown_AZ))
    low, high = (-most if negative_AZ.any() else 0), (most if both or not negative_AZ.any() else 0)
    shades = TWO_SIDES if both else f"{SHADES}_r" if negative_AZ.any() else SHADES
    image = canvas.heat(axes, shown_AZ, Normalize(low, high), shades=shades)
    canvas.scale(figure, image, list(beside), "value")
    if both:
        rows, columns = np.nonzero(negative_AZ)
        axes.plot(columns, rows, "_", color=GREY, markersize=4, markeredgewidth=1, linestyle="none")


def _tokens_on(axes: Any, trace: "Trace", value: Value) -> None:
    """The tokens beside their rows, where rows are the tokens of a prefill that starts at 0."""
    place = value.event.place
    known = tokens(trace, request=place.request)
    rows = value.array.shape[0]
    if value.axes[:1] == "T" and place.stage == "prefill" and place.step == 0 and 1 < rows <= len(known):
        canvas.token_ticks(axes.yaxis, list(map(clipped, known.labels(rows))), range(rows))
