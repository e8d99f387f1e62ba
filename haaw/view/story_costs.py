"""Where time, work and memory went: phases with their operations and bytes, stretches of the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from haaw.view.source_rows import Line

if TYPE_CHECKING:
    from haaw.view.story import Facts

PHASES = ("prepare", "queue", "prefill", "decode", "deliver")


@dataclass
class Work:
    """What the operations of one step add up to; the operations themselves are let go again."""

    count: int
    chooses: bool
    choose_ns: int | None
    stretches: list[tuple[str, int, int]] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    end_ns: int = 0


def work_of(stage: str, lines: Sequence[Line]) -> Work:
    """Adds up one step."""
    chosen = [line for line in lines if line.part == "choose"]
    embedded = [(line.op, line.shape[0]) for line in lines if line.part == "embedding" and line.shape]
    work = Work(
        count=sum(rows for op, rows in embedded if op == embedded[0][0]) if embedded else 1,
        chooses=bool(chosen),
        choose_ns=_end(chosen[-1]) - chosen[0].start_ns if chosen else None,
        end_ns=_end(lines[-1]) if lines else 0,
    )
    for line in lines:
        phase = "decode" if stage == "decode" or line.part == "choose" else "prefill"
        work.operations[phase] = work.operations.get(phase, 0) + line.operations
        work.bytes[phase] = work.bytes.get(phase, 0) + line.bytes
        start = line.start_ns
        if work.stretches and work.stretches[-1][0] == phase:
            start = work.stretches.pop()[1]
        work.stretches.append((phase, start, _end(line) - start))
    return work


def _end(line: Line) -> int:
    return line.start_ns + line.took_ns


def recorder_ns(facts: "Facts") -> int | None:
    """How much of the times of all phases was the recorder's own; None where the trace does not say."""
    spent_s = (facts.first("phases") or {}).get("recorder_s")
    return round(spent_s * 1e9) if isinstance(spent_s, int | float) else None


def phases_of(facts: "Facts", works: Sequence[Work]) -> list[dict[str, Any]]:
    """The clock's own totals, with the operations and bytes of the cards."""
    spent_s = (facts.first("phases") or {}).get("spent_s", {})
    return [
        {
            "phase": phase,
            "took_ns": round(spent_s[phase] * 1e9) if phase in spent_s else None,
            "operations": sum(work.operations.get(phase, 0) for work in works),
            "bytes": sum(work.bytes.get(phase, 0) for work in works),
        }
        for phase in PHASES
    ]


def intervals_of(
    steps: Sequence[Mapping[str, Any]], works: Sequence[Work], facts: "Facts"
) -> list[list[Any]]:
    """Phase, start, length and step index of each stretch.

    Between a step's last operation and its delta lies delivery.
    """
    found: list[list[Any]] = []
    deltas = {(row["stage"], row["step"]): int(row["start_ns"]) for row, _ in facts.placed("delta")}
    for index, (step, work) in enumerate(zip(steps, works, strict=True)):
        found += [[phase, start, took, index] for phase, start, took in work.stretches]
        handed = deltas.get((step["stage"], step["step"]))
        if handed is not None:
            found.append(["deliver", work.end_ns, max(handed - work.end_ns, 0), index])
    return found
