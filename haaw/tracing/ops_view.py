"""Operations as rows: those of one step with their inputs and costs, or all of a trace summed up by name."""

from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.outputs import named_outputs
from haaw.tracing.schema import OPERATION
from haaw.tracing.steps import StepLike, find_step, the_request

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

STEP_COLUMNS = ("event", "path", "op", "inputs", "shape", "took_us", "operations", "bytes", "site")
SUM_COLUMNS = ("op", "calls", "took_ms", "share", "operations", "bytes", "operations_per_byte")


def operations_of_step(
    trace: "Trace", step: StepLike, *, layer: int | None = None, request: int | None = None
) -> list[dict[str, Any]]:
    """A row for each operation and declared input of a step, in order."""
    found = find_step(trace, step, request=request)
    rows = []
    for named in named_outputs(trace, found):
        event = named.event
        if named.output or layer not in (None, event.place.layer):
            continue
        cost = trace.reading.costs.of(event)
        shapes = [str(tuple(output.window.layout.shape)) for output in event.outputs]
        rows.append(
            {
                "event": event.number,
                "path": named.path,
                "op": event.name if event.kind == "operation" else "(input)",
                "inputs": ", ".join(f"{link.parameter} {link.window.layout.shape}" for link in event.inputs),
                "shape": " ".join(shapes),
                "took_us": round(event.took_ns / 1000, 1),
                "operations": cost.operations,
                "bytes": cost.bytes,
                "site": f"{event.file}:{event.line}" if event.line else "",
            }
        )
    return rows


def sums_by_operation(trace: "Trace", *, request: int | None = None) -> list[dict[str, Any]]:
    """A row for each operation: calls, time, share of the time of all operations; the dearest first."""
    columns, calls = trace.reading.columns, trace.reading.calls.rows
    rows = columns["kind"] == OPERATION
    if request is not None:
        rows &= columns["request"] == the_request(trace, request)
    whole_ns = float(columns["took_ns"][rows].sum(dtype=np.float64)) or 1.0
    sums = []
    for name in sorted(columns.texts["name"].at(columns["name"][rows])):
        own = rows & columns.says("name", name)
        took_ns = float(columns["took_ns"][own].sum(dtype=np.float64))
        operations, moved = (sum(calls[what][own].tolist()) for what in ("operations", "bytes"))
        sums.append(
            {
                "op": name,
                "calls": int(own.sum()),
                "took_ms": round(took_ns / 1e6, 3),
                "share": round(took_ns / whole_ns, 4),
                "operations": operations,
                "bytes": moved,
                "operations_per_byte": round(operations / moved, 3) if moved > 0 else None,
            }
        )
    return sorted(sums, key=lambda row: -row["took_ms"])
