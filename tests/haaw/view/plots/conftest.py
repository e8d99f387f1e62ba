"""A recorded answer with a cache that doubles, its trace with and without the model, shared by the tests of plots."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.story_fixture import PROMPT, SETTINGS

import haaw
from haaw.generation.answer import Answer
from haaw.tracing.trace import Trace


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    path = tmp_path_factory.mktemp("plots") / "run.haaw"
    options = {"cache": "dynamic", "cache_options": {"first_capacity": 8}, "logprobs": 4}
    with haaw.record(path):
        answer = haaw.load().generate(PROMPT, form="raw", **options, **SETTINGS)
    return path, answer


@pytest.fixture(scope="session")
def trace(answered: tuple[Path, Answer]) -> Iterator[Trace]:
    with haaw.open_trace(answered[0], haaw.load()) as opened:
        yield opened


@pytest.fixture
def without_model(answered: tuple[Path, Answer]) -> Iterator[Trace]:
    with Trace(answered[0]) as opened:
        yield opened


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Trace]]:
    """Records a request of a model and opens the trace with it; `weights` false: without."""
    opened: list[Trace] = []

    def make(
        model: Any, prompt: Any, keep: str = "replayable", *, weights: bool = True, **settings: Any
    ) -> Trace:
        path = tmp_path / f"{len(opened)}.haaw"
        with haaw.record(path, keep):
            model.generate(prompt, **settings)
        opened.append(haaw.open_trace(path, model) if weights else Trace(path))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
