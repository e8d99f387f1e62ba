"""The bytes that a recorded cache had when it was released, beside the arithmetic: for `haaw memory` and the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from haaw.errors import BadInputError
from haaw.memory.arithmetic import FIRST_CAPACITY, GROUP_POSITIONS
from haaw.memory.plan import Plan
from haaw.memory.shape import CacheShape
from haaw.view.calculator import setting_of

TOKEN_BY_TOKEN = (
    "The arithmetic is for growth token by token; a prompt in chunks takes memory for its rows at once."
)
AS_CALCULATED: dict[str, dict[str, Any]] = {
    "dynamic": {"first_capacity": FIRST_CAPACITY},
    "static": {},
    "sliding": {},
    "quantised": {"group": GROUP_POSITIONS, "residual": (None, GROUP_POSITIONS)},
    "offloaded": {"first_capacity": FIRST_CAPACITY},
    "paged": {"pool": None},
}
"""The kinds that are calculated, and the options that must be as the arithmetic takes them."""


@dataclass(frozen=True)
class Recorded:
    """What a trace says of the cache of one request: the plan that it should be, and the bytes that it was."""

    plan: Plan
    allocated_bytes: int

    @property
    def planned_bytes(self) -> int:
        """What the arithmetic gives."""
        return self.plan.in_kind(self.plan.kind, self.plan.context).allocated_bytes

    @property
    def equal(self) -> bool:
        """Whether that is what was allocated."""
        return self.planned_bytes == self.allocated_bytes

    @property
    def note(self) -> str:
        """Why the two may differ, or nothing where they may not."""
        return TOKEN_BY_TOKEN if self.plan.kind in ("int8", "int4", "offloaded") and not self.equal else ""

    @property
    def sentence(self) -> str:
        """Both figures."""
        verdict = "equal" if self.equal else "NOT equal"
        found = (
            f"The trace allocated {self.allocated_bytes:,} bytes for {self.plan.context:,} positions "
            f"({self.plan.kind}); the arithmetic gives {self.planned_bytes:,}: {verdict}."
        )
        return f"{found} {self.note}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """For JSON, and for the page of the calculator."""
        return {
            "setting": setting_of(self.plan),
            "kind": self.plan.kind,
            "context": self.plan.context,
            "allocated_bytes": self.allocated_bytes,
            "note": self.note,
        }


def recorded_of(
    trace: Any, *, request: int | None = None, sequences: int = 1, memory_bytes: int | None = None
) -> Recorded:
    """The longest cache of a request, or of the whole trace.

    Errors: `BadInputError` where none was released, or of a kind that is not calculated.
    """
    name = trace.path.name
    ends = [(event, event.facts) for event in trace.facts("released", request=request) if event.facts]
    if not ends:
        raise BadInputError(
            f"no request in {name} gave its cache back: it was cut off before, or none ran; record another one"
        )
    event, released = max(ends, key=lambda end: int(end[1]["positions"]))
    settings = trace.facts("settings", request=event.place.request)[0].facts or {}
    model, options = trace.manifest["model"], settings["asked"]["cache_options"]
    kind = str(released["cache"])
    _check_calculated(kind, options, name)
    plan = Plan(
        _shape(model, options),
        context=int(released["positions"]),
        sequences=sequences,
        kind=f"int{options.get('bits', 8)}" if kind == "quantised" else kind,
        capacity=_capacity(kind, model, options),
        weights_bytes=_weights_bytes(trace.manifest["weights"]),
        memory_bytes=memory_bytes,
        name=str(model["name"]),
        assumptions=(f"model, context and cache are those of the trace {name}",),
    )
    return Recorded(plan, int(released["bytes"]))


def calculator_of(trace: Any, request: int | None) -> dict[str, Any] | None:
    """For the calculator on the page: its setting, and the recorded line or `why` there is none.

    None for a model whose shape the trace does not give.
    """
    try:
        recorded = recorded_of(trace, request=request)
    except BadInputError as error:
        try:
            plan = Plan(
                _shape(trace.manifest["model"], {}), weights_bytes=_weights_bytes(trace.manifest["weights"])
            )
        except (KeyError, TypeError, ValueError, BadInputError):
            return None
        return {"setting": setting_of(plan), "recorded": None, "why": f"No figure of this run: {error}."}
    assumptions = list(recorded.plan.assumptions)
    return {"setting": setting_of(recorded.plan), "recorded": recorded.to_dict(), "assumptions": assumptions}


def _check_calculated(kind: str, options: Mapping[str, Any], name: str) -> None:
    if kind not in AS_CALCULATED:
        raise BadInputError(
            f"{name} ran with the cache {kind}, which is not calculated; the kinds are {', '.join(AS_CALCULATED)}"
        )
    for option, taken in AS_CALCULATED[kind].items():
        allowed = taken if isinstance(taken, tuple) else (taken,)
        if option in options and options[option] not in allowed:
            raise BadInputError(
                f"{name} ran with {option}={options[option]!s:.60}, and the arithmetic is for the default; "
                f"record a run without this option"
            )


def _shape(model: Mapping[str, Any], options: Mapping[str, Any]) -> CacheShape:
    return CacheShape(
        int(model["layers"]),
        int(model["kv_heads"]),
        int(model["head_dim"]),
        bytes_per_element=np.dtype(model["dtype"]).itemsize,
        window=options.get("window"),
        sinks=options.get("sinks") or 0,
        block_size=options.get("block_size") or CacheShape.block_size,
    )


def _capacity(kind: str, model: Mapping[str, Any], options: Mapping[str, Any]) -> int | None:
    """What is reserved, or what bounds a window: for both the model's context unless another number was given."""
    if kind not in ("static", "sliding"):
        return None
    return int(options.get("capacity") or model["context_length_tokens"])


def _weights_bytes(weights: Mapping[str, Any]) -> int:
    return sum(prod(each["shape"]) * np.dtype(each["dtype"]).itemsize for each in weights.values())
