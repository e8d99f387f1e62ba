"""`haaw trace replay`: identical on the machine that made the trace; a learner's function in place of an operation."""

import json
from pathlib import Path

import pytest

import haaw

RIGHT = """
import numpy as np
def right(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
def wrong_for_one_token(scores):
    return right(scores) if scores.shape[1] > 1 else right(scores)[..., ::-1].copy()
def takes_two(scores, more):
    return scores
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "run.haaw"
    with haaw.record(path):
        haaw.load("tiny").generate("Once upon a time", max_tokens=4)
    return path


@pytest.fixture
def mine(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RIGHT, encoding="utf-8")
    return path


def test_a_replay_is_identical_and_ends_with_status_0(run_haaw, run) -> None:
    status, out, _ = run_haaw("trace", "replay", run)
    assert status == 0
    assert "100 % of the results identical" in out


def test_json_counts_every_verdict(run_haaw, run) -> None:
    status, out, _ = run_haaw("trace", "replay", run, "--op", "softmax", "--stage", "decode", "--json")
    told = json.loads(out)
    layers = haaw.load("tiny").transformer.cache_layout.layers
    assert status == 0
    assert told["events"] == 3 * layers  # the prefill chose the first of the four tokens
    assert told["counts"] == {"identical hash, value not kept": 3 * layers}


def test_a_right_function_of_ones_own_passes(run_haaw, run, mine) -> None:
    status, out, _ = run_haaw("trace", "replay", run, "--op", "softmax", "--using", f"{mine}:right")
    assert status == 0
    assert "calls of softmax" in out


def test_a_function_that_is_wrong_in_decode_is_told_where(run_haaw, run, mine) -> None:
    status, out, _ = run_haaw(
        "trace", "replay", run, "--op", "softmax", "--using", f"{mine}:wrong_for_one_token"
    )
    assert status == 1
    assert "prefill ok, decode differs" in out
    assert "weights_HTS at H 0, T 0, S 0" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--op", "softmx"), "softmx"),
        (("--using", "mine.py:right"), "mine.py"),
        (("--op", "softmax", "--using", "{mine}:left"), "left"),
        (("--op", "softmax", "--using", "{mine}:takes_two"), "takes_two"),
        (("--op", "softmax", "--using", "{mine}"), "FILE.py:NAME"),
        (("--using", "{mine}:right"), "op="),
        (("--model", "nonsense"), "nonsense"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(run_haaw, run, mine, arguments, named) -> None:
    filled = [each.replace("{mine}", str(mine)) for each in arguments]
    status, out, error = run_haaw("trace", "replay", run, *filled)
    assert (status, out) == (2, "")
    assert named in error
    assert len(error.splitlines()) == 1


def test_a_file_takes_no_modules_place_and_may_import_its_neighbours(run_haaw, run, tmp_path) -> None:
    (tmp_path / "neighbour.py").write_text(RIGHT, encoding="utf-8")
    for name in ("json.py", "haaw.py"):
        (tmp_path / name).write_text("from neighbour import right\n", encoding="utf-8")
        place = f"{tmp_path / name}:right"
        status, out, error = run_haaw("trace", "replay", run, "--op", "softmax", "--using", place, "--json")
        assert status == 0, error
        assert json.loads(out)["ok"]


def test_what_a_function_prints_is_no_part_of_the_json(run_haaw, run, tmp_path) -> None:
    (tmp_path / "loud.py").write_text(RIGHT + "    print('called')\nprint('read')\n", encoding="utf-8")
    place = f"{tmp_path / 'loud.py'}:takes_two"
    status, out, error = run_haaw("trace", "replay", run, "--op", "softmax", "--using", place, "--json")
    assert status == 2
    assert out == ""
    assert error.startswith("read")


def test_a_file_that_exits_and_a_place_that_is_not_there_are_one_sentence_each(
    run_haaw, run, tmp_path
) -> None:
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    status, out, error = run_haaw(
        "trace", "replay", run, "--op", "softmax", "--using", f"{tmp_path / 'exits.py'}:right"
    )
    assert (status, out) == (2, "")
    assert "exits.py could not be run: SystemExit" in error
    status, out, error = run_haaw("trace", "replay", run, "--stage", "decoding")
    assert (status, out) == (2, "")
    assert 'no stage "decoding"; did you mean "decode"' in error
