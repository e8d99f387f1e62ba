"""Pictures of a trace with Matplotlib (extra `notebooks`): each function takes a trace and returns the figure.

Nothing global is touched: no pyplot, no style. A picture shows itself in a notebook, carries a sentence made from
its numbers (`.description`), and is saved with `.savefig`.
"""

from haaw.view.plots.attention import plot_attention, plot_attention_heads
from haaw.view.plots.cache import plot_cache
from haaw.view.plots.choice import plot_candidates
from haaw.view.plots.lens import plot_logit_lens
from haaw.view.plots.memory import plot_memory_plan
from haaw.view.plots.norms import plot_residual_norms
from haaw.view.plots.phases import plot_phases
from haaw.view.plots.value import plot_value

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
]
