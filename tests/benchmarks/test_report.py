"""Medians, spreads and ratios of the benchmark's tables."""

import pytest

from benchmarks.report import Spread, pair_ratios, spread, table


def test_a_spread_is_the_median_with_the_least_and_the_greatest_figure():
    assert spread([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)
    assert spread([4.0, 1.0]).median == 2.5
    assert spread([3.04, 1.0, 1000.0]).text(1) == "3.0 (1.0–1,000.0)"


def test_ratios_are_taken_turn_by_turn_and_not_of_the_medians():
    """10/20, 100/110 and 10/10 sort to 0.5, 0.909… and 1; the ratio of the medians would be 10/20 = 0.5."""
    ratios = pair_ratios(own=[20.0, 110.0, 10.0], other=[10.0, 100.0, 10.0])
    assert ratios == Spread(pytest.approx(100 / 110), 0.5, 1.0)


def test_ratios_of_unequal_counts_of_turns_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        pair_ratios([1.0, 2.0], [1.0])


def test_a_table_has_columns_of_one_width():
    lines = table(["name", "ms"], [["a long name", "1"], ["b", "23"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2] == "| a long name |  1 |"
