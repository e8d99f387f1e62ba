"""How the cache grew: bytes that hold keys and values against bytes that were allocated, step by step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import BadInputError
from haaw.memory.sizes import size_text
from haaw.tracing.cache_view import cache_sizes
from haaw.tracing.event import Step
from haaw.tracing.outputs import events_in
from haaw.view.plots import canvas
from haaw.view.plots.canvas import BLUE, ORANGE
from haaw.view.plots.residual import steps_to_show

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture

KINDS = ("dynamic", "static", "concatenated", "paged", "sliding")
"""Kinds of cache that hold rows as they are read, so that their bytes can be told from the log."""


@dataclass(frozen=True)
class _Size:
    step: Step
    useful_bytes: int
    allocated_bytes: int
    moves: int


def plot_cache(trace: "Trace", *, request: int | None = None) -> "Picture":
    """Useful and allocated bytes of the cache, all layers together, when each step had ended; where rows were moved.

    Needs no kept values. Errors: `BadInputError` for a request without a cache, or of a kind whose bytes the log does
    not tell step by step, `MissingLibraryError`.
    """
    steps = steps_to_show(trace, None, request)
    kind = _kind(trace, steps[0].request)
    sizes = [_size(trace, step) for step in steps]
    figure = canvas.new_picture(7, 3.6)
    axes = figure.subplots()
    at = np.arange(len(sizes) + 1)
    unit, factor = _unit(max(size.allocated_bytes for size in sizes))
    useful, allocated = (
        [getattr(size, name) / factor for size in (*sizes, sizes[-1])]
        for name in ("useful_bytes", "allocated_bytes")
    )
    axes.fill_between(at, useful, step="post", color=BLUE, linewidth=0, label="useful: rows of tokens")
    axes.fill_between(
        at, useful, allocated, step="post", facecolor=ORANGE, edgecolor="white", hatch="//", linewidth=0,
        label="allocated, not used",
    )  # fmt: skip
    moved = [number for number, size in enumerate(sizes) if size.moves]
    if moved:
        heights = [sizes[number].allocated_bytes / factor for number in moved]
        axes.plot(
            moved, heights, "v", color=canvas.text_colour(), markersize=6, label="rows moved to more memory"
        )
    axes.set_xlim(0, len(sizes))
    axes.set_ylim(0, max(allocated) * 1.12)
    axes.set_ylabel(unit)
    _name_steps(axes, steps)
    axes.legend(loc="upper left", fontsize="small", frameon=False, ncols=3, bbox_to_anchor=(0, -0.16))
    last = sizes[-1]
    said = f"{size_text(last.useful_bytes)} useful of {size_text(last.allocated_bytes)} allocated"
    canvas.title(axes, f"{kind} cache, all layers: at the end {said}")
    canvas.quiet(axes, grid="y")
    moved_in = f"rows were moved in {len(moved)} of them"
    figure.description = f"Growth of the {kind} cache over {len(sizes)} steps; {moved_in}; at the end {said}."
    return figure


def _kind(trace: "Trace", request: int | None) -> str:
    asked = next(
        ((each.facts or {}).get("asked") or {} for each in trace.facts("settings", request=request)), {}
    )
    kind = str(asked.get("cache", "dynamic"))
    if kind == "none":
        raise BadInputError(
            "this request ran without a cache, so there is none to draw; every step began anew"
        )
    if kind not in KINDS:
        end = next(((each.facts or {}) for each in trace.facts("released", request=request)), None)
        known = "" if end is None else (
            f"; when it was released, {size_text(end['useful_bytes'])} were useful of {size_text(end['bytes'])}"
        )  # fmt: skip
        raise BadInputError(
            f'the cache of this request was of the kind "{kind}", whose bytes the trace does not tell step by step'
            f"{known}; it does for {', '.join(KINDS)}"
        )
    return kind


def _size(trace: "Trace", step: Step) -> _Size:
    events = list(events_in(trace, step))
    layers = sorted({each.place.layer for each in events if each.place.layer is not None})
    found = [cache_sizes(trace, step, layer) for layer in layers]
    moves = sum(each.name == "kv_move" for each in events)
    return _Size(step, sum(useful for useful, _ in found), sum(allocated for _, allocated in found), moves)


def _unit(most_bytes: int) -> tuple[str, int]:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if most_bytes >= 2 * factor:
            return unit, factor
    return "bytes", 1


def _name_steps(axes: Any, steps: list[Step]) -> None:
    every = max(1, -(-len(steps) // 12))
    shown = range(0, len(steps), every)
    names = [steps[at].name if steps[at].stage == "prefill" else str(steps[at].step) for at in shown]
    axes.set_xticks([at + 0.5 for at in shown], names, fontsize="small")
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("step")
