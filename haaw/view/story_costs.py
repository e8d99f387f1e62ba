"""Where time, work and memory went: phases with their operations and bytes, stretches of the clock, the cache."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from haaw.view.source import Line

if TYPE_CHECKING:
    from haaw.view.story import Facts

PHASES = ("prepare", "queue", "prefill", "decode", "deliver")
ROWS_IN_ORDER = ("dynamic", "static", "paged", "concatenated")
"""Kinds of cache that hold every position once, each in the dtype of the model."""


@dataclass
class Work:
    """What the operations of one step add up to; the operations themselves are let go again."""

    count: int
    chooses: bool
    choose_ns: int | None
    stretches: list[tuple[str, int, int]] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    capacity: int | None = None
    moved: int = 0
    end_ns: int = 0


def work_of(stage: str, lines: Sequence[Line]) -> Work:
    """Adds up one step."""
    chosen = [line for line in lines if line.part == "choose"]
    embedded = [line.shape[0] for line in lines if line.part == "embedding" and line.shape]
    work = Work(
        count=int(embedded[0]) if embedded else 1,
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
        if line.op.startswith("kv_append"):
            positions = math.prod(line.shape[1:-1])
            work.capacity = positions if work.capacity is None else min(work.capacity, positions)
        work.moved += line.op == "kv_move"
    return work


def _end(line: Line) -> int:
    return line.start_ns + line.took_ns


class CacheSize(TypedDict):
    """The cache when a step has ended: positions held, positions with memory, and their bytes."""

    step: int
    length: int
    capacity: int
    useful_bytes: int
    allocated_bytes: int
    moved: int


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


def cache_facts(settings: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and sizes of the cache, and the bytes of one position; empty where the model's are not known."""
    from haaw.caches.protocol import CacheLayout

    names = ("layers", "kv_heads", "head_dim", "dtype")
    if any(name not in model for name in names):
        return {}
    layout = CacheLayout(*(model[name] for name in names))
    kind = (settings.get("asked") or {}).get("cache", "")
    return {"kind": kind, "bytes_per_position": layout.bytes_per_position} | {n: model[n] for n in names}


def cache_sizes(
    steps: Sequence[Mapping[str, Any]], works: Sequence[Work], cache: Mapping[str, Any]
) -> list[CacheSize]:
    """The cache after each step, from the rows that were appended and the buffers that they went into."""
    if not cache or cache["kind"] not in ROWS_IN_ORDER:
        return []
    per_position = cache["bytes_per_position"]
    sizes: list[CacheSize] = []
    for step, work in zip(steps, works, strict=True):
        length = step["first"] + step["count"]
        capacity = length if work.capacity is None else work.capacity
        sizes.append(
            {
                "step": step["step"] if step["stage"] == "decode" else 0,
                "length": length,
                "capacity": capacity,
                "useful_bytes": length * per_position,
                "allocated_bytes": capacity * per_position,
                "moved": work.moved,
            }
        )
    return sizes
