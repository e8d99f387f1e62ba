"""What a recording holds in memory: nothing afterwards, and no more as it goes.

FAULTS S102: hooks that hold tensors.
"""

import gc
import tracemalloc
import weakref

import pytest
from support.tiny_models import NumberText, tiny_language_model, tiny_llama
from support.traced import PROMPT, SAMPLING, model_of

import haaw
import haaw.models.llama
from haaw.generation.language_model import LanguageModel
from haaw.tracing.held import RESULT
from haaw.tracing.recorder import TraceRecorder


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


def test_nothing_is_held_when_the_block_is_left(path):
    """S102: hooks that kept every array alive."""
    model = tiny_language_model(1)
    made: list[weakref.ref] = []
    note_all = TraceRecorder._note_all

    def watched(self):
        for result in self.held.batch.column(RESULT, len(self.held)):
            made.extend(
                map(weakref.ref, result if isinstance(result, tuple) else (result,) * (result is not None))
            )
        note_all(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TraceRecorder, "_note_all", watched)
        with haaw.record(path, keep="full") as recording:
            model.generate(PROMPT, max_tokens=9, **SAMPLING)
            inside = sum(each() is not None for each in made)
    gc.collect()
    assert len(made) > 400
    assert inside == 0  # nor between two requests
    assert not any(each() is not None for each in made)
    weights = [weakref.ref(each) for each in model.transformer.named_weights().values()]
    del model
    gc.collect()
    assert not any(each() is not None for each in weights)
    assert recording.recorder.closed


def own_bytes() -> tuple[int, int]:
    """Bytes that the files of `haaw.tracing` hold: for the directory of the file, and for everything else."""
    gc.collect()
    filters = [tracemalloc.Filter(True, "*/haaw/tracing/*")]
    found = tracemalloc.take_snapshot().filter_traces(filters).statistics("filename")
    directory = sum(each.size for each in found if "container_" in each.traceback[0].filename)
    return directory, sum(each.size for each in found) - directory


@pytest.mark.parametrize("tokens", [600, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_long_run_takes_no_more_memory_as_it_goes(path, tokens):
    """Only the directory, which is written at the end, grows: by names and places of the members of each step."""
    model = LanguageModel("random", tiny_llama(1, context_length_tokens=tokens + 20, layers=1), NumberText())
    settings = {"max_tokens": tokens, "cache": "sliding", "cache_options": {"window": 16}, **SAMPLING}
    tracemalloc.start()
    try:
        with haaw.record(path):
            stream = iter(model.request(PROMPT, **settings))
            for _ in range(tokens // 10):
                next(stream)
            directory_before, rest_before = own_bytes()
            for _ in range(tokens - tokens // 10 - 1):
                next(stream)
            directory, rest = own_bytes()
            stream.close()
    finally:
        tracemalloc.stop()
    assert rest - rest_before < 32 * 1024
    assert directory - directory_before < 1_000 * tokens
