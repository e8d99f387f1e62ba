"""Recording on a device: nothing comes to the host between operations, and the trace is that of the host."""

import sys
from pathlib import Path

import pytest
from support.fake_array import FakeArray, FakeLibrary
from support.tiny_models import NumberText, tiny_llama
from support.traced import CACHES, PROMPT, SAMPLING, assert_identical, model_of, replayed

import haaw
import haaw.models.llama
from haaw.generation.language_model import LanguageModel
from haaw.tracing import held, recorder
from haaw.tracing.noting import Notes
from haaw.tracing.recorder import TraceRecorder
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


def counted(monkeypatch) -> list[str]:
    """Notes for every `.get()` whether the recorder was at the end of a step."""
    seen: list[str] = []
    at_the_end: list[int] = []
    true_get, true_flush = FakeArray.get, TraceRecorder.flush

    def get(self):
        caller = sys._getframe(1)
        while "/haaw/arrays.py" in caller.f_code.co_filename and caller.f_back is not None:
            caller = caller.f_back
        if "/haaw/tracing/" in caller.f_code.co_filename:
            seen.append("at the end of a step" if at_the_end else "in between")
        return true_get(self)

    def flush(self):
        at_the_end.append(1)
        try:
            true_flush(self)
        finally:
            at_the_end.pop()

    monkeypatch.setattr(FakeArray, "get", get)
    monkeypatch.setattr(TraceRecorder, "flush", flush)
    return seen


@pytest.mark.parametrize("keep", ["full", "replayable", "events"])
@pytest.mark.parametrize("cache", ["dynamic", "paged", "quantised"])
def test_on_a_device_nothing_comes_to_the_host_between_two_operations(tmp_path, monkeypatch, keep, cache):
    seen = counted(monkeypatch)
    device = LanguageModel("random", tiny_llama(1, xp=FakeLibrary()), NumberText())
    settings = {"max_tokens": 4, "prefill_chunk_tokens": 5, **SAMPLING, **CACHES[cache]}
    with haaw.record(tmp_path / "device.haaw", keep=keep):
        model = device
        answer = model.generate(PROMPT, **settings)
    of_weights = len(device.transformer.named_weights())
    assert seen.count("in between") <= of_weights  # hashed once, when the file begins
    assert seen.count("at the end of a step") > 100
    with haaw.record(tmp_path / "host.haaw", keep=keep):
        expected = model_of("llama").generate(PROMPT, **settings)
    assert answer.token_ids == expected.token_ids
    assert structure(tmp_path / "device.haaw") == structure(tmp_path / "host.haaw")
    assert_identical(replayed(tmp_path / "device.haaw", model_of("llama"))) if keep != "events" else None


def structure(path: Path) -> list:
    """All of a trace but times, addresses and sizes."""
    with Trace(path) as trace:
        return [
            (
                event.kind,
                event.name,
                event.place,
                [(link.parameter, link.item, link.window) for link in event.inputs],
                [
                    (output.name, output.window, output.hash, output.axes, output.is_kept)
                    for output in event.outputs
                ],
                event.args,
            )
            for event in trace
            if event.place.stage != "start-up"
        ]


def test_large_results_of_a_device_come_over_before_they_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr(held, "MOST_HELD_BYTES", 2_000)
    monkeypatch.setattr(held, "COUNT_EVERY_NS", 0)
    monkeypatch.setattr(recorder, "MOST_PENDING_BYTES", 10_000)
    most = []
    true = Notes._later

    def later(self, *arguments, **named):
        true(self, *arguments, **named)
        most.append(self.on_device_bytes)

    monkeypatch.setattr(Notes, "_later", later)
    device = LanguageModel("random", tiny_llama(1, xp=FakeLibrary()), NumberText())
    with haaw.record(tmp_path / "device.haaw", keep="full"):
        device.generate(PROMPT, max_tokens=3)
    assert 5_000 < max(most) < 20_000
    assert_identical(replayed(tmp_path / "device.haaw", model_of("llama")))
