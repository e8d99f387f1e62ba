"""Traced runs for tests: models, requests of every kind, and what is compared between them."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_models import NumberText, tiny_gpt2, tiny_language_model, tiny_llama

import haaw
import haaw.generation.request as requests
from haaw.arrays import to_host
from haaw.errors import HaawError
from haaw.generation.answer import Answer
from haaw.generation.language_model import LanguageModel
from haaw.ops.recorder import LISTENING, chosen_recorder
from haaw.tracing import step_plan
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.recorder import TraceRecorder
from haaw.tracing.trace import Trace
from haaw.tracing.verdicts import ReplayReport

PROMPT = (5, 9, 2, 60, 33, 33, 1, 17, 42, 8, 0)
SAMPLING: dict[str, Any] = {
    "temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "frequency_penalty": 0.2,
    "presence_penalty": 0.1, "logit_bias": {3: 1.5, 4: -2.0}, "seed": 7, "logprobs": 3,
}  # fmt: skip
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {"cache": "dynamic", "cache_options": {"first_capacity": 3}},
    "static": {"cache": "static"},
    "sliding": {"cache": "sliding", "cache_options": {"window": 5, "sinks": 2}},
    "paged": {"cache": "paged", "cache_options": {"block_size": 4}},
    "quantised": {"cache": "quantised", "cache_options": {"group": 4, "residual": 4}},
    "quantised to 4 bits": {"cache": "quantised", "cache_options": {"bits": 4, "group": 4, "residual": 8}},
    "offloaded": {"cache": "offloaded", "cache_options": {"first_capacity": 3}},
    "concatenated": {"cache": "concatenated"},
    "none": {"cache": "none"},
}


def model_of(family: str, *, xp: Any = np) -> LanguageModel:
    """A small random model of a family, or the embedded one (`tiny`)."""
    if family == "tiny":
        return haaw.load()
    if family == "gpt2":
        return LanguageModel("random", tiny_gpt2(1, xp=xp), NumberText())
    return (
        LanguageModel("random", tiny_llama(1, xp=xp), NumberText())
        if xp is not np
        else tiny_language_model(1)
    )


@contextmanager
def seen_logits() -> Iterator[list[np.ndarray]]:
    """Collects a copy of the logits of every step that requests make in the block."""
    seen: list[np.ndarray] = []
    before = requests.advance, requests.advance_without_cache

    def listened(advance: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            logits_BV = advance(*args, **kwargs)
            seen.append(to_host(logits_BV).copy())
            return logits_BV

        return run

    requests.advance, requests.advance_without_cache = map(listened, before)  # type: ignore[assignment]
    try:
        yield seen
    finally:
        requests.advance, requests.advance_without_cache = before


def same_answer(one: Answer, other: Answer) -> bool:
    """Whether all but the times is the same."""
    without = {"timing_s": {}, "first_token_s": None}
    return dataclasses.replace(one, **without) == dataclasses.replace(other, **without)


def opened(path: Path, model: LanguageModel) -> Trace:
    """The trace with the weights of the model that made it."""
    return Trace(path, weights=model.transformer.named_weights)


def replayed(path: Path, model: LanguageModel, **selected: Any) -> ReplayReport:
    """The whole trace, or a selection, replayed with its model."""
    with opened(path, model) as trace:
        report = trace.replay(**selected)
        assert isinstance(report, ReplayReport)
        return report


def assert_identical(report: ReplayReport) -> None:
    """Everything that could be judged is identical, and everything could."""
    assert report.ok, report
    assert report.identical_share == 1.0, report
    assert set(report.counts) <= {
        "identical",
        "identical hash, value not kept",
        "nothing of its own to compare",
    }, report


def nothing_stays(recorder: TraceRecorder | None = None) -> None:
    """Nobody listens, nobody is chosen, and the recorder would let any thread in."""
    assert LISTENING.get() is None
    assert chosen_recorder() is None
    assert recorder is None or not recorder._inside


def sound_after_interrupt(path: Path, model: LanguageModel, recorder: TraceRecorder, after: Answer) -> None:
    """What must hold behind a request that was interrupted and a whole one in the same trace."""
    nothing_stays(recorder)
    assert after.finish.reason == "length"
    with opened(path, model) as trace:
        assert trace.complete
        assert_identical(trace.replay(request=2))
        report = trace.replay()
        assert report.ok, report


def use_everything(path: Path, model) -> None:
    """Reads every event, name, fact, value and table, and replays all, also where a table is refused."""
    with opened(path, model) as trace:
        refused: HaawError | None = None
        try:
            repr(trace.events)
            trace.tree().to_dict()
            trace.phases()
        except HaawError as error:
            refused = error
        for event in trace:
            repr(event)
        trace.facts()
        repr(trace.summary)
        for segment in trace.segments:
            for event, slot, item in segment.kept:
                segment.kept_value(event, slot, item)
        report = trace.replay()
        if not report.ok or report.identical_share < 1:
            raise TraceDamagedError(
                f"the replay found a fault in this trace: {report!s:.300}".replace("\n", " ")
            )
        if refused is not None:
            raise refused


def full_trace(path: Path, model: LanguageModel) -> Path:
    """A small full trace with every kind of member: chunks, a drawn answer, facts, and large values."""
    with haaw.record(path, keep="full"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("haaw.tracing.keeping.SMALL_BYTES", 900)
        model.generate(PROMPT, max_tokens=4, prefill_chunk_tokens=6, **SAMPLING)
    return path


def one_sentence(error: HaawError) -> str:
    """Its text, which must be one line."""
    text = str(error)
    assert text
    assert "\n" not in text
    return text


def told(trace: Trace) -> list[Any]:
    """Everything that a trace says of its segments but the times, numbers of tables looked up."""
    found: list[Any] = []
    for segment in trace.segments:
        layouts = [segment.info["layouts"][row] for row in range(len(segment.info["layouts"]))]
        events = segment.events[[name for name in segment.events.dtype.names if not name.endswith("_ns")]]
        operations = segment.events["kind"] == 0
        found.append(segment.first_event)
        for name in ("stages", "parts", "names", "sites", "args", "facts"):
            found.append(segment.info[name] if name != "facts" else len(segment.info[name]))
        found += [events.tolist(), segment.links[["slot", "item", "buffer", "version", "offset"]].tolist()]
        found += [
            [layouts[at] for at in segment.links["layout"]],
            [layouts[at] for at in segment.outputs["layout"]],
        ]
        found += [segment.outputs[["buffer", "version", "offset"]].tolist(), segment.outputs["hash"].tolist()]
        kept = [
            (place, layouts[layout], rest)
            for place, (layout, *rest) in sorted((key, tuple(row)) for key, row in segment.kept.items())
        ]
        found += [kept, [segment.kept_value(*place).tobytes() for place, *_ in kept], int(operations.sum())]
    return found


def watched_matches(patch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows: whether each batch that a plan was there for fitted it."""
    seen: list[bool] = []
    match = step_plan.StepPlan.match

    def watched(*args: Any) -> Any:
        rows = match(*args)
        seen.append(rows is not None)
        return rows

    patch.setattr(step_plan.StepPlan, "match", watched)
    return seen
