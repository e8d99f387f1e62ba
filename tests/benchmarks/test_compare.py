"""What becomes a row and a verdict of the comparison."""

from dataclasses import replace

import pytest

from benchmarks.compare import columns, limits, measured
from benchmarks.plan import Plan, shortened
from benchmarks.processes import Turn

HAAW = Turn(
    first_word_s=2.0,
    load_anonymous_bytes=700_000_000,
    figures_ms={
        "prefill of 512": {"chunk 512": 500.0, "chunk 256": 520.0},
        "decode behind 16": {"chunk 512": 30.0},
    },
    facts={"greedy_ids": [1, 2], "weights_bytes": 538_000_000},
)
OTHER = Turn(
    first_word_s=7.0,
    figures_ms={
        "prefill of 512": {"sdpa": 450.0, "eager": 600.0},
        "decode behind 16": {"sdpa": 40.0, "eager": 36.0},
    },
    facts={"greedy_ids": [1, 2]},
)


def verdicts(haaw: Turn, other: Turn) -> dict[str, bool]:
    return {promise: held for promise, _, held in limits({"haaw": [haaw], "transformers": [other]})}


def test_the_faster_variant_of_the_other_engine_counts_and_the_default_of_haaw():
    assert measured(OTHER)["prefill of 512, ms"] == 450
    assert measured(OTHER)["decode behind 16, ms"] == 36
    assert measured(HAAW)["prefill of 512, ms"] == 500


def test_the_other_chunk_size_is_held_against_the_same_figure_of_the_others():
    row = columns({"haaw": [HAAW], "transformers": [OTHER]})["prefill of 512, ms, HAAW with chunk 256"]
    assert row == {"haaw": [520.0], "transformers": [450.0]}


def test_every_promise_is_judged_at_its_limit():
    """36/30 = 1.2 and 450/500 = 0.9 are just enough; 1.3 · 538 MB + 64 MB = 763.4 MB."""
    assert all(verdicts(HAAW, OTHER).values())
    assert len(verdicts(HAAW, OTHER)) == 5
    slower = replace(HAAW, figures_ms={**HAAW.figures_ms, "decode behind 16": {"chunk 512": 30.1}})
    assert not verdicts(slower, OTHER)["decode behind 16: at least 1.2 times as fast as transformers"]
    fatter = replace(HAAW, load_anonymous_bytes=764_000_000)
    assert not verdicts(fatter, OTHER)["anonymous memory while loading at most 763 MB"]
    assert not verdicts(replace(HAAW, first_word_s=5.1), OTHER)["first word within 5 s"]


def test_engines_that_answer_differently_fail():
    other = replace(OTHER, facts={"greedy_ids": [1, 3]})
    assert not verdicts(HAAW, other)["the same greedy ids as transformers"]


def test_a_plan_survives_the_way_to_another_process():
    plan = Plan("a file", threads=3, clock="cpu", decode_behind_tokens=(1, 2))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_a_short_plan_keeps_the_model_the_threads_and_the_clock(clock: str):
    short = shortened(Plan("a file", threads=3, clock=clock))
    assert (short.model, short.threads, short.clock) == ("a file", 3, clock)
    assert short.longest_tokens < Plan("a file", 3).longest_tokens
