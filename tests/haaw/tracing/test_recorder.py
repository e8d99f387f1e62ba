"""Recording: what is refused, every end of a request inside it, what is kept, budgets, and what is summed up."""

import contextlib
import gc
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from support.tiny_models import NumberText, tiny_language_model, tiny_llama
from support.traced import PROMPT, assert_identical, model_of, nothing_stays, opened, replayed, same_answer

import haaw
import haaw.models.llama
from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.ops.linear import add
from haaw.ops.norms import rms_norm
from haaw.ops.op import OPS, Op, op
from haaw.ops.recorder import LISTENING, Scope, chosen_recorder, declare, recording
from haaw.tracing import held, verdicts
from haaw.tracing.buffers import Buffers, OrphanError
from haaw.tracing.held import HeldOperations
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.haaw"


def test_two_recordings_in_one_another_are_refused(path, model):
    with haaw.record(path) as outer:
        with pytest.raises(BadInputError, match="another recording is under way"):
            haaw.record(path.with_name("other.haaw")).__enter__()
        answer = model.generate(PROMPT, max_tokens=3)
    nothing_stays(outer.recorder)
    assert not path.with_name("other.haaw").exists()
    assert answer.token_ids
    assert_identical(replayed(path, model))


def test_a_file_that_is_being_recorded_is_not_recorded_over(path, model):
    found = []

    def second() -> None:
        with pytest.raises(BadInputError, match="being written just now"), haaw.record(path):
            pass
        found.append(chosen_recorder())

    with haaw.record(path):
        model.generate(PROMPT, max_tokens=2)
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert found == [None]
    assert_identical(replayed(path, model))


def test_a_recording_is_used_once(path, model):
    with haaw.record(path) as recording:
        model.generate(PROMPT, max_tokens=2)
    with pytest.raises(BadInputError, match="has been used"):
        recording.__enter__()
    with pytest.raises(BadInputError, match="has not begun"):
        _ = haaw.record(path).recorder
    nothing_stays(recording.recorder)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keep": "most"}, "most"),
        ({"keep": 3}, "3"),
        ({"hash": "no"}, '"on" or "off"'),
        ({"budget": "much"}, "budget"),
        ({"budget": 0}, "budget"),
    ],
)
def test_an_impossible_policy_is_refused_before_a_file_is_made(path, arguments, said):
    with pytest.raises(BadInputError, match=said):
        haaw.record(path, **arguments).__enter__()
    assert not path.exists()
    nothing_stays()


@pytest.mark.parametrize("place", ["missing/run.haaw", ".", "taken.txt"])
def test_an_impossible_place_is_refused(tmp_path, place):
    (tmp_path / "taken.txt").write_text("mine")
    with pytest.raises(BadInputError), haaw.record(tmp_path / place):
        pass
    assert (tmp_path / "taken.txt").read_text() == "mine"
    nothing_stays()


def test_a_second_model_is_refused_and_the_same_one_loaded_again_is_not(path, model):
    again, other = model_of("llama"), tiny_language_model(2)
    with haaw.record(path) as recording:
        first = model.generate(PROMPT, max_tokens=4)
        second = again.generate(PROMPT, max_tokens=4)
        with pytest.raises(BadInputError, match="another model"):
            other.generate(PROMPT, max_tokens=4)
        third = model.generate(PROMPT, max_tokens=4)
    assert first.token_ids == second.token_ids == third.token_ids
    nothing_stays(recording.recorder)
    report = replayed(path, model)
    assert_identical(report)
    with opened(path, model) as trace:
        assert len(trace.steps("decode")) == 9


def test_a_recording_in_which_nothing_ran_is_a_trace_of_nothing(path):
    with pytest.warns(UserWarning, match="holds no run"), haaw.record(path):
        pass
    with Trace(path) as trace:
        assert trace.complete
        assert [step.stage for step in trace.steps()] == ["start-up"]
        assert trace.replay().ok
        assert list(trace.container.verify()) == []


def test_an_exception_in_the_block_ends_the_trace_properly_and_names_it(path, model):
    recording = haaw.record(path)

    def failing_block() -> None:
        with recording:
            model.generate(PROMPT, max_tokens=3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_block()
    nothing_stays(recording.recorder)
    with opened(path, model) as trace:
        assert trace.complete
        assert trace.summary["error"] == "ZeroDivisionError"
        assert_identical(trace.replay())


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt(), BadInputError("no")])
def test_an_exception_inside_an_operation_leaves_what_came_before(path, model, monkeypatch, error):
    calls = []

    def failing(gate_TF, up_TF):
        calls.append(1)
        if len(calls) == 2 * 3 + 2:  # the second layer in decode 3; the prefill is the first step
            raise error
        return true(gate_TF, up_TF)

    true = haaw.models.llama.swiglu
    with haaw.record(path) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(haaw.models.llama, "swiglu", failing)
            with pytest.raises(type(error)):
                model.generate(PROMPT, max_tokens=9)
        assert LISTENING.get() is None
        after = model.generate(PROMPT, max_tokens=3)
    nothing_stays(recording.recorder)
    assert after.token_ids == model.generate(PROMPT, max_tokens=3).token_ids
    with opened(path, model) as trace:
        assert trace.complete
        assert [step.name for step in trace.steps(request=1) if step.stage == "decode"] == [
            "decode 1", "decode 2", "decode 3",
        ]  # fmt: skip
        assert_identical(trace.replay())
        assert [each.facts["reason"] for each in trace.facts("finish")][1] == "length"


def test_an_orphan_fails_the_request_and_not_the_next(path, model, monkeypatch):
    true = haaw.models.llama.swiglu

    def computes_outside(gate_TF, up_TF):
        return true(gate_TF * 1, up_TF)

    with haaw.record(path) as recording:
        with monkeypatch.context() as patch:
            patch.setattr(haaw.models.llama, "swiglu", computes_outside)
            with pytest.raises(OrphanError, match=r"swiglu reads .* gate_TF"):
                model.generate(PROMPT, max_tokens=2)
        answer = model.generate(PROMPT, max_tokens=3)
    nothing_stays(recording.recorder)
    assert answer.token_ids == model.generate(PROMPT, max_tokens=3).token_ids
    with opened(path, model) as trace:
        assert_identical(trace.replay(request=2))


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_an_abandoned_stream_leaves_nothing_behind(path, model, taken, how):
    with haaw.record(path) as recording:
        request = model.request(PROMPT, max_tokens=8)
        stream = iter(request)
        for _ in range(taken):
            next(stream)
            assert LISTENING.get() is None
        if how == "closed":
            stream.close()
        del stream
        gc.collect()
        after = model.generate(PROMPT, max_tokens=3)
    nothing_stays(recording.recorder)
    assert after.finish.reason == "length"
    with opened(path, model) as trace:
        assert_identical(trace.replay())
        assert len(trace.steps("decode", request=1)) == max(taken - 1, 0)


def test_a_request_that_outlives_its_recording_goes_on_untraced(path, model):
    expected = model.generate(PROMPT, max_tokens=6)
    with haaw.record(path) as recording:
        unread = model.request(PROMPT, max_tokens=6)
        begun = model.request(PROMPT, max_tokens=6)
        stream = iter(begun)
        next(stream)
        next(stream)
    list(stream)
    assert begun.answer.token_ids == unread.run().token_ids == expected.token_ids
    nothing_stays(recording.recorder)
    with opened(path, model) as trace:
        assert [step.name for step in trace.steps("decode")] == ["decode 1"]
        assert_identical(trace.replay())
    with haaw.record(path.with_name("next.haaw")):
        model.generate(PROMPT, max_tokens=2)
    assert_identical(replayed(path.with_name("next.haaw"), model))


def test_rules_keep_what_they_name_and_nothing_else(path, model):
    with haaw.record(path, keep="replayable; full: op=softmax layer=1"):
        model.generate(PROMPT, max_tokens=4)
    with opened(path, model) as trace:
        kept = {
            (event.name, event.place.layer)
            for event in trace
            if event.kind == "operation" and event.outputs[0].is_kept
        }
        assert kept == {("softmax", 1)}
        assert_identical(trace.replay())
        assert trace.replay().counts["identical"] >= 4


def test_events_alone_keep_no_values(path, model):
    with haaw.record(path, keep="events"):
        model.generate(PROMPT, max_tokens=4)
    with Trace(path) as trace:
        assert not any(segment.kept for segment in trace.segments)
        assert all(output.hash for event in trace for output in event.outputs if "kv_" not in event.name)


def test_without_hashes_there_are_none_and_a_full_trace_replays_all_the_same(path, model):
    with haaw.record(path, keep="full", hash="off"):
        model.generate(PROMPT, max_tokens=4)
    with opened(path, model) as trace:
        assert not any(output.hash for event in trace for output in event.outputs)
        report = trace.replay()
    assert report.ok
    assert report.counts["identical"] > 0.7 * len(report)


def test_a_budget_falls_from_level_to_level_and_says_so(path, model):
    sizes = {}
    for keep in ("full", "replayable", "events"):
        with haaw.record(path, keep=keep):
            model.generate(PROMPT, max_tokens=60)
        sizes[keep] = path.stat().st_size
    with pytest.warns(UserWarning, match="holds no run"), haaw.record(path, keep="events"):
        pass
    start = path.stat().st_size
    budget = (sizes["full"] + sizes["replayable"]) // 2 - start
    with haaw.record(path, keep="full", budget=budget):
        model.generate(PROMPT, max_tokens=60)
    with opened(path, model) as trace:
        assert trace.complete
        falls = [fact.facts for fact in trace.facts("degraded")]
        assert [fall["now"] for fall in falls][:1] == ["replayable"]
        assert trace.replay().ok
        assert len(trace.steps("decode")) == 59
    assert path.stat().st_size - start < 1.1 * budget


def test_a_budget_that_is_spent_ends_the_trace_with_a_warning_and_not_the_answer(path, model):
    expected = model.generate(PROMPT, max_tokens=60)
    with haaw.record(path, keep="events"):
        model.generate(PROMPT, max_tokens=1)
    one = path.stat().st_size
    with pytest.warns(
        UserWarning, match=r"run.haaw ends after [\d,]+ events: its budget of [\d,]+ bytes was spent"
    ):
        with haaw.record(path, keep="full", budget=300_000):
            answer = model.generate(PROMPT, max_tokens=60)
    assert same_answer(answer, expected)
    assert one + 120_000 < path.stat().st_size < one + 330_000
    with opened(path, model) as trace:
        falls = [fact.facts for fact in trace.facts("degraded")]
        assert [fall["now"] for fall in falls] == ["replayable", "events", "nothing"]
        assert all(fall["budget_bytes"] == 300_000 for fall in falls)
        assert trace.complete
        report = trace.replay()
        assert report.ok
        assert report.counts[verdicts.NOT_KEPT] > 0
        assert 3 < len(trace.steps("decode")) < 59


def test_every_dtype_is_recorded_and_replayed(tmp_path):
    for dtype in ("float16", "float64"):
        model = LanguageModel("random", tiny_llama(1, dtype=dtype), NumberText())
        with haaw.record(tmp_path / "run.haaw", keep="full"):
            answer = model.generate(PROMPT, max_tokens=4)
        assert answer.token_ids == model.generate(PROMPT, max_tokens=4).token_ids
        assert_identical(replayed(tmp_path / "run.haaw", model))


def test_more_requests_than_a_row_can_tell_apart_are_refused(path, model, monkeypatch):
    import haaw.tracing.recorder as recorder

    monkeypatch.setattr(recorder, "MOST_REQUESTS", 2)
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=1)
        model.generate(PROMPT, max_tokens=1)
        with pytest.raises(BadInputError, match="at most 2 requests"):
            model.generate(PROMPT, max_tokens=1)
    assert_identical(replayed(path, model))


def test_the_summary_counts_what_is_in_the_file(path, model):
    with haaw.record(path, keep="full"):
        model.generate(PROMPT, max_tokens=3)
        model.generate(PROMPT, max_tokens=3)
    with Trace(path) as trace:
        summary = trace.summary
        assert summary["events"] == len(trace)
        assert summary["segments"] == len(trace.segments)
        assert summary["requests"] == 2
        kept = sum(int(segment.kept_table["nbytes"].sum()) for segment in trace.segments)
        assert summary["kept_bytes"] == kept
        assert summary["error"] is None
        assert "under way" not in repr(trace)


def test_a_request_that_was_made_before_the_block_is_missed_aloud(path, model):
    before = model.request(PROMPT, max_tokens=2)
    with (
        pytest.warns(UserWarning, match="run.haaw holds no run: .* made before it, or in a thread"),
        haaw.record(path),
    ):
        before.run()


def test_weights_that_a_learner_changed_are_another_model(path, tmp_path):
    """They can be written to, so each recording and each reader hashes them anew."""
    model = model_of("llama")
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=2)
    weight = model.transformer.named_weights()["layers.0.attention.norm"]
    weight *= 2
    with haaw.record(tmp_path / "after.haaw"):
        model.generate(PROMPT, max_tokens=2)
    assert_identical(replayed(tmp_path / "after.haaw", model))
    digests = {Trace(each).manifest["model"]["digest"] for each in (path, tmp_path / "after.haaw")}
    assert len(digests) == 2
    with (
        haaw.open_trace(path, model=model) as trace,
        pytest.raises(BadInputError, match=r"layers.0.attention.norm has other values"),
    ):
        trace.weights()


@pytest.fixture
def added_to_its_norm():
    """An operation of a learner's own, within which another runs."""
    weight_D = np.ones(4, dtype=np.float32)

    @op(out="y_TD", card=add.op.card)
    def added_to_its_norm(x_TD, y_TD):
        return x_TD + rms_norm(y_TD, weight_D, eps=1e-6)

    yield added_to_its_norm, weight_D
    del OPS["added_to_its_norm"]


@pytest.mark.parametrize("by", ["its function", "run"])
def test_an_operation_within_another_may_fill_what_is_held(path, monkeypatch, added_to_its_norm, by):
    monkeypatch.setattr(held, "MOST_HELD_BYTES", 0)
    monkeypatch.setattr(held, "COUNT_EVERY_NS", 0)
    around, weight_D = added_to_its_norm
    with haaw.record(path) as made:
        made.recorder.know_weights({"norm": weight_D})
        with recording(made.recorder, stage="decode", step=1, request=1):
            x = declare("x", np.ones((2, 4), dtype=np.float32))
            if by == "run":
                made.recorder.run(around.op, (x, x), {}, Scope(stage="decode", step=1, request=1))
            else:
                around(x, x)
            assert not made.recorder.held  # it is full after each, and noted
    with Trace(path) as trace:
        names = [event.name for event in trace if event.facts is None]
    assert names == ["x", "rms_norm", "added_to_its_norm"]


def test_an_interrupt_before_another_batch_begins(path, monkeypatch):
    weight_D, begin, calls = np.ones(4, dtype=np.float32), HeldOperations.begin, []

    def interrupted(self):
        calls.append(len(self))
        if len(calls) == 3:
            raise KeyboardInterrupt
        begin(self)

    inputs = [np.full((2, 4), step, dtype=np.float32) for step in range(4)]
    with haaw.record(path) as made:
        made.recorder.know_weights({"norm": weight_D})
        made.recorder.held.begin()
        monkeypatch.setattr(HeldOperations, "begin", interrupted)
        for step in range(4):
            with (
                contextlib.suppress(KeyboardInterrupt),
                recording(made.recorder, stage="decode", step=step, request=1),
            ):
                x = declare("x", inputs[step])
                for _ in range(5):
                    x = rms_norm(x, weight_D, eps=1e-6)
    assert len(calls) > 3
    with Trace(path) as trace:
        steps = [event.place.step for event in trace if event.kind == "operation"]
    assert steps == sorted(5 * [0, 1, 2, 3])  # none lost, none twice


LENGTHS = [*range(62, 67), *range(126, 131), *range(254, 259)]
"""How many arrays fill the room for rows to the last one, about."""


def test_a_long_list_of_arrays_leaves_room_for_what_follows(path):
    weight_D = np.ones(4, dtype=np.float32)
    join = Op(
        "merge_heads", lambda xs: np.zeros((2, 4), dtype=np.float32), ("xs",), ("y",), None, add.op.card
    )
    inputs = [np.zeros((2, 4), dtype=np.float32) for _ in LENGTHS]
    for length, given in zip(LENGTHS, inputs, strict=True):
        with haaw.record(path.with_name(f"{length}.haaw")) as made:
            made.recorder.know_weights({"norm": weight_D})
            with recording(made.recorder, stage="decode", step=1, request=1):
                x = declare("x", given)
                y = made.recorder.run(join, ([x] * length,), {}, Scope(stage="decode", step=1, request=1))
                rms_norm(y, weight_D, eps=1e-6)
        with Trace(path.with_name(f"{length}.haaw")) as trace:
            counts = [len(event.inputs) for event in trace if event.kind == "operation"]
        assert counts == [length, 2]


def hold(batch, result, end_ns):
    """Holds an operation that ended then, as the recorder does; whether the batch must be noted."""
    batch.extend((add.op, (), None, Scope(), result, 0, end_ns, _nothing.__code__, 0))
    return end_ns > batch.due_ns and batch.is_full(end_ns)


def _nothing() -> None:
    return


@pytest.mark.parametrize("result_bytes", [1 << 20, 3 << 20, 1 << 26])
def test_what_is_held_is_full_within_one_count_of_the_limit(result_bytes):
    batch, result, end_ns = HeldOperations(), np.empty(result_bytes, dtype=np.uint8), 1
    while not hold(batch, result, end_ns):
        end_ns += held.COUNT_EVERY_NS // 4
    most = held.MOST_HELD_BYTES / (result_bytes + held.OPERATION_BYTES)
    assert most <= len(batch) <= most + 6


def test_a_large_result_that_took_its_time_fills_what_is_held_at_once():
    batch = HeldOperations()
    assert not hold(batch, np.empty(4), 1)
    assert hold(batch, np.empty(held.MOST_HELD_BYTES), 2 + held.COUNT_EVERY_NS)


def test_another_batch_is_counted_from_its_own_beginning():
    batch, small = HeldOperations(), np.empty(4)
    assert not hold(batch, small, 1)
    batch.begin()
    assert hold(batch, np.empty(held.MOST_HELD_BYTES), 2)
    batch.begin()
    assert not hold(batch, small, 3)
    assert len(batch) == 1


class OnADevice:
    def __init__(self, nbytes):
        self.nbytes = nbytes


@pytest.mark.parametrize("several", [False, True])
def test_results_on_a_device_are_counted_each_since_they_take_no_time_here(several):
    batch, result = HeldOperations(), OnADevice(3 << 20)
    count = 0
    while not hold(batch, (result, result) if several and count % 2 else result, 1 + count):
        assert not hold(batch, None, 1 + count)  # a write gives nothing
        count += 1
    assert count < 6


@pytest.mark.parametrize("kind", ["several", "a window"])
def test_all_memory_of_a_result_counts(kind):
    def result():
        owner = np.empty(4 << 20, dtype=np.uint8)
        return (owner, owner.copy()) if kind == "several" else owner[:1]

    batch, end_ns = HeldOperations(), 1
    while not hold(batch, result(), end_ns):
        end_ns += held.COUNT_EVERY_NS + 1
    assert len(batch) <= 5


def test_small_results_are_held_for_a_whole_step():
    batch, result = HeldOperations(), np.empty(2048, dtype=np.uint8)
    for number in range(5000):
        assert not hold(batch, result, number * held.COUNT_EVERY_NS // 100)
    batch.close()
    assert batch.is_closed
    assert not len(batch)
    assert not hold(batch, result, 1 << 60)
    assert not len(batch)


ABANDONED = """
import sys
import haaw

with haaw.record(sys.argv[1]):
    stream = iter(haaw.load("tiny").stream("Once", max_tokens=9, cache=sys.argv[2]))
    next(stream)
cycle = [stream]  # which is collected last of all
cycle.append(cycle)
"""


@pytest.mark.parametrize("cache", ["dynamic", "paged"])
def test_a_stream_that_is_still_open_when_python_ends_says_nothing(path, cache):
    command = [sys.executable, "-W", "error", "-c", ABANDONED, str(path), cache]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


LOADED_WITHIN = """
import sys
import haaw

with haaw.record(sys.argv[1], keep=["replayable", "full: op=softmax"]):
    haaw.break_at(op="kv_append", stage="decode", step=99).clear()
    model = haaw.load("tiny")
    for cache in ("dynamic", "paged", "quantised"):
        model.generate("Once", max_tokens=3, cache=cache)
"""


def test_a_model_may_be_loaded_within_a_recording(path):
    """In a new process: nothing that defines operations has been imported when the recording begins."""
    command = [sys.executable, "-W", "error", "-c", LOADED_WITHIN, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with opened(path, haaw.load("tiny")) as trace:
        assert_identical(trace.replay())
        journey = [(fact.facts or {})["name"] for fact in trace.facts("journey")]
    assert journey.count("machine started") == journey.count("read weights") == 1


@pytest.fixture
def own_operation():
    """Defines an operation as a learner would; gone behind the test."""
    defined = []

    def define(name):
        def doubled(x_TD):
            return 2 * x_TD

        doubled.__name__ = name
        defined.append(name)
        return op(out="y_TD", card=add.op.card)(doubled)

    yield define
    for name in defined:
        OPS.pop(name, None)


def test_an_operation_of_ones_own_is_recorded_or_refused_by_name(path, own_operation):
    x_TD = np.ones((2, 4), dtype=np.float32)
    before = own_operation("doubled_before")
    with haaw.record(path) as made:
        within = own_operation("doubled_within")
        made.recorder.know_weights({"norm": np.ones(4, dtype=np.float32)})
        late = own_operation("doubled_late")
        with recording(made.recorder, stage="decode", step=1, request=1):
            within(before(declare("x", x_TD)))
        with (
            pytest.raises(OrphanError, match=r'"doubled_late" was defined after .* define it before'),
            recording(made.recorder, stage="decode", step=2, request=1),
        ):
            late(declare("x", x_TD))
        with recording(made.recorder, stage="decode", step=3, request=1):
            before(declare("x", x_TD))
    with Trace(path) as trace:
        ran = [(event.place.step, event.name) for event in trace if event.facts is None]
    assert ran == [
        *((1, name) for name in ("x", "doubled_before", "doubled_within")),
        (2, "x"),
        *((3, name) for name in ("x", "doubled_before")),
    ]


def test_whether_results_are_new_is_what_holding_each_of_them_says(rng):
    answers = set()
    for _ in range(300):
        buffers, arrays = Buffers(), [np.zeros(2) for _ in range(12)]
        weights = arrays[: rng.integers(0, 4)]  # whole ones, and windows
        buffers.add_weights(
            [weight[: 1 + number] for number, weight in enumerate(weights)], lambda array: 0, 0
        )
        for array in arrays[6:]:
            kind = rng.integers(3)
            if kind == 0:
                buffers.add_lasting(array)
            elif kind == 1:
                owners = []
                buffers.hold(array, array, 0, owners)
                buffers.release(owners)  # which somebody else still holds
        made = [arrays[at] for at in rng.integers(0, 12, rng.integers(0, 4))]
        try:
            for array in made:
                buffers.hold(array, array, 0, [])
            is_new = True
        except OrphanError:
            is_new = False
        buffers.held.clear()
        assert buffers.are_new(np.array(list(map(id, made)), dtype=np.int64)) is is_new
        answers.add(is_new)
    assert answers == {True, False}


def test_what_was_known_at_an_address_is_no_more_once_it_is_gone():
    buffers, array = Buffers(), np.zeros(2)
    buffers.add_lasting(array)
    key = np.array([id(array)], dtype=np.int64)
    assert not buffers.are_new(key)
    del array
    assert buffers.are_new(key)


def test_versions_are_each_buffers_own_and_their_places_are_used_again(rng):
    buffers, alive, written = Buffers(), {}, Counter()
    for number in range(2_000):
        kind = rng.choice([0, 3] if number < 200 else 4) if alive else 0
        key = int(rng.choice(list(alive))) if alive else 0
        if kind == 0 and len(alive) < 150:
            alive[number] = np.zeros(2)
            buffers.add_lasting(alive[number])
        elif kind == 1:
            del alive[key], written[key]
            buffers.end_step()
        elif kind == 2:  # known already: another number, and no writes yet
            buffers.add_lasting(alive[key])
            del written[key]
        elif alive:
            buffers.lasting_of(alive[key]).is_written()
            written[key] += 1
        assert buffers.are_new(np.array([id(np.zeros(3))], dtype=np.int64))
        assert not any(buffers.are_new(np.array([id(array)], dtype=np.int64)) for array in alive.values())
        assert len(buffers.lasting) == len(alive)  # the dead are forgotten when a step ends
        found = {key: buffers.lasting_of(array) for key, array in alive.items()}
        assert {key: lasting.version for key, lasting in found.items()} == {
            key: written[key] for key in alive
        }
        assert len({lasting.place for lasting in found.values()}) == len(alive)
    assert len(buffers.versions.counts) <= 256


@pytest.mark.parametrize("by_name", [False, True])
def test_of_two_weights_in_one_place_the_one_that_was_given_is_named(path, by_name):
    long_D = np.ones(8, dtype=np.float32)
    weights = {"long": long_D, "short": long_D[:4]}
    with haaw.record(path) as made:
        made.recorder.know_weights(weights)
        with recording(made.recorder, stage="decode", step=1, request=1):
            for weight_D in weights.values():
                x = declare("x", np.ones((2, len(weight_D)), dtype=np.float32))
                rms_norm(x, weight_D=weight_D, eps=1e-6) if by_name else rms_norm(x, weight_D, eps=1e-6)
    with Trace(path) as trace:
        norms = [event for event in trace if event.name == "rms_norm"]
        buffers = [event.inputs[1].window.buffer for event in norms]
        assert [buffer - buffers[0] for buffer in buffers] == [0, 1]
        assert [event.inputs[1].window.offset for event in norms] == [0, 0]
