"""Decode time against context: that everything is measured, by turns, and what is made of the figures."""

import argparse
import itertools
import json

import numpy as np
import pytest
from support.tiny_models import tiny_llama

from benchmarks import caches
from benchmarks.cache_report import Findings, fitted, limits, tables
from benchmarks.cache_runs import Contestant, contestants, maker, moved_bytes
from haaw.caches.kinds import KINDS
from haaw.loading import find

EVERY = [*KINDS, "quantised to 4 bits"]


@pytest.fixture(scope="module")
def model():
    return tiny_llama(3)


def ticking():
    """A clock that goes on by a second each time someone looks."""
    return map(float, itertools.count()).__next__


def test_every_kind_is_filled_decoded_and_appended_to_up_to_the_context(model):
    found = caches.measure(model, [24, 48], 2, ticking())
    for decode, alone, moved in zip(found.decode_ms, found.alone_ms, found.moved_bytes, strict=True):
        assert list(decode) == [*EVERY, "none"]
        assert list(alone) == list(moved) == EVERY
        assert all(times == [1000.0] * 2 for times in (*decode.values(), *alone.values()))
    assert {name: len(times) for name, times in found.growth_ms.items()} == {"dynamic": 3, "static": 3}
    assert json.loads(json.dumps(found.to_dict()))["contexts"] == [24, 48]


def test_the_last_step_of_each_kind_is_the_one_that_makes_the_context_full(model, monkeypatch):
    """8 tokens of a context of 24 are filled in at once where 7 steps of two sorts, and one that is counted, follow."""
    lengths = []
    monkeypatch.setattr(Contestant, "release", lambda self: lengths.append(self.cache and self.cache.length))
    caches.measure(model, [24], 5, ticking())
    assert lengths[: len(EVERY) + 1] == [24] * len(EVERY) + [None]
    assert caches.needed(5) == 1 + 2 * (2 + 5)


def test_the_mode_without_a_cache_is_only_asked_for_where_it_is_short(model):
    assert [each.name for each in contestants(model, without_cache=False)] == EVERY


@pytest.mark.parametrize("name", ["dynamic", "none"])
def test_a_step_decodes_behind_what_was_filled_in(name, model):
    contestant = Contestant(name, model, maker(model, name, {}))
    contestant.fill(20)
    contestant.decode()
    assert contestant.length == 21
    assert contestant.cache is None or contestant.cache.length == 21


def test_filling_runs_no_model(model):
    contestant = Contestant("static", model, maker(model, "static", {}))
    contestant._model = None
    contestant.fill(100)
    keys_KSC, values_KSC = contestant.cache.view(1)
    assert keys_KSC.shape[1] == 100
    assert 0 < np.abs(keys_KSC).max() < 1 < np.abs(values_KSC).max()


def test_bytes_are_counted_by_the_cards(model):
    """A row of all layers is read and written; concatenation reads and writes the 20 rows before, too."""
    row = 2 * model.cache_layout.bytes_per_position
    for name, rows in {"static": 1, "dynamic": 1, "paged": 1, "concatenated": 21}.items():
        contestant = Contestant(name, model, maker(model, name, {}))
        contestant.fill(20)
        assert moved_bytes(contestant) == rows * row


def test_all_take_turns_in_an_order_that_changes_and_the_first_rounds_do_not_count(model):
    seen = []
    runners = contestants(model, without_cache=False)[:4]
    times = caches.in_turns(runners, lambda each: seen.append(each.name), 5, ticking())
    assert [len(each) for each in times.values()] == [5] * 4
    rounds = [tuple(seen[start : start + 4]) for start in range(0, len(seen), 4)]
    assert len(rounds) == caches.WARM_STEPS + 5
    assert all(set(each) == set(times) for each in rounds)
    assert len(set(rounds)) > 3


def test_a_line_is_fitted():
    """y = 2 + 3 x, and with 0, 0, 6 over 0, 1, 2 by hand: slope 3, first −1, explained 9 · 2 / 24."""
    line = fitted([1.0, 2.0, 4.0], [5.0, 8.0, 14.0])
    assert (line.first, line.slope, line.explained) == pytest.approx((2, 3, 1))
    line = fitted([0.0, 1.0, 2.0], [0.0, 0.0, 6.0])
    assert (line.first, line.slope, line.explained) == pytest.approx((-1, 3, 18 / 24))
    assert fitted([1.0, 2.0], [7.0, 7.0]).explained == 1


def findings(*, dynamic=10.0, growth=(8.0, 8.0), copied=(200, 400, 800), times=(1.0, 2.0, 4.0)) -> Findings:
    """At 1, 2 and 4 thousand tokens; a position has 100 bytes, so concatenation moves 200 a position held."""
    contexts = [1000, 2000, 4000]
    decode = [{"dynamic": [dynamic] * 3, "static": [10.0] * 3} for _ in contexts]
    alone = [{"concatenated": [each] * 3, "static": [0.1] * 3} for each in times]
    moved = [{"concatenated": each * 1000, "static": 200} for each in copied]
    return Findings(contexts, 100, decode, alone, moved, {"dynamic": [growth[0]], "static": [growth[1]]})


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, [True, True]),
        ({"dynamic": 10.4}, [True, True]),
        ({"dynamic": 10.6}, [False, True]),
        (
            {"dynamic": 10.4, "growth": (1008.0, 8.0)},
            [False, True],
        ),  # 1000 ms / 4000 tokens: 0.25 ms more each
        ({"copied": (200, 200, 200)}, [True, False]),
        ({"copied": (200, 400, 801)}, [True, False]),
        ({"times": (4.0, 4.0, 4.0)}, [True, False]),
        ({"times": (4.0, 2.0, 1.0)}, [True, False]),
    ],
)
def test_limits_hold_or_fail(changes, held):
    text, whole = limits(findings(**changes))
    assert [line.split()[0] == "holds" for line in text.strip().splitlines()] == held
    assert whole == all(held)


def test_the_time_of_all_tokens_is_the_area_under_the_line():
    """1 µs a position: 4,000² / 2 µs = 8 s."""
    text, _ = limits(findings())
    assert "takes 1.000 µs · context" in text
    assert "4,000 tokens one by one so take 8.0 s" in text


def test_tables_have_a_row_a_kind_and_a_column_a_context():
    text = tables(findings(dynamic=11.0))
    assert "| dynamic | 11.0 (11.0–11.0) |" in text
    assert "| dynamic | 1.10 (1.10–1.10) |" in text
    assert "195 |" in text  # 200,000 bytes


def test_the_command_prints_writes_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    parser = argparse.ArgumentParser()
    caches.add_options(parser)
    out, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    options = parser.parse_args(["--quick", "--json", str(out), "--plot", str(picture)])
    options.clock = "wall"
    assert caches.run(options, find("tiny")) == 0
    printed = capsys.readouterr()
    assert "append and view of all layers alone" in printed.out
    assert str(picture) in printed.err
    assert json.loads(out.read_text())["contexts"] == list(caches.QUICK_CONTEXTS)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_contexts_that_the_model_has_not_or_that_no_steps_fit_into_are_left_out(model, capsys):
    assert caches.possible([30, 31, 128, 129], 12, model) == [30, 31, 128]
    assert "left out: [129]" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no context is left"):
        caches.possible([20], 12, model)
