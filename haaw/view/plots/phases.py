"""Where the time went: the phases of a request, and how much arithmetic each did for a byte."""

from typing import TYPE_CHECKING, Any, NamedTuple

from haaw.errors import BadInputError
from haaw.generation.answer import Answer
from haaw.tracing.display import duration
from haaw.tracing.phase_costs import PHASES
from haaw.view.plots import canvas
from haaw.view.plots.canvas import BLUE, GREEN

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace
    from haaw.view.plots.picture import Picture


class _Phase(NamedTuple):
    name: str
    took_s: float
    intensity: float | None


def plot_phases(source: "Trace | Answer", *, request: int | None = None) -> "Picture":
    """The time of each phase as bars; of a trace, also floating-point operations for each byte read or written.

    Errors: `BadInputError` where no phase has a time, `MissingLibraryError`.
    """
    phases = _of_answer(source) if isinstance(source, Answer) else _of_trace(source, request)
    if not phases:
        raise BadInputError(
            "no phase of this request has a time; the trace was cut off before its first step ended"
        )
    has_work = any(phase.intensity is not None for phase in phases)
    figure = canvas.new_picture(8.4 if has_work else 5.6, 1.2 + 0.36 * len(phases))
    if has_work:
        axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        _intensities(beside, phases)
    else:
        axes = figure.subplots()
    total_s = _times(axes, phases)
    figure.description = f"Phases of {duration(total_s * 1e9)}: " + ", ".join(
        f"{phase.name} {duration(phase.took_s * 1e9)}" for phase in phases
    )
    return figure


def _of_answer(answer: Answer) -> list[_Phase]:
    return [_Phase(name, answer.timing_s[name], None) for name in PHASES if name in answer.timing_s]


def _of_trace(trace: "Trace", request: int | None) -> list[_Phase]:
    return [
        _Phase(phase.name, phase.took_s, phase.operations_per_byte)
        for phase in trace.phases(request=request)
        if phase.took_s is not None and phase.name in PHASES
    ]


def _times(axes: Any, phases: list[_Phase]) -> float:
    longest_s = max(phase.took_s for phase in phases)
    factor, unit = (1, "s") if longest_s >= 1 else (1e3, "ms") if longest_s >= 1e-3 else (1e6, "µs")
    total_s = sum(phase.took_s for phase in phases)
    bars = axes.barh(range(len(phases)), [phase.took_s * factor for phase in phases], color=BLUE, height=0.65)
    axes.bar_label(
        bars,
        [f" {duration(phase.took_s * 1e9)}  {phase.took_s / total_s:.0%}" for phase in phases],
        fontsize="small",
    )
    axes.set_yticks(range(len(phases)), [phase.name for phase in phases])
    axes.set_ylim(len(phases) - 0.4, -0.6)
    axes.set_xlim(0, longest_s * factor * 1.35)
    axes.set_xlabel(unit)
    canvas.title(axes, f"time of each phase, {duration(total_s * 1e9)} in all")
    canvas.quiet(axes, grid="x")
    return total_s


def _intensities(axes: Any, phases: list[_Phase]) -> None:
    known = [(row, phase.intensity) for row, phase in enumerate(phases) if phase.intensity is not None]
    bars = axes.barh([row for row, _ in known], [value for _, value in known], color=GREEN, height=0.65)
    axes.bar_label(bars, [f" {value:.3g}" for _, value in known], fontsize="small")
    axes.set_xlim(0, max(value for _, value in known) * 1.25)
    axes.set_xlabel("operations a byte")
    canvas.title(axes, "arithmetic for each byte")
    axes.tick_params(labelleft=False)
    canvas.quiet(axes, grid="x")
