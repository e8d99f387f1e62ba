"""A plan held against a run: what the process really took, in anonymous memory, beside what was planned.

Anonymous memory is what the process wrote itself, without mapped files (Linux, /proc). A figure is *counted* from
the arrays, *estimated* from lengths, or *measured* from outside the program; the last two are never exact.
"""

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from haaw.arrays import to_host
from haaw.caches.kinds import make_cache
from haaw.errors import BadInputError
from haaw.memory.sizes import size_text
from haaw.models.pack import pack_tokens
from haaw.models.protocol import Transformer

QUERY_BLOCK = 128
PREFILL_CHUNK = 512
SAMPLE_EVERY_S = 0.002


@dataclass(frozen=True)
class Line:
    """One line of the comparison; a side that cannot be told apart is None. `how` says how each figure was got."""

    name: str
    planned_bytes: int | None
    measured_bytes: int | None
    how: str


@dataclass(frozen=True)
class Measurement:
    """A run beside its plan. `explanation` says what the difference is made of, as far as that is known."""

    lines: tuple[Line, ...]
    positions: int
    cache_planned_bytes: int
    cache_counted_bytes: int
    explanation: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "lines": [vars(line) for line in self.lines]}


def anonymous_bytes() -> int:
    """What this process holds in anonymous memory now, large pages included. Errors: `BadInputError` without /proc."""
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))
    except (OSError, StopIteration) as error:
        raise BadInputError("the memory of a process can be measured on Linux alone (/proc/self)") from error


class Peak:
    """The most anonymous memory between entering and leaving, looked at every 2 ms by a thread."""

    def __enter__(self) -> "Peak":
        self.most_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            with open("/proc/self/status", encoding="ascii", errors="replace") as file:
                now = next((int(line.split()[1]) for line in file if line.startswith("RssAnon:")), 0)
            self.most_bytes = max(self.most_bytes, now * 1024)


def measure(
    load: Callable[[], Transformer],
    *,
    planned_cache_bytes: Callable[[Any, int], int],
    positions: int,
    new_tokens: int = 8,
    kind: str = "dynamic",
    chunk: int = PREFILL_CHUNK,
    **options: Any,
) -> Measurement:
    """Loads a model, fills a cache of `kind` with `positions` and compares.

    The first positions come in by chunks, the last `new_tokens` one by one; the ids say nothing, since only lengths
    matter here. `options` are those of the kind; `planned_cache_bytes(layout, positions)` is the plan for the cache.
    Errors: `BadInputError` where the model has fewer positions.
    """
    gc.collect()
    before = anonymous_bytes()
    transformer = load()
    gc.collect()
    loaded = anonymous_bytes()
    if not 1 <= new_tokens < positions <= transformer.context_length_tokens:
        raise BadInputError(
            f"{positions:,} positions with {new_tokens} new tokens cannot be run; the model has "
            f"{transformer.context_length_tokens:,}"
        )
    cache = make_cache(
        kind, transformer.cache_layout, transformer.prototype_Z, context_length_tokens=positions, **options
    )
    with Peak() as peak:
        _fill(transformer, cache, positions, new_tokens, chunk)
    peak_bytes = max(peak.most_bytes, anonymous_bytes())
    counted = cache.memory()
    planned = planned_cache_bytes(transformer.cache_layout, positions)
    counted_bytes = counted.allocated_bytes
    weights = sum(int(array.nbytes) for array in transformer.named_weights().values())
    activations, working = estimated_step_bytes(transformer, min(chunk, positions - new_tokens), positions)
    cache.release()
    steps = peak_bytes - loaded - counted_bytes
    total = weights + planned + activations + working
    lines = (
        Line("weights", weights, loaded - before, "counted from the arrays; measured around loading"),
        Line(f"cache ({kind})", planned, counted_bytes, "by the arithmetic; counted from the cache's arrays"),
        Line("activations of a step", activations, None, "estimated"),
        Line("working buffers", working, None, "estimated: scores of a block of queries, and logits"),
        Line(
            "activations and buffers",
            activations + working,
            steps,
            "estimated; measured: peak - loaded - cache",
        ),
        Line("the whole run", total, peak_bytes - before, "sum of the plan; measured: peak - before loading"),
        Line("difference", None, peak_bytes - before - total, "measured - planned"),
    )
    return Measurement(lines, positions, planned, counted_bytes, _explained(before, kind))


def _fill(transformer: Transformer, cache: Any, positions: int, new_tokens: int, chunk: int) -> None:
    ids = [number % transformer.vocabulary_size for number in range(positions)]
    prompt = positions - new_tokens
    steps = [*range(0, prompt, chunk), *range(prompt, positions)]
    for start, stop in zip(steps, [*steps[1:], positions], strict=True):
        pack = pack_tokens([(ids[start:stop], cache)], transformer.prototype_Z)
        logits_BV = transformer.forward(pack)
        pack.commit()
        int(np.argmax(to_host(logits_BV)[-1]))


def estimated_step_bytes(transformer: Transformer, tokens: int, positions: int) -> tuple[int, int]:
    """What a step of `tokens` needs beside weights and cache: (activations, working buffers), from lengths alone.

    Activations: the residual stream with its update, and gate, up and their product (or queries, keys and values
    where those are more). Buffers: scores and weights of 128 queries against all positions, and the logits.
    """
    config: Any = getattr(transformer, "config", None)
    layout = transformer.cache_layout
    item = np.dtype(layout.dtype).itemsize
    width, mlp = getattr(config, "width", 0), getattr(config, "mlp_width", 0)
    heads = getattr(config, "query_heads", getattr(config, "heads", layout.kv_heads))
    joined = (heads + 2 * layout.kv_heads) * layout.head_dim
    activations = tokens * (3 * width + max(3 * mlp, 2 * joined)) * item
    scores = 2 * heads * min(QUERY_BLOCK, tokens) * positions * item
    return activations, scores + transformer.vocabulary_size * item


def _explained(before: int, kind: str) -> str:
    grown = (
        " The cache's plan is for growth token by token; a prompt in chunks takes memory for its rows at once."
        if kind in ("quantised", "offloaded")
        else ""
    )
    return (
        "The difference holds what has no line: tokenizer and Python objects, libraries imported while loading, "
        "stacks of threads, and freed blocks that the C library keeps for the next arrays. "
        f"{size_text(before)} of the process were there before and are not counted.{grown}"
    )
