"""What the page can be given for one request: its story, a step, a value. The server and the export ask the same."""

import base64
import json
import math
from functools import cached_property
from typing import Any

import numpy as np

from haaw.view.source import TraceSource
from haaw.view.story import Facts, Story, build_story
from haaw.view.story_cache import seen_in_rings
from haaw.view.story_choices import Chooser
from haaw.view.story_text import token_texts

SAID = {
    "identical": "Their hash is the one that was taken when they were made.",
    "differs": "Their hash is NOT the recorded one: the last bits differ from what ran.",
    "not hashed": "No hash was recorded to compare them with.",
}


class Content:
    """Answers for one request of a trace, as values for JSON.

    Where the model is not at hand, only tokens that occur in the request have a text.
    """

    def __init__(self, source: TraceSource) -> None:
        self.source = source
        self._held: list[list[list[int] | None]] | None = None

    @cached_property
    def story(self) -> Story:
        """The story, made once."""
        return build_story(self.source)

    @cached_property
    def _chooser(self) -> Chooser:
        facts = Facts(self.source.facts())
        return Chooser(self.source, facts, token_texts(facts, self.source.token_bytes))

    def held(self, number: int) -> list[list[int] | None]:
        """For the step with this index: the position of each row that a layer's attention saw; None: all, in order."""
        if self._held is None:
            self._held = seen_in_rings(self.source, self.story)
        return self._held[number] if self._held else []

    def step(self, stage: str, step: int) -> dict[str, Any]:
        """Operations and choice of one step. Errors: `LookupError` for one that is not there."""
        known = [each for each in self.story["steps"] if (each["stage"], each["step"]) == (stage, step)]
        if not known:
            raise LookupError(f"{stage} {step}")
        operations = self.source.operations(stage, step)
        choice, why = None, None
        if known[0]["token"] is not None:
            choice, why = self._chooser.choice(known[0], operations)
        held = self.held(self.story["steps"].index(known[0]))
        return {"operations": operations, "choice": choice, "why_no_choice": why} | (
            {"held": held} if held else {}
        )

    def value(self, path: str, head: int | None = None) -> dict[str, Any]:
        """A value: float32 in base64, with shape, axes, type and where the numbers come from.

        Errors: `LookupError` for a path that is not there, and `HaawError` for a value that cannot be had.
        """
        return value_json(self.source.value(path, head))


def value_json(value: Any) -> dict[str, Any]:
    """A `haaw.tracing.values.Value` for the page."""
    array = np.asarray(value.array)
    data = np.ascontiguousarray(array, dtype="<f4")
    return {
        "shape": list(array.shape),
        "axes": value.axes,
        "dtype": str(array.dtype),
        "data": base64.b64encode(data.tobytes()).decode("ascii"),
        "badge": value.source,
        "provenance": SAID[value.hash_verdict],
    }


def to_json(value: Any) -> str:
    """JSON in ASCII. Numbers that JSON does not have become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
