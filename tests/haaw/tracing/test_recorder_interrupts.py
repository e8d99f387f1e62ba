"""Ctrl-C at any instruction of a traced run: no recorder stays behind, the next request works, the file opens.

FAULTS S103: interrupted in a half state.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interrupts import PACKAGE, TRAPPED, interrupt_at, read_to_the_end
from support.traced import PROMPT, model_of, sound_after_interrupt

import haaw
import haaw.models.llama
from haaw.caches.page_pool import PagePool
from haaw.generation.language_model import LanguageModel
from haaw.ops.norms import rms_norm
from haaw.ops.recorder import LISTENING, declare, recording
from haaw.tracing.buffers import Buffers
from haaw.tracing.keeping import Keeping
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


PACKAGES = (*TRAPPED, *(f"{PACKAGE}/{part}/" for part in ("ops", "tracing")))


def interrupted(
    path: Path,
    model: LanguageModel,
    strike: int,
    pool: PagePool | None = None,
    packages: tuple[str, ...] = PACKAGES,
) -> list[int]:
    """A traced request with Ctrl-C at one instruction, and what must hold behind it, while its traceback is kept."""
    settings = {} if pool is None else {"cache": "paged", "cache_options": {"pool": pool}}
    kept: list[KeyboardInterrupt] = []
    with haaw.record(path) as recording:
        request = model.request(PROMPT[:3], max_tokens=2, **settings)
        try:
            with interrupt_at(strike, every="instruction", packages=packages) as seen:
                read_to_the_end(request)
        except KeyboardInterrupt as error:
            kept.append(error)
        assert LISTENING.get() is None
        assert not recording.recorder._inside
        after = model.generate(PROMPT[:3], max_tokens=2, **settings)
    sound_after_interrupt(path, model, recording.recorder, after)
    return seen


NEARLY = 0.99
"""Runs differ by a few instructions, so that the very last of one may not come in the next."""


def instructions(path: Path, model: LanguageModel, **settings: Any) -> int:
    """How many instructions nearly every run has: the first has more, until all is remembered."""
    return int(NEARLY * min(interrupted(path, model, 0, **settings)[0] for _ in range(3)))


def test_ctrl_c_at_any_instruction_leaves_no_recorder_behind(path, rng):
    model = model_of("llama")
    for strike in np.sort(rng.integers(1, instructions(path, model), 8)).tolist():
        assert interrupted(path, model, strike)[0] == strike  # it came, and nothing behind it counted


COME_AND_GO = (f"{PACKAGE}/ops/recorder.py", contextlib.__file__)


def test_ctrl_c_where_recorders_come_and_go_leaves_none_behind(path, rng):
    """Where a step ends, six instructions of 130,000 once left the recorder listening."""
    model, packages = model_of("llama"), COME_AND_GO
    total = instructions(path, model, packages=packages)
    for strike in np.sort(rng.integers(1, total, 40)).tolist():
        assert interrupted(path, model, strike, packages=packages)[0] == strike


@pytest.mark.long
def test_ctrl_c_at_every_instruction_where_recorders_come_and_go(path):
    model, packages = model_of("llama"), COME_AND_GO
    for strike in range(1, instructions(path, model, packages=packages)):
        print(strike)  # a failure says where
        assert interrupted(path, model, strike, packages=packages)[0] == strike


def test_ctrl_c_leaves_a_shared_pool_in_order(path, rng):
    """The buffers of a pool outlive the request that was interrupted when it had just made them."""
    model = model_of("llama")

    def pool() -> PagePool:
        layout = model.transformer.cache_layout
        return PagePool(layout, model.transformer.prototype_Z, blocks=20, block_size=4)

    total = int(NEARLY * min(interrupted(path, model, 0, pool())[0] for _ in range(3)))
    for strike in np.sort(rng.integers(1, total, 6)).tolist():
        assert interrupted(path, model, strike, pool())[0] == strike


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_in_a_shared_pool_are_kept_in_spite_of_ctrl_c(path, rng, monkeypatch, when, large):
    """Else who uses the pool afterwards could not be computed again, since the pool's history has a gap."""
    model, keep, calls = model_of("llama"), Keeping.keep, [0]
    layout, prototype_Z = model.transformer.cache_layout, model.transformer.prototype_Z
    if large:
        monkeypatch.setattr("haaw.tracing.keeping.SMALL_BYTES", 8)

    def run(strike: int) -> int:
        """Ctrl-C at one array that is kept of the first request; gives how many there are."""

        def struck(self: Keeping, *args: Any) -> None:
            calls[0] += 1
            if when == "after" or calls[0] != strike:
                keep(self, *args)
            if calls[0] == strike:
                raise KeyboardInterrupt

        calls[0] = 0
        pool = PagePool(layout, prototype_Z, blocks=20, block_size=4)
        settings = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 7}
        with haaw.record(path) as made:
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(Keeping, "keep", struck)
                read_to_the_end(model.request(PROMPT[:3], **settings))
            after = model.generate(PROMPT[:3], **settings)
        sound_after_interrupt(path, model, made.recorder, after)
        return calls[0]

    total = run(0)
    assert total > 30
    for strike in rng.choice(np.arange(1, total + 1), 10, replace=False).tolist():
        assert run(strike) >= strike


def test_what_an_interrupt_left_held_is_not_taken_for_a_new_input(path, monkeypatch):
    """An address is used again as soon as it is free, so a new input may stand where an old result stood."""
    release = Buffers.release

    def struck(self, owners):
        monkeypatch.setattr(Buffers, "release", release)
        raise KeyboardInterrupt

    def step(number):
        return recording(made.recorder, stage="decode", step=number, request=1)

    x_TD, weight_D = np.ones((2, 4), dtype=np.float32), np.ones(4, dtype=np.float32)
    with haaw.record(path) as made:
        made.recorder.know_weights({"norm": weight_D})
        monkeypatch.setattr(Buffers, "release", struck)
        with contextlib.suppress(KeyboardInterrupt), step(1):
            rms_norm(declare("x", x_TD), weight_D, eps=1e-6)
        held = made.recorder._notes.buffers.held
        assert held
        again_TD = x_TD.copy()
        held[id(again_TD)] = next(iter(held.values()))
        with step(2):
            rms_norm(declare("x", again_TD), weight_D, eps=1e-6)
    with Trace(path) as trace:
        assert [event.name for event in trace if event.place.step == 2] == ["x", "rms_norm"]


def test_an_interrupt_before_anything_is_noted_loses_nothing(path):
    class Struck(dict[int, tuple[int, int]]):
        def clear(self):
            made.recorder._notes.buffers.held = {}
            raise KeyboardInterrupt

    x_TD, weight_D = np.ones((2, 4), dtype=np.float32), np.ones(4, dtype=np.float32)
    with haaw.record(path) as made:
        made.recorder.know_weights({"norm": weight_D})
        with (
            contextlib.suppress(KeyboardInterrupt),
            recording(made.recorder, stage="decode", step=1, request=1),
        ):
            x = declare("x", x_TD)
            made.recorder._notes.buffers.held = Struck()
            rms_norm(x, weight_D, eps=1e-6)
        assert LISTENING.get() is None
    with Trace(path) as trace:
        assert [event.name for event in trace if event.place.step == 1] == ["x", "rms_norm"]


@pytest.mark.long
def test_ctrl_c_at_every_fiftieth_instruction_leaves_no_recorder_behind(path):
    model = model_of("llama")
    for strike in range(1, instructions(path, model), 50):
        print(strike)  # a failure says where
        assert interrupted(path, model, strike)[0] == strike
