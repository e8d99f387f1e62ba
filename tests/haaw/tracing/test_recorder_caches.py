"""A learned step follows the caches that take the place of those it was learned on. The plain way is the oracle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.traced import told, watched_matches

import haaw
from haaw.ops.norms import rms_norm
from haaw.ops.op import Op
from haaw.ops.recorder import Scope, declare, recording
from haaw.tracing import step_plan
from haaw.tracing.buffers import OrphanError
from haaw.tracing.noting_together import NotingTogether
from haaw.tracing.trace import Trace

CARD = rms_norm.op.card
LEARNED = 4
"""Steps with the first caches, of which the last two fit."""


def write_first_row(cache: np.ndarray | None, new: np.ndarray, start: int) -> None:
    if cache is not None:
        cache[0] = start


APPEND = Op("kv_append", write_first_row, ("cache", "new", "start"), (), "cache", CARD)
NORM = Op("rms_norm", lambda x, weight: np.ones((2, 4), np.float32), ("x", "weight"), ("y",), None, CARD)


class Run:
    """Steps that write to two caches and read them, in turns."""

    def __init__(self, recorder: Any) -> None:
        self.recorder, self.number, self.errors = recorder, 0, list[str]()
        self.weight_D = np.ones(4, dtype=np.float32)
        self.inputs = [np.full((2, 4), number, dtype=np.float32) for number in range(20)]
        recorder.know_weights({"norm": self.weight_D})
        self.first, self.second = self.allocated(), self.allocated()

    def traced(self, op: Op, *args: Any, **named: Any) -> Any:
        return self.recorder.run(op, args, named, Scope("decode", self.number, request=1))

    def allocated(self, memory: np.ndarray | None = None) -> np.ndarray:
        """Another cache, made in a step of its own; or `memory` once more, with another number."""
        self.number += 1
        made = np.zeros((9, 4), dtype=np.float32) if memory is None else memory
        with recording(self.recorder, stage="decode", step=self.number, request=1):
            cache: np.ndarray = self.traced(Op("kv_allocate", lambda: made, (), ("cache",), None, CARD))
        return cache

    def operations(self, x_TD: np.ndarray) -> None:
        for start in range(10):
            for cache in (self.first, self.second):
                self.traced(APPEND, cache, x_TD[:1], start=start)
                self.traced(NORM, x_TD if cache is None else cache, self.weight_D)

    def step(self, between: Callable[[], Any] | None = None) -> None:
        """One step; with `between`, two in one, and that between them."""
        self.number += 1
        try:
            with recording(self.recorder, stage="decode", step=self.number, request=1):
                self.operations(declare("x", self.inputs[self.number]))
                if between is not None:
                    x = declare("x", self.inputs[-self.number])
                    between()
                    self.operations(x)
        except OrphanError as error:
            self.errors.append(f"{self.number}: {error}")

    def swap(self) -> None:
        self.first, self.second = self.second, self.first

    def lose_the_second(self) -> None:
        """The second cache dies, and an array that nobody declared takes its identity."""
        lost, self.second = id(self.second), self.inputs[0]
        others = []
        while not others or id(others[-1]) != lost:
            others.append(np.zeros((9, 4), dtype=np.float32))
            assert len(others) < 1000
        self.second = others[-1]


FOLLOWED: dict[str, Callable[[Run], Any]] = {
    "nothing": lambda run: None,
    "the first is new": lambda run: setattr(run, "first", run.allocated()),
    "the second is new": lambda run: setattr(run, "second", run.allocated()),
    "both are new": lambda run: (
        setattr(run, "first", run.allocated()),
        setattr(run, "second", run.allocated()),
    ),
    "they change places": lambda run: run.swap(),
    "the first has another number": lambda run: run.allocated(run.first),
    "the second has another number": lambda run: run.allocated(run.second),
}
"""What may come between two steps that both fit."""

REFUSED: dict[str, Callable[[Run], Any]] = {
    "both are the first": lambda run: setattr(run, "second", run.first),
    "both are one new one": lambda run: (
        setattr(run, "first", run.allocated()),
        setattr(run, "second", run.first),
    ),
    "there is no second": lambda run: setattr(run, "second", None),
    "the second is no cache": lambda run: setattr(run, "second", np.zeros((9, 4), dtype=np.float32)),
    "the second is a weight": lambda run: setattr(run, "second", run.weight_D.reshape(1, 4)),
}


def run_steps(path: Path, change: Callable[[Run], Any]) -> list[str]:
    """Records steps, lets `change` come behind them, and two more; gives the errors."""
    with haaw.record(path, keep="full") as made:
        run = Run(made.recorder)
        for _ in range(LEARNED):
            run.step()
        change(run)
        run.step()
        run.step()
    return run.errors


@pytest.fixture
def fitting(tmp_path, monkeypatch) -> Callable[[Callable[[Run], Any]], list[bool]]:
    """Tells which steps fitted, of a run that is the same when it is noted one operation after another."""

    def run_both_ways(change: Callable[[Run], Any]) -> list[bool]:
        with monkeypatch.context() as patch:
            fitted = watched_matches(patch)
            errors = run_steps(tmp_path / "together.haaw", change)
        monkeypatch.setattr(step_plan, "AVAILABLE", False)
        assert errors == run_steps(tmp_path / "plain.haaw", change)
        with Trace(tmp_path / "together.haaw") as together, Trace(tmp_path / "plain.haaw") as plain:
            assert told(together) == told(plain)
        return fitted

    return run_both_ways


@pytest.mark.parametrize("change", FOLLOWED)
def test_a_step_fits_with_other_caches(fitting, change):
    assert fitting(FOLLOWED[change]) == [True] * 4


@pytest.mark.parametrize("change", REFUSED)
def test_a_step_with_something_else_is_noted_the_plain_way(fitting, change):
    assert fitting(REFUSED[change])[:3] == [True, True, False]


def test_a_cache_that_died_is_not_taken_for_what_has_its_identity_now(fitting):
    assert fitting(lambda run: run.step(between=run.lose_the_second))[2:4] == [True, False]


def test_a_plan_can_be_learned_where_there_is_no_cache(fitting):
    """An operation that writes to nothing ends what a plan knows."""
    fitted = fitting(lambda run: [setattr(run, "first", None), *(run.step() for _ in range(3))])
    assert not any(fitted[2:])


def test_an_interrupt_just_before_a_step_counts_counts_no_write_twice(tmp_path, monkeypatch):
    take, strikes = NotingTogether._take, [True]

    def take_and_strike(self, *args):
        take(self, *args)
        if strikes and strikes.pop():
            raise KeyboardInterrupt

    def change(run):
        monkeypatch.setattr(NotingTogether, "_take", take_and_strike)
        with pytest.raises(KeyboardInterrupt):
            run.step()

    assert run_steps(tmp_path / "run.haaw", change) == []
    assert not strikes
    versions: dict[int, list[int]] = {}
    with Trace(tmp_path / "run.haaw") as trace:
        for window in [event.outputs[0].window for event in trace if event.name == "kv_append"]:
            versions.setdefault(window.buffer, []).append(window.version)
    steps = LEARNED + 3
    assert list(versions.values()) == [list(range(1, 10 * steps + 1))] * 2
