"""A disk that fills up while a run is recorded: the trace ends, the answer does not."""

import errno

import pytest
from support.traced import (
    PROMPT,
    SAMPLING,
    assert_identical,
    model_of,
    nothing_stays,
    opened,
    same_answer,
)

import haaw
import haaw.models.llama
from haaw.errors import BadInputError
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


class FullDisk:
    """Lets so many bytes be written, and then no more."""

    def __init__(self, monkeypatch, room: int) -> None:
        import haaw.tracing.container_writer as writing

        self.room = room
        true = writing.write_all

        def write_all(file, data):
            size = memoryview(data).nbytes
            if size > self.room:
                true(file, memoryview(data).cast("B")[: self.room])
                self.room = 0
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= size
            true(file, data)

        monkeypatch.setattr(writing, "write_all", write_all)


def two_answers(model, recording):
    """In one recording: the pieces of an answer as they came, and another answer."""
    with recording:
        pieces = list(model.stream(PROMPT, max_tokens=6, **SAMPLING))
        return pieces, model.generate(PROMPT, max_tokens=6, **SAMPLING)


def test_a_full_disk_ends_the_trace_and_not_the_answer(path, monkeypatch):
    model = model_of("llama")
    expected = model.generate(PROMPT, max_tokens=6, **SAMPLING)
    with haaw.record(path, keep="full"):
        model.generate(PROMPT, max_tokens=6, **SAMPLING)
    size = path.stat().st_size
    steps_seen = set()
    for room in range(0, size, size // 60):
        with monkeypatch.context() as patch:
            FullDisk(patch, room)
            said = r"the trace run\.haaw ends after \d+ segments: No space left"
            recording = haaw.record(path, keep="full")
            with pytest.warns(UserWarning, match=said):
                pieces, again = two_answers(model, recording)
        assert "".join(piece.text for piece in pieces) == expected.text
        assert same_answer(again, expected)
        assert "No space left" in str(recording.failure)
        nothing_stays(recording.recorder)
        assert not recording.recorder._notes.buffers.weights  # it lets go of everything at once
        if recording.recorder.sink.segments:
            with opened(path, model) as trace:
                assert not trace.complete
                assert len(trace.segments) == recording.recorder.sink.segments
                assert_identical(trace.replay())
                steps_seen.add(len(trace.steps("decode")))
    assert len(steps_seen) > 4


def test_a_disk_that_is_full_from_the_start_is_refused_in_one_sentence(path, monkeypatch):
    import haaw.tracing.container_writer as writing

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "create", full)
    with pytest.raises(BadInputError, match="cannot be created: No space left on device"), haaw.record(path):
        pass
    nothing_stays()


def test_a_disk_that_fills_up_while_the_trace_is_ended_keeps_every_step(path, model, monkeypatch):
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=3)
    with Trace(path) as trace:
        room = trace.container.members["summary.json"].offset - 60
    with monkeypatch.context() as patch:
        FullDisk(patch, room)
        with pytest.warns(UserWarning, match="No space left"), haaw.record(path):
            model.generate(PROMPT, max_tokens=3)
    with opened(path, model) as trace:
        assert not trace.complete
        assert len(trace.steps("decode")) == 2
        assert_identical(trace.replay())
