"""Running steps again from their recorded roots: every hash, in any order, caches from their history."""

import numpy as np
import pytest
from support.traced import CACHES, PROMPT, SAMPLING, assert_identical, model_of, opened

import haaw
from haaw.caches.page_pool import PagePool
from haaw.errors import BadInputError
from haaw.tracing.appends import Append, joined, runs_of
from haaw.tracing.event import Window
from haaw.tracing.hashing import array_hash
from haaw.tracing.memory import Memory, laid_out
from haaw.tracing.rerun import Rerun
from haaw.tracing.running import NotRecordedError, operation, run_plain
from haaw.tracing.segments import Layout
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module", params=CACHES)
def path(request, model, tmp_path_factory):
    """Twelve decode steps, past several doublings, rings and groups, in each kind of cache."""
    path = tmp_path_factory.mktemp("traces") / "run.haaw"
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=13, prefill_chunk_tokens=5, **CACHES[request.param], **SAMPLING)
    return path


class Checked:
    """Holds every result of a step against its recorded hash."""

    def __init__(self) -> None:
        self.same = 0

    def __call__(self, segment, row, op, results, arguments):
        first = int(segment.events[row]["first_output"])
        for number, value in enumerate(results):
            recorded = segment.outputs[first + number]["hash"].tobytes()
            if any(recorded):
                assert array_hash(value) == recorded, (op.name, segment.first_event + row)
                self.same += 1


def test_every_step_alone_and_cold_gives_the_recorded_hashes(path, model):
    with opened(path, model) as trace:
        for step in trace.steps():
            checked = Checked()
            Rerun(trace).step(step, checked)
            assert checked.same > 30 or step.stage not in ("prefill", "decode")


def test_steps_in_any_order_give_the_recorded_hashes(path, model, rng):
    with opened(path, model) as trace:
        rerun, checked = Rerun(trace), Checked()
        steps = [step for step in trace.steps() if step.stage in ("prefill", "decode")]
        for place in rng.integers(0, len(steps), 20).tolist():
            rerun.step(steps[place], checked)
        assert checked.same > 20 * 30


def test_a_step_that_is_run_in_part_does_not_spoil_what_follows(path, model, rng):
    with opened(path, model) as trace:
        rerun = Rerun(trace)
        steps = trace.steps("decode")
        for place in rng.integers(0, len(steps), 10).tolist():
            step = steps[place]
            rerun.step(step, last=int(rng.integers(step.first, step.end)))
            checked = Checked()
            rerun.step(steps[rng.integers(len(steps))], checked)
            assert checked.same > 30


def test_only_a_few_segments_stay_unpacked(path, model):
    """All rows of all steps as tuples would take a gigabyte for a thousand tokens."""
    with opened(path, model) as trace:
        assert_identical(trace.replay())
        unpacked = [segment.number for segment in trace.segments if "rows" in segment.__dict__]
        assert len(unpacked) <= 4


def test_rows_that_follow_one_another_are_written_at_once(model, tmp_path, monkeypatch):
    """A thousand steps have a thousand writes into each buffer; making it again takes one for each doubling."""
    path, tokens = tmp_path / "run.haaw", 100
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=tokens)
    calls = []
    true = operation("kv_append")
    with opened(path, model) as trace:
        rerun = Rerun(trace)
        last = trace.steps("decode")[-1]
        append = rerun._op(rerun._append_number)
        assert append is true
        monkeypatch.setattr("haaw.tracing.rerun.run_plain", counting(calls))
        rerun.step(last, Checked())
    written = [name for name in calls if name == "kv_append"]
    assert len(written) < 4 * 8  # four buffers, each doubled once or twice, and this step's own write
    assert calls.count("kv_move") <= 4 * 2


def counting(calls):
    def run(op, *arguments):
        calls.append(op.name)
        return run_plain(op, *arguments)

    return run


def test_joined_rows_are_those_of_single_writes(rng):
    """Against the writes one by one, with gaps, jumps back and other windows between them."""
    buffer = Layout("<f4", (2, 40, 3), (40 * 12, 12, 4))
    appends, at = [], 0
    for _ in range(60):
        tokens = int(rng.integers(1, 4))
        rows = rng.normal(size=(tokens, 2, 3)).astype(np.float32)
        at = int(rng.integers(0, 37)) if rng.random() < 0.2 or at + tokens > 40 else at
        appends.append(
            Append(at, 0, buffer, Layout("<f4", rows.shape, rows.strides), memoryview(rows.tobytes()))
        )
        at += tokens
    one_KPC, together_KPC = np.zeros((2, 2, 40, 3), np.float32)
    kv_append = operation("kv_append").plain
    for each in appends:
        kv_append(one_KPC, joined([each]), start=each.start)
    runs = list(runs_of(appends))
    for run in runs:
        kv_append(together_KPC, joined(run), start=run[0].start)
    np.testing.assert_array_equal(one_KPC, together_KPC)
    assert [each for run in runs for each in run] == appends
    assert 1 < len(runs) < 50


def test_a_pool_that_was_declared_twice_is_made_again_from_the_second(model, tmp_path):
    """A request that nobody recorded wrote to the pool in the middle of the recording."""
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=40, block_size=4)
    paged = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 6}
    unrecorded = model.request([7, 7, 7, 1, 2, 3, 4, 5, 6], **paged)
    with haaw.record(tmp_path / "run.haaw"):
        model.generate(PROMPT, **paged)
        unrecorded.run()
        again = model.generate([7, 7, 7, 1, 2, 3, 4, 5, 6, 9], **paged)
    assert again.reused_tokens == 8
    with opened(tmp_path / "run.haaw", model) as trace:
        assert_identical(trace.replay())
        for step in trace.steps("decode"):
            Rerun(trace).step(step, Checked())
        assert len([event for event in trace if event.kind == "input" and "kv_pool" in event.name]) == 4


def test_what_was_not_kept_is_said_with_the_rule_that_keeps_it(model, tmp_path):
    with haaw.record(tmp_path / "run.haaw", keep="events"):
        model.generate(PROMPT, max_tokens=3)
    with opened(tmp_path / "run.haaw", model) as trace:
        for step in (trace.steps("prefill")[0], trace.steps("decode")[1]):
            with pytest.raises(NotRecordedError, match='keep="replayable"'):
                Rerun(trace).step(step)


def test_weights_that_are_missing_or_of_another_model_are_named(model, tmp_path):
    with haaw.record(tmp_path / "run.haaw"):
        model.generate(PROMPT, max_tokens=3)
    with (
        Trace(tmp_path / "run.haaw") as trace,
        pytest.raises(BadInputError, match='weights of the model "random"'),
    ):
        Rerun(trace).step(trace.steps("prefill")[0])
    other = model_of("gpt2").transformer.named_weights
    with (
        Trace(tmp_path / "run.haaw", weights=other) as trace,
        pytest.raises(BadInputError, match="has no weight"),
    ):
        Rerun(trace).step(trace.steps("prefill")[0])


def test_a_kept_value_is_laid_out_as_it_was(rng):
    value = rng.normal(size=(3, 4)).astype(np.float32)
    for strides, offset in (((16, 4), 0), ((4, 12), 0), ((32, 8), 5), ((0, 0), 0)):
        shown = np.broadcast_to(value[:1, :1], (3, 4)) if strides == (0, 0) else value
        window = Window(0, 0, offset, Layout("<f4", (3, 4), strides))
        laid = laid_out(shown, window)
        assert laid.strides == strides
        np.testing.assert_array_equal(laid, shown)
        again = Memory(laid).window(offset, window.layout)
        np.testing.assert_array_equal(again, shown)


def test_a_step_is_run_again_by_its_own_operations_each_once(tmp_path, monkeypatch):
    """So that it takes about as long as it took; `python -m benchmarks tracing` measures it."""
    model = model_of("llama")
    with haaw.record(tmp_path / "run.haaw"):
        model.generate(PROMPT, max_tokens=8)
    ran: list[int] = []

    def counted(op, arguments, file_name, event):
        ran.append(event)
        return run_plain(op, arguments, file_name, event)

    monkeypatch.setattr("haaw.tracing.rerun.run_plain", counted)
    with opened(tmp_path / "run.haaw", model) as trace:
        rerun, steps = Rerun(trace), trace.steps("decode")
        rerun.step(steps[0])
        for step in steps[1:]:
            ran.clear()
            rerun.step(step)
            own = [trace.event(number) for number in range(step.first, step.end)]
            operations = [each.number for each in own if each.kind == "operation"]
            assert sorted(ran) == operations
