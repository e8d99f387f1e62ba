"""The story of one request: all that the page needs from a trace, but for the large arrays.

One JSON document. The page asks for a step (its operations and its choice) and for a value (the numbers of an
array) when they are looked at. A part that the trace does not hold is left out, and `missing` says why; `budget` says
what a byte budget cost. Times are nanoseconds on the trace's clock, sizes are bytes, `step` in a link is the number of
a decode step (0: the prefill that chose the first token).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from haaw.caches.kinds import NO_CACHE
from haaw.tracing.estimate import in_words
from haaw.view.recorded_cache import calculator_of
from haaw.view.story_cache import CacheSize, cache_facts, cache_sizes
from haaw.view.story_costs import Work, intervals_of, phases_of, recorder_ns, work_of
from haaw.view.story_text import (
    Delivery,
    Prompt,
    Token,
    answer_tokens,
    deliveries,
    prompt_of,
    token_list,
)
from haaw.view.story_world import machine_of, model_of, startup_of, used_ops

STORY_VERSION = 1


class Step(TypedDict):
    """One engine step: `count` tokens from position `first` on; `token` is the index of the one it chose."""

    stage: str
    step: int
    start_ns: int
    took_ns: int
    choose_ns: int | None
    first: int
    count: int
    token: int | None


class Story(TypedDict, total=False):
    """Everything about one request; lists are in the order in which things happened."""

    version: int
    made: dict[str, str]
    model: dict[str, Any]
    machine: list[list[str]]
    startup: list[dict[str, Any]]
    prompt: Prompt
    prompt_tokens: int
    tokens: list[Token]
    steps: list[Step]
    phases: list[dict[str, Any]]
    recorder_ns: int | None
    intervals: list[list[Any]]
    cache: dict[str, Any]
    cache_sizes: list[CacheSize]
    deliveries: list[Delivery]
    text: str
    finish: dict[str, Any] | None
    release: dict[str, Any] | None
    calculator: dict[str, Any] | None
    ops: dict[str, dict[str, Any]]
    missing: dict[str, str]
    budget: list[str]


def build_story(trace: Any) -> Story:
    """The story of the request in `trace`, a `haaw.view.source.TraceSource`."""
    manifest, facts = trace.manifest, Facts(trace.facts())
    prompt = token_list(facts)
    settings = facts.first("settings") or {}
    walked = _walk(trace, len(prompt), anew=(settings.get("asked") or {}).get("cache") == NO_CACHE)
    model = model_of(manifest, walked.query_heads)
    cache = cache_facts(settings, model)
    story: Story = {
        "version": STORY_VERSION,
        "made": {"haaw": str(manifest.get("haaw", ""))},
        "model": model,
        "machine": machine_of(manifest),
        "startup": startup_of(facts),
        "prompt": prompt_of(facts),
        "prompt_tokens": len(prompt),
        "tokens": [*prompt, *answer_tokens(facts)],
        "steps": walked.steps,
        "phases": phases_of(facts, walked.works),
        "recorder_ns": recorder_ns(facts),
        "intervals": intervals_of(walked.steps, walked.works, facts),
        "cache": cache,
        "cache_sizes": cache_sizes(trace, walked.steps, facts, cache),
        "deliveries": deliveries(facts),
        "text": "".join(each["text"] for each in facts.all("delta")),
        "finish": facts.first("finish"),
        "release": facts.first("released"),
        "calculator": calculator_of(trace.trace, trace.request),
        "ops": used_ops(walked.ops, manifest.get("sources") or {}),
    }
    story["missing"] = _missing(story)
    story["budget"] = _budget(facts)
    return story


@dataclass
class _Walked:
    """What going once through all steps has found."""

    steps: list[Step] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    ops: set[str] = field(default_factory=set)
    query_heads: int = 1


def _walk(trace: Any, prompt_tokens: int, *, anew: bool) -> _Walked:
    """Goes through the steps and their operations, one step at a time, since a long trace has very many.

    `anew`: there is no cache, so that every step begins at the first position.
    """
    walked = _Walked()
    first, chosen = 0, 0
    for each in trace.steps():
        lines = trace.outline(each["stage"], each["step"])
        work = work_of(each["stage"], lines)
        step: Step = {
            "stage": each["stage"],
            "step": each["step"],
            "start_ns": each["start_ns"],
            "took_ns": each["took_ns"],
            "choose_ns": work.choose_ns,
            "first": first,
            "count": work.count,
            "token": prompt_tokens + chosen if work.chooses else None,
        }
        first += 0 if anew else work.count
        chosen += work.chooses
        walked.steps.append(step)
        walked.works.append(work)
        walked.ops |= {line.op for line in lines}
        for line in lines:
            if line.op == "softmax":
                walked.query_heads = max(walked.query_heads, (line.head or 0) + line.shape[0])
    return walked


class Facts:
    """The facts of a trace by kind, in order."""

    def __init__(self, facts: Iterable[Mapping[str, Any]]) -> None:
        self.rows = list(facts)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """What each fact of a kind says, without where it stands."""
        return [dict(row["facts"]) for row in self.rows if row["kind"] == kind]

    def first(self, kind: str) -> dict[str, Any] | None:
        """The first fact of a kind, or None."""
        return next(iter(self.all(kind)), None)

    def placed(self, kind: str) -> list[tuple[Mapping[str, Any], dict[str, Any]]]:
        """The facts of a kind with the rows that they stand in."""
        return [(row, dict(row["facts"])) for row in self.rows if row["kind"] == kind]


def _missing(story: Story) -> dict[str, str]:
    """For each stage that cannot be shown, why."""
    said = {
        "start": (story["startup"], "This trace does not say how the process started."),
        "weights": (story["model"].get("weights"), "This trace does not list the model's weights."),
        "prompt": (story["prompt"]["text"], "This trace does not hold the text of the prompt."),
        "tokens": (story["tokens"], "This trace does not say how the prompt was cut into tokens."),
        "prefill": ([s for s in story["steps"] if s["stage"] == "prefill"], "No prefill step was recorded."),
        "cache": (story["cache_sizes"], _no_cache(story["cache"].get("kind", ""))),
        "decode": (
            [s for s in story["steps"] if s["stage"] == "decode"],
            "No decode step was recorded: the request ended with the prefill, or the trace is cut off before it.",
        ),
        "choose": (
            [s for s in story["steps"] if s["token"] is not None],
            "No choice of a token was recorded.",
        ),
        "deliver": (story["deliveries"], "No text was handed over."),
        "end": (story["finish"], "The trace is cut off before the request ended."),
    }
    return {stage: sentence for stage, (there, sentence) in said.items() if not there}


_STILL_KEPT = {
    "events": "only hashes were kept and no values",
    "replayable": "only those values were kept that cannot be computed again",
}


def _budget(facts: Facts) -> list[str]:
    """What the byte budget of the recording cost, a sentence for each change."""
    said = []
    for row, fall in facts.placed("degraded"):
        budget = in_words(fall["budget_bytes"])
        if fall["now"] in _STILL_KEPT:
            place = row["stage"] if row["step"] is None else f"{row['stage']} {row['step']}"
            said.append(f"From {place} on {_STILL_KEPT[fall['now']]}, for the budget of {budget}.")
        else:
            said.append(f"The trace ends early, since its budget of {budget} was spent.")
    return said


def _no_cache(kind: str) -> str:
    if kind:
        return f'The cache was of the kind "{kind}", which this page does not draw.'
    return "This trace does not say how the cache grew."
