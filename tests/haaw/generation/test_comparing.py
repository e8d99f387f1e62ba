"""Side by side: what is equal is said to be equal, and what differs is found where it begins."""

import math

import numpy as np
import pytest

import haaw
from haaw.errors import BadInputError
from haaw.generation.comparing import compare_caches

EXACT = ["none", "dynamic", "static", "paged", "offloaded", "concatenated"]


@pytest.fixture(scope="module")
def model():
    return haaw.load("tiny")


def test_exact_kinds_give_the_ids_of_no_cache_and_scores_within_rounding(model) -> None:
    compared = compare_caches(model, "Once upon a time", EXACT, max_tokens=20)
    plain = model.generate("Once upon a time", max_tokens=20)
    assert [row.cache for row in compared.rows] == EXACT
    for row in compared.rows:
        assert row.answer.token_ids == plain.token_ids
        assert row.same_ids
        assert row.parting is None
        assert row.largest_difference < 1e-3


def test_bytes_are_those_of_the_cache_at_the_end(model) -> None:
    compared = compare_caches(model, "Once upon a time", ["dynamic", "static"], max_tokens=9)
    layout = model.transformer.cache_layout
    positions = len(compared.rows[0].answer.prompt_ids) + 9 - 1  # the last token was never run
    dynamic, static = compared.rows
    assert dynamic.useful_bytes == static.useful_bytes == positions * layout.bytes_per_position
    assert dynamic.allocated_bytes == 64 * layout.bytes_per_position  # the first capacity holds them all
    assert static.allocated_bytes == model.transformer.context_length_tokens * layout.bytes_per_position
    assert dynamic.answer.cache_peak_bytes == dynamic.allocated_bytes  # it only grew
    assert dynamic.waste == pytest.approx(1 - positions / 64)


def test_a_kind_that_forgets_parts_where_its_first_other_token_stands_and_the_margin_is_the_references(
    model,
) -> None:
    options = {"sliding": {"window": 4}}
    compared = compare_caches(
        model, "Once upon a time", ["dynamic", "sliding"], cache_options=options, max_tokens=24
    )
    reference, sliding = compared.rows
    parting = sliding.parting
    assert not sliding.same_ids
    assert parting is not None
    step = parting.step
    assert reference.answer.token_ids[:step] == sliding.answer.token_ids[:step]
    assert parting.reference_id == reference.answer.token_ids[step] != sliding.answer.token_ids[step]
    # The margin from the log-probabilities of the reference, which differ from scores by a constant.
    told = model.generate("Once upon a time", max_tokens=24, logprobs=2).log_probabilities[step].top
    assert parting.margin == pytest.approx(told[0].log_probability - told[1].log_probability, abs=1e-4)
    assert any("approximation" in note for note in compared.remarks())


def test_the_table_has_a_line_for_each_kind_and_json_is_finite(model) -> None:
    compared = compare_caches(model, "hello", ["none", "quantised"], max_tokens=3)
    lines = str(compared).splitlines()
    assert lines[1].split()[:2] == ["none", "reference"]
    assert lines[2].split()[:2] == ["quantised", "same"]
    for row in compared.to_dict()["rows"]:
        assert all(math.isfinite(value) for value in row["timing_s"].values())
        assert np.isfinite(row["largest_difference"])


@pytest.mark.parametrize(
    ("caches", "settings", "message"),
    [
        (["dynamic"], {}, "two or more"),
        (["dynamic", "dynamic"], {}, "two or more"),
        (["dynamic", "magic"], {}, '"magic"'),
        (["dynamic", "static"], {"temperature": 0.7}, "temperature"),
    ],
)
def test_a_comparison_that_means_nothing_is_refused_by_name(model, caches, settings, message) -> None:
    with pytest.raises(BadInputError, match=message):
        compare_caches(model, "hello", caches, **settings)
