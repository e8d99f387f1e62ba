"""A memory plan as a picture: the cache as it grows with the context, and every kind of cache beside the weights."""

from typing import TYPE_CHECKING, Any

from haaw.memory.plan import Plan
from haaw.memory.sizes import size_text
from haaw.view.plots import canvas
from haaw.view.plots.canvas import BLUE, GREEN, ORANGE

if TYPE_CHECKING:
    from haaw.view.plots.picture import Picture

POINTS = 512


def plot_memory_plan(plan: Plan) -> "Picture":
    """A plan (`haaw.memory.Plan`): bytes of all sequences over the context, and what each kind of cache allocates.

    Weights stand below, a chosen memory is a line across. Errors: `MissingLibraryError`.
    """
    figure = canvas.new_picture(10, 4.2)
    growth, kinds = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
    unit, factor = _unit(plan)
    _growth(growth, plan, factor)
    _kinds(kinds, plan, factor)
    growth.set_ylabel(unit)
    for axes in (growth, kinds):
        if plan.memory_bytes is not None:
            axes.axhline(plan.memory_bytes / factor, color=canvas.text_colour(), linestyle="--", linewidth=1)
        axes.set_ylim(0, None)
        canvas.quiet(axes, grid="y")
    if plan.memory_bytes is not None:
        growth.annotate(
            f"memory: {size_text(plan.memory_bytes)}",
            (0.01, plan.memory_bytes / factor), xycoords=("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", fontsize="small",
        )  # fmt: skip
    figure.legend(loc="outside lower left", fontsize="small", frameon=False, ncols=4)
    name = f"{plan.name}: " if plan.name else ""
    many = "1 sequence" if plan.sequences == 1 else f"{plan.sequences:,} sequences"
    canvas.heading(figure, f"{name}{many} of {plan.context:,} positions")
    figure.description = _told(plan)
    return figure


def _unit(plan: Plan) -> tuple[str, int]:
    most = max(int(plan.total_bytes.value), plan.memory_bytes or 0)
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if most >= factor:
            return unit, factor
    return "bytes", 1


def _growth(axes: Any, plan: Plan, factor: int) -> None:
    contexts = sorted({max(1, plan.context * number // POINTS) for number in range(1, POINTS + 1)})
    totals = [
        (plan.weights_bytes + plan.sequences * plan.allocated_bytes(context, reserve=True)) / factor
        for context in contexts
    ]
    weights = plan.weights_bytes / factor
    if plan.weights_bytes:
        axes.fill_between([0, plan.context], weights, color=GREEN, linewidth=0, alpha=0.8, label="weights")
    axes.fill_between(
        contexts, weights, totals, color=BLUE, linewidth=0, label=f"cache (at the left: {plan.kind})"
    )
    axes.set_xlim(0, plan.context)
    axes.set_xlabel("context (positions)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    largest = plan.largest_context()
    if largest is not None and 0 < largest.value < plan.context:
        axes.axvline(float(largest.value), color=canvas.text_colour(), linestyle=":", linewidth=1.2)
        axes.annotate(f" {int(largest.value):,} fit", (float(largest.value), 0.96), xycoords=("data", "axes fraction"),
                      va="top", fontsize="small")  # fmt: skip
    canvas.title(axes, "as the context grows")


def _kinds(axes: Any, plan: Plan, factor: int) -> None:
    weights = plan.weights_bytes / factor
    for place, kind in enumerate(plan.kinds()):
        held = kind.useful_bytes + kind.metadata_bytes
        useful, rest = (plan.sequences * part / factor for part in (held, kind.total_bytes - held))
        first = place == 0
        if plan.weights_bytes:
            axes.bar(place, weights, color=GREEN, alpha=0.8, width=0.7)
        axes.bar(place, useful, bottom=weights, color=BLUE, width=0.7)
        axes.bar(
            place, rest, bottom=weights + useful, facecolor=ORANGE, edgecolor="white", hatch="//", linewidth=0,
            width=0.7, label="allocated beyond it" if first else None,
        )  # fmt: skip
    axes.set_xticks(range(len(plan.kinds())), [kind.kind for kind in plan.kinds()], fontsize="small")
    axes.tick_params(axis="x", length=0)
    canvas.title(axes, "in each kind of cache")


def _told(plan: Plan) -> str:
    parts = [
        f"{plan.sequences:,} times {plan.context:,} positions take {size_text(int(plan.cache_bytes.value))} of cache",
        f"with the weights {size_text(int(plan.total_bytes.value))}",
    ]
    if plan.memory_bytes is not None:
        fits = plan.total_bytes.value <= plan.memory_bytes
        parts.append(f"which {'fits' if fits else 'does not fit'} into {size_text(plan.memory_bytes)}")
    return f"Memory plan: {', '.join(parts)}."
