"""What `haaw memory` prints: aligned tables, formulas with their numbers, and what was assumed."""

from collections.abc import Sequence
from typing import Any

from haaw.memory.arithmetic import Figure
from haaw.memory.measured import Measurement
from haaw.memory.outcome import Outcome
from haaw.memory.plan import Plan
from haaw.memory.presets import PRESETS
from haaw.memory.shape import CacheShape
from haaw.memory.sizes import number_text, size_text
from haaw.memory.workload import Request


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows in columns; `align` has one letter a column, l or r."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def plan_text(plan: Plan) -> str:
    """The whole answer: figures, formulas, kinds, assumptions."""
    figures = plan.figures()
    rows = [(figure.name, *_value(figure)) for figure in figures]
    if plan.weights_bytes:
        rows.insert(3, ("weights", f"{plan.weights_bytes:,} bytes", size_text(plan.weights_bytes)))
    parts = [
        f"{plan.name}: {shape_text(plan.shape)}\n"
        f"{plan.sequences:,} × {plan.context:,} positions, {_kind_text(plan)}\n\n",
        table(rows, "lrr"),
        "\nformulas\n",
        *(f"  {figure.name} = {figure.formula}\n    {figure.text} {figure.unit}\n" for figure in figures),
        f"\none sequence of {plan.context:,} positions in each kind of cache\n",
        _kinds_table(plan),
    ]
    notes = [f"{part.kind}: {part.note}" for part in plan.kinds() if part.note]
    return "".join(parts) + notes_text([*plan.assumptions, *notes])


def _kind_text(plan: Plan) -> str:
    return "what must be held" if plan.kind == "needed" else f"as the {plan.kind} cache allocates"


def shape_text(shape: CacheShape) -> str:
    """The shape in one line."""
    parts = [f"{shape.layers} layers"]
    if shape.latent_width:
        parts.append(f"latent of {shape.latent_width} + {shape.rope_width}")
    else:
        parts.append(f"{shape.kv_heads} KV heads of width {shape.head_dim}")
    parts.append(
        f"{number_text(shape.bytes_per_layer_position / shape.elements_per_position)} bytes an element"
    )
    if shape.windowed_layers:
        parts.append(f"{shape.windowed_layers} layers with a window of {shape.window:,}")
    if shape.caching_layers < shape.layers:
        parts.append(f"{shape.layers - shape.caching_layers} layers without a cache")
    return ", ".join(parts)


def _value(figure: Figure) -> tuple[str, str]:
    exact = f"{number_text(figure.value)} {figure.unit[:-1] if figure.value == 1 else figure.unit}"
    return exact, size_text(int(figure.value)) if figure.unit == "bytes" else ""


def _kinds_table(plan: Plan) -> str:
    rows = [("kind", "useful", "allocated", "metadata", "used", "allocated is")]
    for part in plan.kinds():
        rows.append(
            (
                part.kind,
                size_text(part.useful_bytes),
                size_text(part.allocated_bytes),
                size_text(part.metadata_bytes),
                f"{part.utilisation:.1%}",
                part.numbers,
            )
        )
    return table(rows, "lrrrrl")


def notes_text(notes: Sequence[str]) -> str:
    """What was assumed, a line each."""
    return "\nassumed\n" + "".join(f"  {note}\n" for note in notes) if notes else ""


def presets_table() -> str:
    """The presets with their sources."""
    rows = [("name", "bytes a token", "context", "weights", "source")]
    for preset in PRESETS.values():
        plan = Plan(preset.shape, context=preset.context)
        weights = size_text(preset.weights_bytes) if preset.parameters else ""
        rows.append(
            (preset.name, number_text(plan.per_token.value), f"{preset.context:,}", weights, preset.source)
        )
    return table(rows, "lrrrl")


def presets_as_values() -> list[dict[str, Any]]:
    """The presets as plain values."""
    return [
        {**vars(preset), "shape": vars(preset.shape), "weights_bytes": preset.weights_bytes}
        for preset in PRESETS.values()
    ]


def simulation_head(
    plan: Plan, capacity: int, work: Sequence[Request], notes: Sequence[str]
) -> dict[str, Any]:
    """What was simulated, as plain values."""
    return {
        "name": plan.name,
        "requests": len(work),
        "bytes_per_token": float(plan.per_token.value),
        "capacity_positions": capacity,
        "block_size": plan.shape.block_size,
        "assumptions": list(notes),
    }


def simulation_text(
    plan: Plan, capacity: int, work: Sequence[Request], notes: Sequence[str], outcomes: Sequence[Outcome]
) -> str:
    """Both methods side by side, in positions and shares of the memory."""
    room = size_text(int(capacity * plan.per_token.value))
    head = (
        f"{plan.name}: {len(work):,} requests through {capacity:,} positions ({room}), blocks of "
        f"{plan.shape.block_size}\n\n"
    )
    rows: list[tuple[str, ...]] = [("", *(outcome.method for outcome in outcomes))]
    told = (
        ("requests finished", [f"{o.finished:,}" for o in outcomes]),
        ("could never fit", [f"{len(o.never_fit):,}" for o in outcomes]),
        ("most at once", [f"{o.most_at_once:,}" for o in outcomes]),
        ("steps to the last", [f"{o.steps:,}" for o in outcomes]),
        ("mean wait, steps", [f"{o.mean_wait:,.1f}" for o in outcomes]),
        ("memory that held something", [f"{o.utilisation:.1%}" for o in outcomes]),
        ("allocated, unused (internal)", [f"{o.internal:.1%}" for o in outcomes]),
        ("  of that filled later", [f"{o.later:.1%}" for o in outcomes]),
        ("free, too scattered (external)", [f"{o.external:.1%}" for o in outcomes]),
        ("  steps with such a wait", [f"{o.scattered_steps:,}" for o in outcomes]),
        ("waste of what was allocated", [f"{o.waste:.1%}" for o in outcomes]),
        ("requests sent back", [f"{o.preemptions:,}" for o in outcomes]),
        ("  positions computed again", [f"{o.recomputed_tokens:,}" for o in outcomes]),
    )
    rows += [(name, *values) for name, values in told]
    return head + table(rows, "l" + "r" * len(outcomes)) + notes_text(notes)


def measured_text(result: Measurement) -> str:
    """The plan beside the run."""
    rows: list[tuple[str, ...]] = [("", "planned", "measured", "how")]
    for line in result.lines:
        sides = [
            "" if value is None else f"{'-' if value < 0 else ''}{size_text(abs(value))}"
            for value in (line.planned_bytes, line.measured_bytes)
        ]
        rows.append((line.name, *sides, line.how))
    return (
        f"a run of {result.positions:,} positions\n\n"
        + table(rows, "lrrl")
        + "\n"
        + result.explanation
        + "\n"
    )
