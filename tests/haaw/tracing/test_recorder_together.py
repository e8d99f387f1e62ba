"""A step that repeats the one before it is noted at once. The plain way, one operation after another, is the oracle."""

import contextlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from support.interrupts import PACKAGE, interrupt_at, read_to_the_end
from support.traced import (
    CACHES,
    PROMPT,
    SAMPLING,
    assert_identical,
    model_of,
    nothing_stays,
    opened,
    replayed,
    same_answer,
    sound_after_interrupt,
    told,
    watched_matches,
)

import haaw
import haaw.models.llama
from haaw.ops.norms import rms_norm
from haaw.ops.op import Op
from haaw.ops.recorder import Scope, declare, recording
from haaw.tracing import array_headers, keeping, object_words, recorder, step_plan
from haaw.tracing.array_headers import BASE, DATA, DIMENSIONS, DTYPE, SHAPE, STRIDES
from haaw.tracing.buffers import OrphanError
from haaw.tracing.object_words import (
    FLOAT_BITS,
    INT_DIGITS,
    INT_SIZE,
    LOW_BITS,
    SIZE,
    TUPLE_ITEMS,
    TYPE,
    WORD_BYTES,
    identities,
    integers,
    references_to,
    words_at,
)
from haaw.tracing.questions import Questions
from haaw.tracing.record import Recording
from haaw.tracing.segment import Segment
from haaw.tracing.step_layouts import StepLayouts
from haaw.tracing.trace import Trace

TOKENS = 9


@pytest.fixture
def matches(monkeypatch) -> list[bool]:
    """Whether each batch that a plan was there for fitted it."""
    return watched_matches(monkeypatch)


def recorded(path: Path, model, *, keep: str = "full", prompt: Any = PROMPT, **options: Any):
    """Two requests, in one trace."""
    with haaw.record(path, keep=keep):
        first = model.generate(prompt, max_tokens=TOKENS, **options)
        return [first, model.generate(prompt[:5], max_tokens=6, **options)]


@pytest.mark.parametrize("keep", ["events", "replayable", "full"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "tiny"])
@pytest.mark.parametrize("heads", ["together", "separate"])
def test_the_rows_are_those_of_the_plain_way(tmp_path, monkeypatch, matches, family, keep, heads):
    model = model_of(family)
    prompt = {"prompt": "Once upon a time", "form": "raw"} if family == "tiny" else {}
    one = recorded(tmp_path / "together.haaw", model, keep=keep, heads=heads, **prompt)
    # Of 13 decode steps, two are learned from; separate heads are joined from a list, which no plan has.
    assert sum(matches) >= 8 if heads == "together" else not any(matches)
    monkeypatch.setattr(step_plan, "AVAILABLE", False)
    matches.clear()
    other = recorded(tmp_path / "plain.haaw", model, keep=keep, heads=heads, **prompt)
    assert not any(matches)
    assert all(map(same_answer, one, other))
    with (
        opened(tmp_path / "together.haaw", model) as together,
        opened(tmp_path / "plain.haaw", model) as plain,
    ):
        assert told(together) == told(plain)


def test_an_operation_is_noted_alike_by_its_function_and_by_run(tmp_path, monkeypatch):
    """As `run` does for a recorder that stands in between, such as one that stops a debugger."""
    model = model_of("llama")
    one = recorded(tmp_path / "by_function.haaw", model)
    asked: list[str] = []
    run = recorder.TraceRecorder.run

    def standing_between(self: Any, op: Op, *rest: Any) -> Any:
        asked.append(op.name)
        return run(self, op, *rest)

    monkeypatch.setattr(recorder.TraceRecorder, "run", standing_between)
    monkeypatch.setattr(recorder.TraceRecorder, "held", None)
    other = recorded(tmp_path / "by_run.haaw", model)
    assert all(map(same_answer, one, other))
    with (
        opened(tmp_path / "by_function.haaw", model) as by_function,
        opened(tmp_path / "by_run.haaw", model) as by_run,
    ):
        assert told(by_function) == told(by_run)
        assert asked == [event.name for event in by_run if event.kind == "operation"]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sampling", [{}, SAMPLING], ids=["greedy", "sampled"])
def test_every_cache_and_the_draw_are_noted_alike(tmp_path, monkeypatch, cache, sampling):
    model = model_of("llama")
    one = recorded(tmp_path / "together.haaw", model, **CACHES[cache], **sampling)
    monkeypatch.setattr(step_plan, "AVAILABLE", False)
    other = recorded(tmp_path / "plain.haaw", model, **CACHES[cache], **sampling)
    assert all(map(same_answer, one, other))
    with (
        opened(tmp_path / "together.haaw", model) as together,
        opened(tmp_path / "plain.haaw", model) as plain,
    ):
        assert told(together) == told(plain)
    assert_identical(replayed(tmp_path / "together.haaw", model))


def changed(monkeypatch, name: str, make: Any) -> None:
    """Lets the model's code call `make` with the operation, the number of the call and the arguments."""
    plain, calls = getattr(haaw.models.llama, name), [0]

    def run(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return make(plain, calls[0], *args, **kwargs)

    monkeypatch.setattr(haaw.models.llama, name, run)


@pytest.mark.parametrize(("name", "calls_a_step"), [("swiglu", 2), ("add", 4), ("rms_norm", 5)])
def test_an_array_that_nothing_explains_is_still_found(tmp_path, monkeypatch, matches, name, calls_a_step):
    model = model_of("llama")

    def copied(plain: Any, call: int, x: Any, *rest: Any, **named: Any) -> Any:
        return plain(x.copy() if call > 6 * calls_a_step else x, *rest, **named)

    changed(monkeypatch, name, copied)
    with haaw.record(tmp_path / "run.haaw") as recording:
        with pytest.raises(OrphanError, match=f"{name} reads"):
            model.generate(PROMPT, max_tokens=TOKENS)
    assert any(matches)
    nothing_stays(recording.recorder)


def test_a_result_in_memory_that_is_known_is_still_refused(tmp_path, monkeypatch, matches):
    """Such an operation would change what a trace says was read; found by `hold` in the plain way."""
    model = model_of("llama")
    op: Op = haaw.models.llama.swiglu.op
    first: list[Any] = []
    plain = op.plain

    def shared(*args: Any) -> Any:
        result = plain(*args)
        first.append(result)
        return result if len(first) < 15 or len(first) % 2 else first[-2]

    shared_op = Op(op.name, shared, op.parameters, op.out, op.writes, op.card)
    run = recorder.TraceRecorder.run

    def with_shared(self: Any, given: Op, *rest: Any) -> Any:
        return run(self, shared_op if given is op else given, *rest)

    monkeypatch.setattr(recorder.TraceRecorder, "run", with_shared)
    monkeypatch.setattr(recorder.TraceRecorder, "held", None)  # so that `run` is asked
    with haaw.record(tmp_path / "run.haaw"), pytest.raises(OrphanError, match="memory that is already known"):
        model.generate(PROMPT, max_tokens=TOKENS)
    assert any(matches)


@pytest.mark.parametrize("run", ["grows", "again", "in turns"])
def test_a_plan_fits_another_cache_in_the_place_of_the_one_before(tmp_path, monkeypatch, matches, run):
    """A cache that grew has other buffers, and so has another request."""
    model = model_of("llama")

    def steps(path: Path) -> None:
        with haaw.record(path, keep="full"):
            if run == "grows":
                model.generate(PROMPT, max_tokens=30, cache="dynamic", cache_options={"first_capacity": 3})
            elif run == "again":
                for length in (3, 7):
                    model.generate(PROMPT[:length], max_tokens=8)
            else:
                streams = [iter(model.request(PROMPT[:length], max_tokens=8)) for length in (3, 7)]
                for _ in range(8):
                    for stream in streams:
                        next(stream)

    steps(tmp_path / "together.haaw")
    assert len(matches) >= 12
    assert all(matches)
    monkeypatch.setattr(step_plan, "AVAILABLE", False)
    steps(tmp_path / "plain.haaw")
    with Trace(tmp_path / "together.haaw") as together, Trace(tmp_path / "plain.haaw") as plain:
        assert told(together) == told(plain)
    assert_identical(replayed(tmp_path / "together.haaw", model))


def test_a_plan_that_does_not_fit_is_learned_anew(tmp_path, monkeypatch, matches):
    model = model_of("llama")
    of_five_steps = 5 * 5

    def by_name(plain: Any, call: int, x: Any, weight: Any, eps: float) -> Any:
        return plain(x, weight, eps=eps) if call <= of_five_steps else plain(x, weight_D=weight, eps=eps)

    changed(monkeypatch, "rms_norm", by_name)
    with haaw.record(tmp_path / "run.haaw"):
        model.generate(PROMPT[:1], max_tokens=16)
    assert matches.count(False) == 1
    assert matches.index(False) < 3
    assert matches.count(True) > 8
    assert_identical(replayed(tmp_path / "run.haaw", model))


def test_ctrl_c_while_a_step_is_noted_at_once(tmp_path, rng):
    model = model_of("llama")
    packages = tuple(
        f"{PACKAGE}/tracing/{name}" for name in ("recorder.py", "step_", "buffers.py", "held.py")
    )

    def interrupted(strike: int) -> int:
        path = tmp_path / f"{strike}.haaw"
        with haaw.record(path) as recording:
            request = model.request(PROMPT[:3], max_tokens=6)
            with (
                contextlib.suppress(KeyboardInterrupt),
                interrupt_at(strike, every="instruction", packages=packages) as seen,
            ):
                read_to_the_end(request)
            after = model.generate(PROMPT[:3], max_tokens=6)
        sound_after_interrupt(path, model, recording.recorder, after)
        return seen[0]

    total = int(0.98 * min(interrupted(0) for _ in range(3)))  # the first has more, until all is remembered
    # The last third of the instructions belongs to steps that a plan fits.
    for strike in np.sort(rng.integers(int(0.6 * total), total, 10)).tolist():
        assert interrupted(strike) == strike  # it came


@pytest.mark.parametrize("values", [
    (0.0, -0.0), (1, True), (1.0, float("inf")), (999, 1000), (7, 10**30), ("a", "it's"), ((1, 2), (1.0, 2)), (None, 0),
], ids=str)  # fmt: skip
def test_arguments_that_all_change_are_written_anew(tmp_path, values):
    x_TD, weight_D = np.ones((2, 4), dtype=np.float32), np.ones(4, dtype=np.float32)
    names = ("x", "weight", "eps")
    norm = Op(
        "rms_norm", lambda x, weight, eps: np.ones((2, 4), np.float32), names, ("y",), None, rms_norm.op.card
    )
    with haaw.record(tmp_path / "run.haaw") as made:
        made.recorder.know_weights({"norm": weight_D})
        for step in range(6):
            with recording(made.recorder, stage="decode", step=step, request=1):
                x = declare("x", x_TD.copy())
                for _ in range(40):
                    eps = {"eps": values[step == 3]}
                    x = made.recorder.run(norm, (x, weight_D), eps, Scope("decode", step, request=1))
    with Trace(tmp_path / "run.haaw") as trace:
        for step in range(6):
            found = {repr(each.args["eps"]) for each in trace if each.place.step == step and each.inputs}
            wanted = values[step == 3]
            assert found == {repr(list(wanted) if isinstance(wanted, tuple) else wanted)}


@pytest.mark.parametrize("file", ["step_events.py", "step_array_rows.py"])
def test_ctrl_c_where_columns_are_filled_in_that_seldom_change(tmp_path, matches, file):
    """Arguments and lengths that are equal in the fourth step alone give its rows other numbers of tables."""
    x_TD, weight_D = np.ones((2, 4), dtype=np.float32), np.ones(4, dtype=np.float32)
    usual, fourth = [(2, 1.5), (5, 2.5)] * 20, [(2, 1.5), (2, 1.5)] * 20
    results: list[np.ndarray] = []
    norm = replace(
        planted("rms_norm", lambda x, weight, eps: results.pop()), parameters=("x_TD", "weight_D", "eps")
    )

    def step(made: Recording, number: int, calls: list[tuple[int, float]]) -> None:
        with recording(made.recorder, stage="decode", step=number, request=1):
            x = declare("x", x_TD.copy())
            for rows, eps in calls:
                results.append(np.full((rows, 4), eps, dtype=np.float32))
                where = Scope("decode", number, request=1)
                x = traced(made.recorder, norm, (x, weight_D), {"eps": eps}, where)

    def interrupted(strike: int) -> int:
        """Six steps, the fourth with Ctrl-C at a line of the file; gives how many lines it had until then."""
        path = tmp_path / f"{strike}.haaw"
        with haaw.record(path, keep="full") as made:
            made.recorder.know_weights({"norm": weight_D})
            for number in range(3):
                step(made, number, usual)
            with (
                contextlib.suppress(KeyboardInterrupt),
                interrupt_at(strike, every="line", packages=(f"{PACKAGE}/tracing/{file}",)) as seen,
            ):
                step(made, 3, fourth)
            for number in (4, 5):
                step(made, number, usual)
        with Trace(path) as trace:
            assert trace.verify() == []
            for number in range(6):
                calls = fourth if number == 3 else usual
                norms = [each for each in trace if each.place.step == number and each.kind == "operation"]
                made_as = [(each.outputs[0].window.layout.shape[0], each.args["eps"]) for each in norms]
                assert made_as == calls
                read = [each.inputs[0].window.layout.shape[0] for each in norms]
                assert read == [2, *(rows for rows, _ in calls[:-1])]
        return seen[0]

    lines = interrupted(0)
    assert matches == [True] * 4
    assert lines > 5
    for strike in range(1, lines + 1):
        assert interrupted(strike) == strike  # it came


@pytest.mark.parametrize("together", [True, False])
def test_equal_arguments_that_are_not_the_same_are_told_apart(tmp_path, monkeypatch, together):
    """1, 1.0 and True are equal, and so are 0.0 and -0.0; whoever runs an operation again needs the right one."""
    monkeypatch.setattr(step_plan, "AVAILABLE", together)
    values, swapped = [0.0, -0.0, 1, 1.0, True, 0, False], [-0.0, 0.0, 1, 1.0, True, 0, False]
    asked = [6 * values] * 3 + [3 * values + 3 * swapped]
    x_TD, weight_D = np.ones((2, 4), dtype=np.float32), np.ones(4, dtype=np.float32)
    with haaw.record(tmp_path / "run.haaw") as made:
        made.recorder.know_weights({"norm": weight_D})
        for step in range(4):
            with recording(made.recorder, stage="decode", step=step, request=1):
                x = declare("x", x_TD.copy())
                for eps in asked[step]:
                    x = rms_norm(x, weight_D, eps=eps)
    with Trace(tmp_path / "run.haaw") as trace:
        for step in range(4):
            norms = [each for each in trace if each.place.step == step and each.name == "rms_norm"]
            assert [repr(each.args["eps"]) for each in norms] == list(map(repr, asked[step]))


def planted(name: str, plain: Any, out: tuple[str, ...] = ("y_TD",)) -> Op:
    """An operation of our own under the name of one that there is."""
    card = rms_norm.op.card
    return Op(name, plain, ("x_TD", "weight_D"), out, None, card)


def steps_of(path: Path, op: Op, weight_D: np.ndarray, steps: int = 4) -> Trace:
    """A trace of steps in which one operation runs forty times on an input and a weight."""
    inputs = [np.full((2, 4), step, dtype=np.float32) for step in range(steps)]
    with haaw.record(path, keep="full") as made:
        made.recorder.know_weights({"norm": weight_D})
        for step in range(steps):
            with recording(made.recorder, stage="decode", step=step, request=1):
                x_TD = declare("x", inputs[step])
                where = Scope(stage="decode", step=step, request=1)

                def call(args: Any = (x_TD, weight_D), where: Scope = where) -> None:
                    made.recorder.run(op, args, {}, where)

                for _ in range(40):
                    call()
    return Trace(path)


@pytest.mark.parametrize("kind", [tuple, list])
def test_several_results_in_a_tuple_or_a_list(tmp_path, monkeypatch, matches, kind):
    """A list is laid out otherwise than a tuple, and was once read like one."""
    op = planted("rope_angles", lambda x_TD, weight_D: kind((x_TD + 1, x_TD * 2)), ("a", "b"))
    weight_D = np.ones(4, dtype=np.float32)
    with steps_of(tmp_path / "together.haaw", op, weight_D) as together:
        assert any(matches) == (kind is tuple)
        monkeypatch.setattr(step_plan, "AVAILABLE", False)
        with steps_of(tmp_path / "plain.haaw", op, weight_D) as plain:
            assert told(together) == told(plain)


def test_mapped_weights_are_noted_like_others(tmp_path):
    np.save(tmp_path / "w.npy", np.ones(4, dtype=np.float32))
    mapped_D = np.load(tmp_path / "w.npy", mmap_mode="r")
    op = planted("rms_norm", lambda x_TD, weight_D: x_TD * np.asarray(weight_D))
    with steps_of(tmp_path / "mapped.haaw", op, mapped_D) as mapped:
        with steps_of(tmp_path / "plain.haaw", op, np.ones(4, dtype=np.float32)) as plain:
            assert told(mapped) == told(plain)


@pytest.mark.parametrize("what", ["a weight", "a window on it"])
def test_a_result_that_is_a_weight_is_refused(tmp_path, what):
    weight_D = np.ones(4, dtype=np.float32)
    op = planted("rms_norm", lambda x_TD, weight_D: weight_D if what == "a weight" else weight_D[1:])
    with pytest.raises(OrphanError, match="memory that is already known"):
        steps_of(tmp_path / "run.haaw", op, weight_D)


def test_a_recording_that_ends_within_an_operation_stays_ended(tmp_path):
    weight_D = np.ones(4, dtype=np.float32)
    with haaw.record(tmp_path / "run.haaw") as made:
        made.recorder.know_weights({"norm": weight_D})

        def ends(x_TD: Any, weight_D: Any) -> Any:
            made.recorder.close()
            return np.zeros((1 << 23,), dtype=np.float32)  # more than is held

        with recording(made.recorder, stage="decode", step=1, request=1):
            x_TD = declare("x", np.ones((2, 4), dtype=np.float32))
            made.recorder.run(planted("rms_norm", ends), (x_TD, weight_D), {}, Scope(stage="decode", step=1))
            assert made.recorder.closed
            rms_norm(np.ones((2, 4), dtype=np.float32), weight_D, eps=1.0)
        assert made.recorder.closed


def test_ctrl_c_while_values_are_kept(tmp_path, rng, monkeypatch):
    """Small ones go to the arena, large ones to members of their own; an interrupt may come at any line."""
    monkeypatch.setattr(keeping, "SMALL_BYTES", 300)
    model = model_of("llama")

    def interrupted(strike: int) -> int:
        path = tmp_path / f"{strike}.haaw"
        came = False
        with haaw.record(path, keep="full") as recording_:
            request = model.request(PROMPT[:3], max_tokens=4)
            try:
                with interrupt_at(strike, every="line", packages=(f"{PACKAGE}/tracing/keeping.py",)) as seen:
                    read_to_the_end(request)
            except KeyboardInterrupt:
                came = True
            after = model.generate(PROMPT[:3], max_tokens=4)
        assert came == (strike > 0)
        sound_after_interrupt(path, model, recording_.recorder, after)
        return seen[0]

    total = interrupted(0)
    for strike in np.sort(rng.integers(1, total, 12)):
        interrupted(int(strike))


HOW = {
    "own": lambda values: values,
    "a window": lambda values: np.concatenate((values, values))[len(values) :],
    "transposed": lambda values: values.T,
    "float64": lambda values: values.astype(np.float64),
    "int32": lambda values: values.astype(np.int32),
    "flat": lambda values: values.reshape(-1).copy(),
}
EPS = [0.0, -0.0, 1.0, 2.0, 1, 2, True, False, None, "a", (1, 2), (1.0, 2), (-0.0,), (0.0,)]


def random_operation(rng: np.random.Generator, at: int) -> dict[str, Any]:
    """An operation that reads the weight (-1), the input (-2), the cache (-3) or an earlier result, or a window.

    `kv_append` writes what it reads to the cache, from row `start` on.
    """
    return {
        "name": str(rng.choice(["add", "rms_norm", "rope_angles", "kv_append"])),
        "reads": int(rng.integers(-3, at)) if at else -2,
        "start": int(rng.integers(3)),
        "is_window": bool(rng.random() < 0.3),
        "eps": int(rng.integers(len(EPS))) if rng.random() < 0.5 else None,
        "how": str(rng.choice(list(HOW), p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])),
        "rows": int(rng.integers(1, 4)),
        "layer": int(rng.integers(3)),
        "site": int(rng.integers(2)),
        "is_copied": False,
    }


def perturbed(rng: np.random.Generator, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operations of a step with one thing changed, or all of them in other layers."""
    if rng.random() < 0.1:
        return [{**each, "layer": (each["layer"] + 1) % 3} for each in operations]
    at = int(rng.integers(1, len(operations)))
    name = str(rng.choice(list(operations[at])))
    new = {**random_operation(rng, at), "is_copied": True}[name]
    return [*operations[:at], {**operations[at], name: new}, *operations[at + 1 :]]


def append(cache: np.ndarray, new: np.ndarray, start: int) -> None:
    """Writes to one row, as long as what is read fits into it."""
    cache[0] = np.resize(new, 4)


def run_steps(
    path: Path, steps: list[list[dict[str, Any]]], weight_D: np.ndarray, renewed: frozenset[int] = frozenset()
) -> list[str]:
    """Records the steps, before some of which another cache takes the place of the first; gives the errors."""
    now: list[Any] = []
    ops = {
        name: Op(name, lambda *args, **named: now.pop(), ("x", "weight", "eps"), out, None, rms_norm.op.card)
        for name, out in (("add", ("y",)), ("rms_norm", ("y",)), ("rope_angles", ("a", "b")))
    }
    card = rms_norm.op.card
    ops["kv_append"] = Op("kv_append", append, ("cache", "new", "start"), (), "cache", card)
    allocate = Op("kv_allocate", lambda: np.zeros((8, 4), dtype=np.float32), (), ("cache",), None, card)
    caches: list[np.ndarray] = []
    inputs = [np.full((2, 4), step, dtype=np.float32) for step in range(len(steps))]
    errors: list[str] = []

    def step(recorder_: Any, number: int, operations: list[dict[str, Any]]) -> None:
        results: list[Any] = [caches[-1], declare("x", inputs[number]), weight_D]
        scopes = [Scope("decode", number, layer=layer, request=1) for layer in range(3)]
        for one in operations:
            read = results[one["reads"] + 3]
            read = read[1:] if one["is_window"] else read
            read = read.copy() if one["is_copied"] else read
            if one["name"] == "kv_append":
                new, start = read[:1], one["start"] + number % 2
                target = caches[-1][start:] if one["rows"] > 1 else caches[-1]
                traced(recorder_, ops["kv_append"], (target, new, start), {}, scopes[one["layer"]])
                results.append(new)
                continue
            values = HOW[one["how"]](np.full((one["rows"] + number % 3, 4), len(results), dtype=np.float32))
            several = one["name"] == "rope_angles"
            now.append((values, values * 2) if several else values)
            given = ops[one["name"]], (read, weight_D), {} if one["eps"] is None else {"eps": EPS[one["eps"]]}
            if one["site"]:
                result = traced(recorder_, *given, scopes[one["layer"]])
            else:
                result = traced(recorder_, *given, scopes[one["layer"]])
            results.append(result[1] if several else result)

    with haaw.record(path, keep="full") as made:
        made.recorder.know_weights({"norm": weight_D})
        for number, operations in enumerate(steps):
            if not number or number in renewed:
                with recording(made.recorder, stage="decode", step=number, request=1):
                    caches.append(traced(made.recorder, allocate, (), {}, Scope("decode", number, request=1)))
                caches[:-2] = []  # that of before may live on, or not
            try:
                with recording(made.recorder, stage="decode", step=number, request=1):
                    step(made.recorder, number, operations)
            except OrphanError as error:
                errors.append(f"{number}: {error}")
    return errors


def traced(recorder_: Any, *given: Any) -> Any:
    """Stands where the function of `@op` stands, so that its caller is the site."""
    return recorder_.run(*given)


def test_random_steps_are_noted_alike(tmp_path, monkeypatch, matches, rng):
    """Whatever a step has in common with the one before it: another argument, shape, place, or nothing at all."""
    weight_D = np.ones(4, dtype=np.float32)
    for program in range(40):
        operations = [random_operation(rng, at) for at in range(36)]
        steps = [operations if rng.random() < 0.6 else perturbed(rng, operations) for _ in range(7)]
        renewed = frozenset(np.flatnonzero(rng.random(7) < 0.2).tolist())
        monkeypatch.setattr(step_plan, "AVAILABLE", True)
        errors = run_steps(tmp_path / f"{program}.haaw", steps, weight_D, renewed)
        monkeypatch.setattr(step_plan, "AVAILABLE", False)
        assert errors == run_steps(tmp_path / f"{program}-plain.haaw", steps, weight_D, renewed)
        with Trace(tmp_path / f"{program}.haaw") as one, Trace(tmp_path / f"{program}-plain.haaw") as other:
            assert told(one) == told(other)
    assert matches.count(True) > 20
    assert matches.count(False) > 5


class Call:
    """One operation of a step that is to differ from the step before it."""

    def __init__(self, op: Op, args: Any, named: dict[str, Any], result: Any, scope: Scope) -> None:
        self.op, self.args, self.named, self.result, self.scope = op, args, named, result, scope


class Around(list[Any]):
    """What a deviation may use: the calls of the step, and arrays from elsewhere."""

    weight_D: np.ndarray
    cache_PD: np.ndarray
    kept: np.ndarray


AT = 18
"""Which call differs: it and the two behind it are of one kind, then come one with two results, a write to the cache,
and one that reads the cache whole."""

BYTES = bytes(range(32))


def move(calls: Around, layer: int, **changes: int) -> None:
    """The calls of a layer stand elsewhere, all in one scope as before."""
    scope = next(call.scope for call in calls if call.scope.layer == layer)._replace(**changes)
    for call in calls:
        call.scope = scope if call.scope.layer == layer else call.scope


DEVIATIONS: dict[str, Callable[[Around], Any]] = {
    "one argument more": lambda c: setattr(c[AT], "args", (*c[AT].args, 7)),
    "one argument less": lambda c: setattr(c[AT], "args", c[AT].args[:-1]),
    "arguments in a list": lambda c: setattr(c[AT], "args", [*c[AT].args]),
    "named ones in another mapping": lambda c: setattr(c[AT], "named", MappingProxyType(c[AT].named)),
    "named ones where there were none": lambda c: setattr(c[AT + 3], "named", {"eps": 1.5}),
    "another name": lambda c: setattr(c[AT], "named", {"eps": 1.5, "bias": 2}),
    "names moved": lambda c: (
        setattr(c[AT], "named", {"eps": 1.5}), setattr(c[AT + 1], "named", {"gain": 2, "bias": 3}),
    ),
    "named ones in another order": lambda c: setattr(c[AT], "named", {"gain": 2, "eps": 1.5}),
    "no named ones": lambda c: setattr(c[AT], "named", {}),
    "a number of another type": lambda c: setattr(c[AT], "named", {"eps": 1.5, "gain": True}),
    "a scalar of NumPy": lambda c: setattr(c[AT], "named", {"eps": np.float64(1.5), "gain": 2}),
    "another integer": lambda c: setattr(c[AT], "named", {"eps": 1.5, "gain": 99_999}),
    "another float": lambda c: setattr(c[AT], "named", {"eps": 2.5, "gain": 2}),
    "a tuple with another type": lambda c: setattr(c[AT + 2], "named", {"eps": (1, 2.0), "gain": 2}),
    "a tuple of arrays": lambda c: setattr(c[AT + 2], "named", {"eps": (c.weight_D,), "gain": 2}),
    "a tuple with other numbers": lambda c: setattr(c[AT + 2], "named", {"eps": (1, 3), "gain": 2}),
    "a result that is a window": lambda c: setattr(c[AT], "result", np.concatenate((c[AT].result, c[AT].result))[2:]),
    "a result that is a subclass": lambda c: setattr(c[AT], "result", c[AT].result.view(np.memmap)),
    "a result on bytes": lambda c: setattr(c[AT + 2], "result", np.ndarray((2, 4), np.float32, BYTES)),
    "a result on a window on bytes": lambda c: setattr(
        c[AT + 2], "result", np.frombuffer(BYTES, np.float32).reshape(2, 4)
    ),
    "a result that owns its memory": lambda c: setattr(c[AT + 2], "result", c[AT].result.copy()),
    "a result that is a weight": lambda c: setattr(c[AT], "result", c.weight_D),
    "a result within the weights": lambda c: setattr(c[AT + 2], "result", c.weight_D.base[2:4]),
    "a result that is the cache": lambda c: setattr(c[AT], "result", c.cache_PD),
    "the result of another": lambda c: setattr(c[AT], "result", c[AT + 1].result),
    "several in a list": lambda c: setattr(c[AT + 3], "result", [*c[AT + 3].result]),
    "several with a number": lambda c: setattr(c[AT + 3], "result", (c[AT + 3].result[0], 7.5)),
    "three of several": lambda c: setattr(c[39], "result", (*c[39].result, c[AT].result.copy())),
    "a window on the cache": lambda c: setattr(c[AT + 5], "args", (c.cache_PD[:], c.weight_D)),
    "what was kept from an earlier step": lambda c: setattr(c[AT + 1], "args", (c.kept, c.weight_D)),
    "an old result is written": lambda c: setattr(c[AT + 4], "args", (c.cache_PD, c.kept[:1], AT + 4)),
    "the cache is written to itself": lambda c: setattr(c[AT + 4], "args", (c.cache_PD, c.cache_PD[1:2], AT + 4)),
    "another step in one layer": lambda c: move(c, 1, step=77),
    "another request in one layer": lambda c: move(c, 1, request=2),
    "another step": lambda c: setattr(c[AT], "scope", c[AT].scope._replace(step=77)),
    "another request": lambda c: setattr(c[AT], "scope", c[AT].scope._replace(request=2)),
    "another layer": lambda c: setattr(c[AT], "scope", c[AT].scope._replace(layer=9)),
    "a copy of the scope": lambda c: setattr(c[AT], "scope", c[AT].scope._replace()),
}  # fmt: skip
MAY_FIT = {"a copy of the scope"}
"""Nothing of it can be seen in the trace."""

MUST_FIT = {None, "arguments in a list", "named ones in another mapping"}
"""What is held is of one type."""


def run_calls(path: Path, deviation: str | None) -> list[str]:
    """Four steps of 40 calls, the last of which deviates; gives the errors that came."""
    card = rms_norm.op.card
    weight_D = np.ones((8, 4), dtype=np.float32)[0]
    now: list[Any] = []

    def plain(*args: Any, **named: Any) -> Any:
        return now.pop()

    names = ("x", "weight", "eps", "gain", "bias", "gain_")
    norm = Op("rms_norm", plain, names, ("y",), None, card)
    angles = Op("rope_angles", plain, names, ("a", "b"), None, card)
    append_ = Op("kv_append", append, ("cache", "new", "start"), (), "cache", card)
    allocate = Op("kv_allocate", lambda: np.zeros((8, 4), dtype=np.float32), (), ("cache",), None, card)
    errors: list[str] = []
    calls = Around()
    calls.weight_D = weight_D

    def run(recorder_: Any, number: int) -> None:
        if not number:
            calls.cache_PD = traced(recorder_, allocate, (), {}, Scope("decode", number, request=1))
        x = declare("x", np.full((2, 4), number, dtype=np.float32))
        scopes = [Scope("decode", number, layer=layer, request=1) for layer in range(2)]
        calls.clear()
        read: Any = x
        for at in range(40):
            values = np.full((2, 4), 100 * number + at, dtype=np.float32)
            kind = at % 6
            scope = scopes[kind == 1]
            if kind == 2:
                window = np.concatenate((values, values))[2:]
                calls.append(Call(norm, (read, weight_D), {"eps": (1, 2), "gain": 2}, window, scope))
            elif kind == 3:
                calls.append(Call(angles, (read, weight_D), {}, (values, values * 2), scope))
            elif kind == 4:
                calls.append(Call(append_, (calls.cache_PD, x[:1], at), {}, None, scope))
            elif kind == 5:
                calls.append(Call(norm, (calls.cache_PD, weight_D), {}, values, scope))
            elif kind == 1:
                calls.append(Call(norm, (read, weight_D), {"bias": 3}, values, scope))
            else:
                calls.append(Call(norm, (read, weight_D), {"eps": 1.5, "gain": 2}, values, scope))
            if kind in (0, 1, 2):
                read = calls[-1].result
        if number == 1:
            calls.kept = calls[AT].result
        if number == 3 and deviation is not None:
            before = [call.result for call in calls]
            DEVIATIONS[deviation](calls)
            for old, new in zip(before, [call.result for call in calls], strict=True):
                if type(old) is np.ndarray and old is not new:
                    for call in calls:
                        call.args = type(call.args)(new if each is old else each for each in call.args)
        for call in calls:
            now.append(call.result)
            traced(recorder_, call.op, call.args, call.named, call.scope)
            now.clear()

    with haaw.record(path, keep="full") as made:
        made.recorder.know_weights({"norm": weight_D})
        for number in range(4):
            try:
                with recording(made.recorder, stage="decode", step=number, request=1):
                    run(made.recorder, number)
            except (OrphanError, TypeError, ValueError, AttributeError) as error:
                errors.append(f"{number}: {type(error).__name__} {error}")
    return errors


@pytest.mark.parametrize("deviation", [None, *DEVIATIONS])
def test_a_step_that_differs_in_one_thing_is_noted_the_plain_way(tmp_path, monkeypatch, matches, deviation):
    errors = run_calls(tmp_path / "run.haaw", deviation)
    assert matches[0] is True
    assert deviation in MAY_FIT or matches[1] is (deviation in MUST_FIT)
    monkeypatch.setattr(step_plan, "AVAILABLE", False)
    assert errors == run_calls(tmp_path / "plain.haaw", deviation)
    with Trace(tmp_path / "run.haaw") as one, Trace(tmp_path / "plain.haaw") as other:
        assert told(one) == told(other)


@pytest.mark.parametrize(("time_ns", "first"), [(5, 0), (1 << 61, 0), (1 << 61, 36)])
def test_times_that_are_no_numbers_of_two_digits(tmp_path, monkeypatch, matches, time_ns, first):
    run, count = recorder.TraceRecorder.run, itertools.count()

    def at_another_time(self, op, args, kwargs, scope):
        if scope.step == 3 and next(count) == first:  # from then on, since a clock goes forwards
            monkeypatch.setattr(recorder, "perf_counter_ns", lambda: time_ns)
        return run(self, op, args, kwargs, scope)

    monkeypatch.setattr(recorder.TraceRecorder, "run", at_another_time)
    assert run_calls(tmp_path / "run.haaw", None) == []
    assert matches == [True, False]
    with Trace(tmp_path / "run.haaw") as trace:
        start_ns = [event.start_ns for event in trace if event.place.step == 3 and event.name == "rms_norm"][
            -1
        ]
        assert start_ns < 0 if time_ns == 5 else start_ns > 1 << 60


class TestObjectWords:
    """Python's own `id`, `type`, `len` and `getrefcount` are the oracle."""

    def test_they_can_be_read_here(self):
        assert object_words.AVAILABLE

    def test_they_are_what_python_says(self, rng):
        kinds = [
            7,
            2**80,
            "text",
            "löng" * 99,
            2.5,
            None,
            b"",
            {},
            [],
            (1, 2),
            object(),
            np.zeros(3),
            int,
            len,
        ]
        held = [kinds[at] for at in rng.integers(0, len(kinds), 500)]
        found = identities(held)
        assert found.tolist() == list(map(id, held))
        assert identities(tuple(held)).tolist() == found.tolist()
        assert words_at(found + TYPE).tolist() == [id(type(each)) for each in held]
        tuples = [tuple(held[:n]) for n in rng.integers(0, 40, 100)]
        found = identities(tuples)
        assert words_at(found + SIZE).tolist() == list(map(len, tuples))
        for at, each in zip(found.tolist(), tuples, strict=True):
            items = words_at(at + TUPLE_ITEMS + WORD_BYTES * np.arange(len(each)))
            assert items.tolist() == list(map(id, each))

    def test_numbers(self, rng):
        floats = [0.0, -0.0, 1.5, float("inf"), float("nan"), *rng.standard_normal(50).tolist()]
        bits = words_at(identities(floats) + FLOAT_BITS)
        assert bits.view(np.float64).tobytes() == np.array(floats).tobytes()
        times = [1 << 30, (1 << 60) - 1, *rng.integers(1 << 30, 1 << 60, 100).tolist()]
        found = identities(times)
        assert integers(words_at(found + INT_DIGITS)).tolist() == times
        assert len(set(words_at(found + INT_SIZE).tolist())) == 1
        for other in (0, 5, (1 << 30) - 1, 1 << 60, -(1 << 40)):
            held = [other]
            assert words_at(identities(held) + INT_SIZE)[0] != words_at(found + INT_SIZE)[0]

    def test_references(self, rng):
        held = [object() for _ in range(50)]
        more = [held[at] for at in rng.integers(0, 50, 200)]
        counts = [sys.getrefcount(each) - 2 for each in held]  # the loop variable and the argument
        assert references_to(held).tolist() == counts
        assert sum(counts) == len(held) + len(more)

    def test_what_was_found_is_a_copy(self):
        held = [object(), object()]
        found = identities(held)
        before = found.tolist()
        held.clear()
        assert found.tolist() == before
        assert identities([]).tolist() == []


class TestHeaders:
    """NumPy's own attributes are the oracle."""

    def test_they_can_be_read_here(self):
        assert array_headers.AVAILABLE

    def test_they_are_what_the_attributes_say(self, rng):
        arrays = []
        for _ in range(300):
            shape = tuple(int(n) for n in rng.integers(0, 5, rng.integers(0, 5)))
            dtype = rng.choice(["f4", "f8", "i8", "u1", "f2", "?"])
            array = np.zeros(shape, dtype=dtype)
            if rng.random() < 0.5 and array.ndim:
                array = array.swapaxes(0, -1)[:: int(rng.choice([1, 2, -1]))]
            arrays.append(array)
        found = identities(arrays)
        addresses = [each.__array_interface__["data"][0] for each in arrays]
        assert words_at(found + DATA).tolist() == addresses
        assert (words_at(found + DIMENSIONS) & LOW_BITS).tolist() == [each.ndim for each in arrays]
        bases = [0 if each.base is None else id(each.base) for each in arrays]
        assert words_at(found + BASE).tolist() == bases
        assert words_at(found + DTYPE).tolist() == [id(each.dtype) for each in arrays]
        for each, shape, strides in zip(
            arrays, words_at(found + SHAPE).tolist(), words_at(found + STRIDES).tolist(), strict=True
        ):
            axes = WORD_BYTES * np.arange(each.ndim)
            assert tuple(words_at(shape + axes).tolist()) == each.shape
            assert tuple(words_at(strides + axes).tolist()) == each.strides


class TestQuestions:
    def test_answers_come_in_rounds(self):
        questions = Questions()
        room = questions.leave(3)
        questions.ask(room.at[:2], TYPE, expected=id(tuple))
        items = questions.ask(room.at[:2], TUPLE_ITEMS, expected=None)
        questions.end_round()
        floats = questions.ask(items.at, FLOAT_BITS)
        questions.end_round()
        questions.end()
        questions.give(room, [(1.5, 2), (2.5,), None, "one more than there is room for"])
        assert questions.read(range(2))
        assert questions.answers[floats.slice].view(np.float64).tolist() == [1.5, 2.5]

    def test_what_is_not_as_expected_is_found_before_it_is_followed(self):
        questions = Questions()
        room = questions.leave(1)
        questions.ask(room.at, TYPE, expected=id(tuple))
        questions.end_round()
        word = questions.ask(room.at, TUPLE_ITEMS)
        questions.end_round()
        questions.end()
        questions.give(room, [[1]])
        assert not questions.read(range(2))
        assert questions.answers[word.slice].tolist() == [0]

    @pytest.mark.parametrize(
        ("numbers", "agrees"),
        [
            ((5, 6, 7), True),
            ((5, 6, 8), True),
            ((4, 6, 7), False),
            ((5, 4, 7), False),
            ((5, 6 + (9 << 30), 7), True),
        ],
    )
    def test_half_a_word(self, numbers, agrees):
        questions = Questions()
        room = questions.leave(3)
        questions.ask(room.at, TYPE, expected=id(int))
        questions.ask(room.at[:2], INT_DIGITS, expected=[5, 6], lower_half=True)
        free = questions.ask(room.at, INT_DIGITS)
        questions.end_round()
        questions.end()
        questions.give(room, numbers)
        assert questions.read(range(1)) is agrees
        assert (questions.answers[free.slice] & LOW_BITS).tolist() == [n & ((1 << 30) - 1) for n in numbers]

    def test_what_must_be_something_is_asked_first(self):
        questions = Questions()
        room = questions.leave(1)
        questions.ask(room.at, INT_DIGITS)
        questions.ask(room.at, TYPE, expected=id(int))
        with pytest.raises(AssertionError, match="order"):
            questions.end_round()

    def test_the_same(self):
        questions = Questions()
        constants, room = questions.constants([id(len), id(int)]), questions.leave(2)
        questions.same(room.at, constants.at)
        questions.end()
        for objects, agrees in (([len, int], True), ([int, len], False), ([len, len], False)):
            questions.give(room, objects)
            assert questions.agree() is agrees


class TestLayouts:
    @staticmethod
    def asked(arrays):
        questions, layouts = Questions(), StepLayouts(arrays, len(arrays))
        room = questions.leave(len(arrays))
        pointers = layouts.ask_headers(questions, room.at, slice(None))
        questions.end_round()
        layouts.ask_extents(questions, pointers)
        questions.end_round()
        questions.end()
        return questions, room, layouts

    def test_a_changed_shape_or_stride_is_seen(self, rng):
        """`Segment.layout`, which asks the arrays themselves, is the oracle."""

        def arrays(length):
            own = [np.zeros((2, 3)), np.zeros((4, 4)), np.zeros(5), np.zeros(()), np.zeros((2, 3))]
            return [*own, np.zeros((length, 2)), np.zeros((length, 2)), np.zeros((2, length)).T]

        questions, room, layouts = self.asked(arrays(7))
        again = []
        for length in (8, 9, 9, 7, 10, 11):
            changed = arrays(length)
            if length == 9:
                changed[6] = changed[6].copy(order="F")  # not like its neighbour any more
            if length == 10:
                changed[1] = changed[1].T[::-1]
            again.append(changed)
        for changed in again:
            questions.give(room, changed)
            assert questions.read(range(2))
            segment, other = Segment(0, 0), Segment(0, 0)  # which may have layouts already
            if rng.random() < 0.5:
                for one in (segment, other):
                    one.layout(np.zeros(99))
            numbers, new = layouts.numbers(questions.answers, changed.__getitem__, segment)
            written = [segment.layouts[number] for number in numbers[:-1]]
            assert written == [other.layouts[other.layout_number(each)] for each in changed]
            learned = arrays(7)
            is_new = [
                (each.shape, each.strides) != (one.shape, one.strides)
                for each, one in zip(changed, learned, strict=True)
            ]
            assert {place for each in new for place in each.results} >= {*np.flatnonzero(is_new).tolist()}
            for places, seed, is_contiguous in new:
                for place in places:
                    assert other.layout(changed[place])[1:] == (seed, is_contiguous)

    def test_another_dtype_or_number_of_axes_is_no_repetition(self):
        questions, room, _ = self.asked([np.zeros((2, 3), dtype=np.float32)])
        for other in (np.zeros((2, 3)), np.zeros(6, dtype=np.float32)):
            questions.give(room, [other])
            assert not questions.read(range(1))
