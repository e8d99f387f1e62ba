"""Looking at a request: the page that follows it, its export to one HTML file, the server for large traces, and
pictures and a widget for notebooks. Libraries for these are imported when one is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haaw.view.notebook import widget
    from haaw.view.plots import (
        plot_attention,
        plot_attention_heads,
        plot_cache,
        plot_candidates,
        plot_logit_lens,
        plot_memory_plan,
        plot_phases,
        plot_residual_norms,
        plot_value,
    )

__all__ = [
    "plot_attention",
    "plot_attention_heads",
    "plot_cache",
    "plot_candidates",
    "plot_logit_lens",
    "plot_memory_plan",
    "plot_phases",
    "plot_residual_norms",
    "plot_value",
    "widget",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'haaw.view' has no attribute {name!r}")
    return getattr(import_module("haaw.view.notebook" if name == "widget" else "haaw.view.plots"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
