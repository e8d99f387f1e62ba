"""How large a trace will be, from counts: arithmetic alone, before anything runs.

What the counts are for a model and a request is found elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from haaw.tracing.policy import Keep
from haaw.tracing.schema import EVENT, KEPT, LINK, OUTPUT

LINKS_PER_EVENT = 2.2
OUTPUTS_PER_EVENT = 1.1
SEGMENT_BYTES = 6_000
"""The string tables of a step's segment, and the headers of its members."""

FACT_BYTES = 400
FACTS_PER_STEP = 3


@dataclass(frozen=True)
class OutputBytes:
    """What one operation of a step makes: bytes for each token, and for each token and position it looks back on.

    `once` is for what does not depend on the number of tokens, such as the scores of the last one.
    """

    op: str
    per_token: float = 0.0
    per_token_and_position: float = 0.0
    once: float = 0.0
    layer: int | None = None
    head: int | None = None
    part: str | None = None


@dataclass(frozen=True)
class RunCounts:
    """A run to be: lengths in tokens, events a step, and what its operations make.

    `max_tokens` new tokens take `max_tokens` - 1 decode steps, since the prefill chooses the first.
    """

    prompt_tokens: int
    chunk_tokens: int
    max_tokens: int
    events_per_prefill_step: float
    events_per_decode_step: float
    kv_bytes_per_position: float
    outputs: Sequence[OutputBytes] = ()


@dataclass(frozen=True)
class Estimate:
    """Bytes of a trace: events with their links and hashes, what cannot be derived, results, facts.

    `whole_bytes` is the sum, `total_bytes` what a budget leaves of it.
    """

    event_bytes: int
    root_bytes: int
    result_bytes: int
    fact_bytes: int
    budget_bytes: int | None = None

    @property
    def whole_bytes(self) -> int:
        """Without a budget."""
        return self.event_bytes + self.root_bytes + self.result_bytes + self.fact_bytes

    @property
    def total_bytes(self) -> int:
        """With the budget, if there is one."""
        return self.whole_bytes if self.budget_bytes is None else min(self.whole_bytes, self.budget_bytes)

    def __str__(self) -> str:
        parts = {
            "events": self.event_bytes,
            "what cannot be derived": self.root_bytes,
            "results": self.result_bytes,
            "facts": self.fact_bytes,
        }
        said = ", ".join(f"{name} {in_words(count)}" for name, count in parts.items() if count)
        cut = ""
        least_bytes = self.event_bytes + self.fact_bytes
        if self.budget_bytes is not None and self.whole_bytes > self.budget_bytes:
            cut = f"; the budget of {in_words(self.budget_bytes)} will be reached, and less kept from then on"
            if least_bytes > self.budget_bytes:
                cut += f"; it is less than the events alone take ({in_words(least_bytes)}), so the trace will end early"
        return f"about {in_words(self.whole_bytes)} ({said}){cut}"


class Steps(NamedTuple):
    """Steps of one stage for which the same rules hold: how many, their tokens, and positions looked back on in all."""

    stage: str
    example: int
    steps: int
    tokens: int
    token_positions: int


def estimate(counts: RunCounts, keep: Keep) -> Estimate:
    """The size of a trace of such a run under a policy, if it runs to `max_tokens`."""
    prefill_steps = -(-counts.prompt_tokens // counts.chunk_tokens)
    decode_steps = max(counts.max_tokens - 1, 0)
    events = prefill_steps * counts.events_per_prefill_step + decode_steps * counts.events_per_decode_step
    row_bytes = EVENT.itemsize + LINKS_PER_EVENT * LINK.itemsize + OUTPUTS_PER_EVENT * OUTPUT.itemsize
    steps = prefill_steps + decode_steps
    positions = counts.prompt_tokens + decode_steps
    kept_rows = (2 * events if keep.level == "full" else 0.1 * events) * KEPT.itemsize
    result_bytes = sum(
        _kept_bytes(output, group, keep) for group in step_groups(counts, keep) for output in counts.outputs
    )
    return Estimate(
        event_bytes=round(events * row_bytes + steps * SEGMENT_BYTES),
        root_bytes=round(positions * counts.kv_bytes_per_position + kept_rows) if keep.keeps_roots else 0,
        result_bytes=round(result_bytes),
        fact_bytes=round((steps + 5) * FACTS_PER_STEP * FACT_BYTES / 3 + counts.prompt_tokens * 24),
        budget_bytes=keep.budget_bytes,
    )


def step_groups(counts: RunCounts, keep: Keep) -> Iterator[Steps]:
    """The steps of a run, in groups within which no rule begins or ends."""
    prompt, chunk = counts.prompt_tokens, counts.chunk_tokens
    for first, end in _cut(range(-(-prompt // chunk)), keep):
        low, high = first * chunk, min(end * chunk, prompt)
        looked_back = sum(
            (min(start + chunk, prompt) - start) * min(start + chunk, prompt)
            for start in range(low, high, chunk)
        )
        yield Steps("prefill", first, end - first, high - low, looked_back)
    for first, end in _cut(range(1, max(counts.max_tokens, 1)), keep):
        # Decode step n holds prompt + n positions.
        looked_back = (end - first) * prompt + (first + end - 1) * (end - first) // 2
        yield Steps("decode", first, end - first, end - first, looked_back)


def _cut(steps: range, keep: Keep) -> Iterable[tuple[int, int]]:
    """Runs of steps (first, end) between the borders that rules draw."""
    borders = {steps.start, steps.stop}
    for rule in keep.rules:
        for first, last in rule.step or ():
            borders |= {first, steps.stop if last is None else last + 1}
    inside = sorted(border for border in borders if steps.start <= border <= steps.stop)
    return pairwise(inside)


def _kept_bytes(output: OutputBytes, steps: Steps, keep: Keep) -> float:
    if not keep.decide(output.op, steps.stage, steps.example, output.layer, output.head, output.part):
        return 0.0
    return (
        output.once * steps.steps
        + output.per_token * steps.tokens
        + output.per_token_and_position * steps.token_positions
    )


def in_words(nbytes: float) -> str:
    """A size for a person: "31 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.0f} TB"
