"""What the pictures share: a figure without pyplot, colours, heat maps, and axes with tokens on them."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import MissingLibraryError
from haaw.view.plots.labels import PLAIN, drawable

if TYPE_CHECKING:
    from haaw.view.plots.picture import Picture

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#9a9a9a"
"""Of the Okabe-Ito palette, which colour-blind readers can tell apart; hatching or words say the same again."""

SHADES, TWO_SIDES = "Blues", "PuOr"
"""Colour maps: one hue from light to dark, and one with a side for each sign."""

MOST_TICKS = 40
UNSEEN = "////"


def new_picture(width: float, height: float) -> "Picture":
    """An empty figure of a size in inches. Errors: `MissingLibraryError` without Matplotlib."""
    try:
        from haaw.view.plots.picture import Picture
    except ImportError as error:
        raise MissingLibraryError("a picture needs Matplotlib: pip install 'haaw[notebooks]'") from error
    return Picture(figsize=(width, height), layout="constrained")


def title(axes: Any, *lines: str, size: str = "medium") -> None:
    """A title at the left, in lines that fit."""
    figure = axes.figure
    plots = axes.get_subplotspec().get_gridspec().ncols
    wide = round(figure.get_size_inches()[0] / plots * (9.5 if size == "medium" else 12))
    axes.set_title(wrapped(lines, wide), loc="left", fontsize=size, **PLAIN)


def heading(figure: Any, text: str) -> None:
    """A title over several plots."""
    wide = round(figure.get_size_inches()[0] * 11)
    figure.suptitle(wrapped([text], wide), x=0.01, ha="left", fontsize="medium", **PLAIN)


def wrapped(lines: Iterable[str], wide: int) -> str:
    """Lines of at most so many characters, all of them drawable."""
    return "\n".join(part for line in lines for part in textwrap.wrap(drawable(line), wide))


def quiet(axes: Any, *, grid: str | None = None) -> None:
    """Takes away what says nothing: the frame at the top and right; thin lines along `grid`."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid is not None:
        axes.grid(axis=grid, linewidth=0.5, alpha=0.4)
        axes.set_axisbelow(True)


def text_colour() -> Any:
    """The colour that the reader's style has for text."""
    from matplotlib import rcParams

    return rcParams["text.color"]


def heat(axes: Any, values: np.ndarray, norm: Any, *, shades: str = SHADES) -> Any:
    """A heat map of a matrix with its first row on top; masked cells are hatched."""
    if np.ma.is_masked(values):
        axes.patch.set(facecolor="none", edgecolor=GREY, hatch=UNSEEN, linewidth=0)
    image = axes.imshow(values, cmap=shades, norm=norm, aspect="auto", interpolation="nearest")
    axes.tick_params(length=0)
    return image


def scale(figure: Any, image: Any, axes: Any, label: str, **options: Any) -> Any:
    """The colour bar of a heat map."""
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, **options)
    bar.set_label(label, fontsize="small")
    bar.ax.tick_params(labelsize="small")
    bar.outline.set_visible(False)
    return bar


def shares() -> Any:
    """A scale from 0 to 1 on which small shares still differ from none: the shade follows the root."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0, vmax=1)


SHARE_TICKS = (0, 0.05, 0.2, 0.5, 1)


def on_colour(image: Any, value: float) -> str:
    """Black or white, whichever can be read on a cell of this value."""
    red, green, blue, _ = image.cmap(image.norm(value))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def token_ticks(
    axis: Any, labels: Sequence[str], positions: Sequence[int] | None = None, *, most: int = MOST_TICKS
) -> None:
    """Tokens along an axis, each behind its position; of many every second, third … is named."""
    every = max(1, -(-len(labels) // most))
    places = range(0, len(labels), every)
    words = [
        drawable(labels[place]) if positions is None else f"{positions[place]}  {drawable(labels[place])}"
        for place in places
    ]
    options = {"rotation": 90} if axis.axis_name == "x" else {}
    axis.set_ticks(list(places), words, fontsize="small", **options, **PLAIN)
