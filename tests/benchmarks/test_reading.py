"""What reading a trace costs: that everything is measured, and that the limits are looked at."""

import random

import pytest
from support.traced import full_trace, model_of

from benchmarks import reading


@pytest.fixture
def found(tmp_path):
    path = full_trace(tmp_path / "run.haaw", model_of("llama"))
    times = iter(range(1_000_000))
    return reading.measure(path, lambda: float(next(times)), random.Random(1), 7)


def test_everything_is_measured(found):
    counts = {name: len(times) for name, times in found.items()}
    assert counts == {
        "open": 5, "open by zipfile": 5, "first event": 1, "event": 6, "first array": 1, "array": 6,
        **dict.fromkeys(reading.WHOLE, 1),
    }  # fmt: skip
    assert all(each == 1000.0 for times in found.values() for each in times)
    assert len(reading.shown(found).splitlines()) == 2 + len(found)


def test_limits_are_held_against_medians(found):
    assert set(reading.judged(found).values()) == {False}
    within = found | {"open": [400.0] * 5, "event": [0.1, 0.2, 90.0], "array": [4.9]}
    assert reading.judged(within) == {
        "a trace opens in at most 500 ms": True,
        "an event is found in at most 1 ms": True,
        "an array is fetched in at most 5 ms": True,
    }
