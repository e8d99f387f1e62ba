"""A real request, recorded with every value, as the page sees it: what the tests of the view start from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import haaw
from haaw.tracing.record import record
from haaw.view.source import TraceSource

PROMPT = "Ella had a red ball. She gave the ball to"

SETTINGS: Mapping[str, Any] = {
    "max_tokens": 10,
    "temperature": 0.9,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.02,
    "repetition_penalty": 1.05,
    "seed": 3,
    "stop": ["garden"],
}
"""Every filter of the plan, and a stop string."""


def recorded(
    folder: Path,
    prompt: Any = PROMPT,
    *,
    keep: str = "full",
    form: str = "auto",
    model: Any = None,
    budget: str | None = None,
    **settings: Any,
) -> TraceSource:
    """Runs a request of the embedded model and opens its trace."""
    language_model = model or haaw.load()
    path = folder / "run.haaw"
    with record(path, keep, budget=budget):
        language_model.generate(prompt, form=form, **(settings or SETTINGS))
    return TraceSource(haaw.open_trace(path, language_model))
