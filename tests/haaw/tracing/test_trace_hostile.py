"""Trace files that are foreign, altered or made to do harm: refused in one sentence, at once, in little memory."""

import contextlib
import json
import resource
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
from support.trace_files import rewritten, with_manifest
from support.traced import (
    PROMPT,
    SAMPLING,
    assert_identical,
    full_trace,
    model_of,
    one_sentence,
    opened,
    use_everything,
)

import haaw
from haaw.errors import BadInputError, HaawError
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.schema import EVENT, KEPT, LINK, NOT_IN_A_LIST, OUTPUT
from haaw.tracing.segments import Layout
from haaw.tracing.trace import Trace


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module")
def path(tmp_path_factory, model):
    return full_trace(tmp_path_factory.mktemp("traces") / "run.haaw", model)


@contextlib.contextmanager
def cheap(*, counted: bool = False):
    """The block takes seconds at most and 50 MB; every allocation is `counted`, or those whose memory is used."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if counted:
        tracemalloc.start()
    try:
        yield
        most = tracemalloc.get_traced_memory()[1] if counted else 0
    finally:
        if counted:
            tracemalloc.stop()
    assert time.process_time() - began < 5  # far from what an absurd size would take, also on a busy machine
    assert most < 50e6
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50e6


@pytest.mark.parametrize(
    "missing", ["schema", "model", "policy", "ops", "weights", "sources", "first_weight_buffer"]
)
def test_a_manifest_that_lacks_something_is_named(path, model, tmp_path, missing):
    out = with_manifest(path, tmp_path / "out.haaw", lambda manifest: manifest.pop(missing))
    with cheap(), pytest.raises(BadInputError, match=r"manifest\.json"):
        use_everything(out, model)


@pytest.mark.parametrize(
    "key",
    ["schema", "model", "policy", "ops", "weights", "sources", "first_weight_buffer", "fingerprint", "haaw"],
)
@pytest.mark.parametrize(
    "value", [None, [], {}, "x", -1, [None], {"a": None}, 2**80, [{"name": "softmax"}], [{"name": 3}]]
)
def test_a_manifest_with_something_else_in_it_is_refused_in_one_sentence(path, model, tmp_path, key, value):
    out = with_manifest(path, tmp_path / "out.haaw", lambda manifest: manifest.update({key: value}))
    with cheap():
        try:
            use_everything(out, model)
        except HaawError as error:
            one_sentence(error)
        else:
            assert key in (
                "policy",
                "sources",
                "fingerprint",
                "haaw",
                "weights",
                "model",
                "first_weight_buffer",
            )


def test_a_newer_schema_is_refused_by_its_number(path, model, tmp_path):
    out = with_manifest(path, tmp_path / "out.haaw", lambda manifest: manifest.update(schema=2, haaw="9.9"))
    with pytest.raises(
        BadInputError, match=r"made by HAAW 9.9 and has the schema 2; this HAAW reads up to 1"
    ):
        Trace(out)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"nonsense", b"{", b"\xff", b'{"schema": NaN}', b"[" * 100_000, b"1" * 5_000]
)
def test_a_manifest_that_is_no_object_is_refused(path, tmp_path, content):
    out = rewritten(path, tmp_path / "out.haaw", {"manifest.json": lambda _: content})
    with cheap(), pytest.raises(TraceDamagedError, match=r"manifest\.json"):
        Trace(out)


def test_foreign_zips_and_other_files_are_no_traces(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as ordinary:
        ordinary.writestr("manifest.json", "{}")
    np.savez(tmp_path / "b.npz", a=np.zeros(3))
    (tmp_path / "c.txt").write_text("once upon a time")
    (tmp_path / "d.haaw").write_bytes(b"")
    (tmp_path / "e").mkdir()
    for name in ("a.zip", "b.npz", "c.txt", "d.haaw", "e", "missing.haaw"):
        with cheap(), pytest.raises(BadInputError) as caught:
            Trace(tmp_path / name)
        one_sentence(caught.value)
        assert name in str(caught.value)


def test_a_container_without_a_manifest_is_no_trace(path, tmp_path):
    out = rewritten(path, tmp_path / "out.haaw", {"manifest.json": lambda _: None})
    with pytest.raises(BadInputError, match=r"no trace: it has no manifest\.json"):
        Trace(out)


@pytest.mark.parametrize("what", ["events.npy", "info.json"])
def test_a_segment_that_is_missing_is_named_or_ends_the_trace(path, model, tmp_path, what):
    out = rewritten(path, tmp_path / "out.haaw", {f"s000002/{what}": lambda _: None})
    if what == "events.npy":
        with pytest.raises(TraceDamagedError, match=r"s000002/events\.npy"):
            use_everything(out, model)
    else:
        with pytest.raises(TraceDamagedError, match=r"s000002/info\.json"):
            use_everything(out, model)


ABSURD = {
    "kind 7": ("events.npy", EVENT, {"kind": 7}),
    "an operation that is not there": ("events.npy", EVENT, {"kind": 0, "name": 60_000}),
    "a name that is not there": ("events.npy", EVENT, {"kind": 2, "name": 60_000}),
    "a stage that is not there": ("events.npy", EVENT, {"stage": 200}),
    "a part that is not there": ("events.npy", EVENT, {"part": 200}),
    "a site that is not there": ("events.npy", EVENT, {"kind": 0, "site": 60_000}),
    "arguments that are not there": ("events.npy", EVENT, {"kind": 0, "args": 60_000}),
    "links beyond the table": ("events.npy", EVENT, {"first_link": 2**32 - 1}),
    "more links than there are": ("events.npy", EVENT, {"links": 65_535}),
    "the links of other rows as well": ("events.npy", EVENT, {"first_link": 0, "links": 90}),
    "the outputs of other rows as well": ("events.npy", EVENT, {"first_output": 0, "outputs": 40}),
    "a time that is none": ("events.npy", EVENT, {"took_ns": float("nan")}),
    "a time without end": ("events.npy", EVENT, {"took_ns": float("inf")}),
    "outputs beyond the table": ("events.npy", EVENT, {"first_output": 2**32 - 1}),
    "more outputs than there are": ("events.npy", EVENT, {"outputs": 255}),
    "a layout that is not there": ("links.npy", LINK, {"layout": 65_535}),
    "a parameter that is not there": ("links.npy", LINK, {"slot": 100}),
    "a parameter below none": ("links.npy", LINK, {"slot": -3}),
    "an item of a list": ("links.npy", LINK, {"item": 7}),
    "a window behind its buffer": ("links.npy", LINK, {"offset": 2**32 - 1}),
    "a buffer that is not there": ("links.npy", LINK, {"buffer": 2**32 - 1}),
    "a version that is not there": ("links.npy", LINK, {"version": 2**32 - 1}),
    "an output's layout": ("outputs.npy", OUTPUT, {"layout": 65_535}),
    "an output far out": ("outputs.npy", OUTPUT, {"offset": 2**32 - 1}),
    "another buffer made": ("outputs.npy", OUTPUT, {"buffer": 2**32 - 1}),
    "kept behind the arena": ("kept.npy", KEPT, {"member": 0, "offset": 2**63}),
    "kept bytes that do not fit": ("kept.npy", KEPT, {"nbytes": 2**62}),
    "kept with another layout": ("kept.npy", KEPT, {"layout": 0}),
    "kept in a member that is not there": ("kept.npy", KEPT, {"member": 1}),
}


@pytest.mark.parametrize("keep", ["full", "replayable"])
@pytest.mark.parametrize("absurd", ABSURD)
def test_absurd_tables_are_refused_by_the_member_or_do_no_harm(path, model, tmp_path, absurd, keep, request):
    what, dtype, fields = ABSURD[absurd]
    name = f"s000003/{what}"

    def changed(content: bytes) -> bytes:
        rows = len(content) - content.index(b"\n") - 1
        table = np.frombuffer(content[-rows:], dtype=dtype).copy()
        at = len(table) // 2
        if what == "events.npy" and fields.get("kind", 0) == 0:
            at = int(np.flatnonzero(table["kind"] == 0)[3])
        for field, value in fields.items():
            table[at][field] = value
        return content[:-rows] + table.tobytes()

    if keep == "replayable":
        path = request.getfixturevalue("replayable")
    out = rewritten(path, tmp_path / "out.haaw", {name: changed})
    found: list[str] = []
    with cheap(counted="out" in absurd or "bytes" in absurd):
        try:
            use_everything(out, model)
        except HaawError as error:
            found.append(one_sentence(error))
        assert all("out.haaw" in each or "trace" in each for each in found)
        with opened(out, model) as trace:
            found += [str(each) for each in trace.verify()]
    assert found or absurd in (
        "an item of a list",
        "an output far out",
        "another buffer made",
        "kept with another layout",
        "a version that is not there",
    )


def test_a_row_of_an_unknown_kind_is_told_by_its_table(path, tmp_path):
    def changed(content: bytes) -> bytes:
        table = np.frombuffer(content[-len(events) * EVENT.itemsize :], dtype=EVENT).copy()
        table["kind"][-1] = 3
        return content[: -table.nbytes] + table.tobytes()

    with Trace(path) as trace:
        events = trace.segments[3].events
    with Trace(rewritten(path, tmp_path / "out.haaw", {"s000003/events.npy": changed})) as trace:
        with pytest.raises(TraceDamagedError, match=r"s000003/events\.npy .* of an unknown kind"):
            _ = trace.segments[3].events


@pytest.mark.parametrize(("op", "shapes"), [
    ("add", [(1, 2**58), (1, 2**58), (1, 2**58)]),  # bytes
    ("linear", [(2**21, 2**21), (2**21, 2**21), (2**21, 2**21)]),  # operations
])  # fmt: skip
def test_costs_that_no_machine_could_bear_are_refused(path, op, shapes):
    layouts = [Layout("<f4", shape, (4, 4)) for shape in shapes]
    with Trace(path) as trace:
        number = [each["name"] for each in trace.manifest["ops"]].index(op)
        inputs = tuple((slot, NOT_IN_A_LIST, layout) for slot, layout in enumerate(layouts[:2]))
        with pytest.raises(TraceDamagedError, match=f"arrays that {op} cannot have: no machine"):
            trace.reading.costs._cost(number, inputs, tuple(layouts[2:]))


@pytest.fixture(scope="module")
def replayable(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("replayable") / "run.haaw"
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=4, prefill_chunk_tokens=6, **SAMPLING)
    return path


LAYOUTS = [
    ["<f4", [2**62], [4]],
    ["<f4", [2**31, 2**31, 2**31], [4, 4, 4]],
    ["<f4", [2**40], [0]],
    ["<f4", [2**20, 2**40], [4, 4]],
    ["<f4", [1, 2**60], [4, 4]],
    ["<f4", [-1], [4]],
    ["<f4", [4], [4, 4]],
    ["<f4", [4], [2**70]],
    ["<f4", [4], [-(2**40)]],
    ["|O", [4], [8]],
    ["<f4", "x", "y"],
    ["<q9", [1], [1]],
    ["<f4", [1.5], [4]],
    ["|V1000000000", [1000], [1]],
    ["<f4", [None], [4]],
    [3, [1], [1]],
    ["<f4"],
    [],
    ["<f4", [1] * 100, [4] * 100],
    ["<U1000000", [2**20], [4]],
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("which", ["path", "replayable"])
def test_absurd_layouts_allocate_nothing(model, tmp_path, layout, which, request):
    path = request.getfixturevalue(which)

    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        info["layouts"] = [layout] * len(info["layouts"])
        return json.dumps(info).encode()

    out = rewritten(path, tmp_path / "out.haaw", {f"s00000{n}/info.json": changed for n in (1, 3)})
    with cheap(counted=True), pytest.raises(HaawError) as caught:
        use_everything(out, model)
    one_sentence(caught.value)
    assert (
        "info.json" in str(caught.value)
        or "kept.npy" in str(caught.value)
        or "layout" in str(caught.value)
        or "trace" in str(caught.value)
    )


@pytest.mark.parametrize(
    "key", ["stages", "parts", "names", "sites", "args", "layouts", "facts", "first_event"]
)
@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "x",
        {},
        [],
        [None],
        [[]],
        ["no JSON"],
        ["[]"],
        ["null"],
        [[1, 2]],
        [["x", 1, 2, 3, "y"]],
        [["a", {}]],
        -1,
    ],
)
def test_absurd_string_tables_are_refused_by_the_member_or_do_no_harm(path, model, tmp_path, key, value):
    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        size = len(info[key]) if isinstance(info[key], list) else 1
        info[key] = value * max(size, 1) if isinstance(value, list) else value
        return json.dumps(info).encode()

    out = rewritten(path, tmp_path / "out.haaw", {"s000003/info.json": changed})
    refusal = None
    with cheap():
        try:
            use_everything(out, model)
        except HaawError as error:
            refusal = one_sentence(error)
    assert refusal is None or "s000003/" in refusal


FACTS = {
    "prepared": [{}, {"text": 3}],
    "tokenised": [
        {},
        {"tokens": 3},
        {"tokens": [3]},
        {"tokens": [[1, "\u0100", 0, 1]]},
        {"tokens": [[1, "a"]]},
    ],
    "settings": [{}, {"asked": None}],
    "delta": [
        {},
        {"text": None, "token_id": 1, "bytes": ""},
        {"text": "a", "token_id": 1, "bytes": "\u0100"},
    ],
    "phases": [{}, {"spent_s": []}, {"spent_s": {"decode": "long"}}, {"spent_s": {"decode": float("nan")}}],
    "journey": [{}, {"start_ns": "then", "took_ns": 1}, {"start_ns": 1, "took_ns": True}],
}


@pytest.mark.parametrize(
    ("kind", "facts"), [(kind, each) for kind, several in FACTS.items() for each in several]
)
def test_facts_that_say_something_else_are_refused_by_their_kind(replayable, model, tmp_path, kind, facts):
    with Trace(replayable) as trace:
        segment, row = trace.segment_of(trace.facts(kind)[0].number)
        member = f"s{segment.number:06d}/info.json"

    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        info["facts"] = [[at, facts if at == row else each] for at, each in info["facts"]]
        return json.dumps(info).encode()

    out = rewritten(replayable, tmp_path / "out.haaw", {member: changed})
    for ask in (Trace.facts, Trace.phases, Trace.text, Trace._repr_html_, Trace.verify):
        with Trace(out) as trace:
            if ask is Trace.verify:
                assert [each.where for each in trace.verify()] == [f"segment {segment.number}"]
                continue
            with pytest.raises(
                TraceDamagedError, match=f'{member}.*of a fact "{kind}" is missing or something else'
            ):
                ask(trace)


@pytest.mark.parametrize("rules", [3, ["a", 3], {"a": 1}])
def test_rules_that_are_none_are_refused(replayable, tmp_path, rules):
    out = with_manifest(
        replayable, tmp_path / "out.haaw", lambda manifest: manifest["policy"].update(rules=rules)
    )
    with pytest.raises(TraceDamagedError, match=r'"policy" in the manifest\.json'):
        Trace(out)


@pytest.mark.parametrize("used", [True, False])
def test_a_long_text_does_not_make_every_row_of_the_table_long(replayable, tmp_path, used):
    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        info["parts"] = ["x" * 10**6 if used and each else each for each in info["parts"]] + ["y" * 10**6]
        return json.dumps(info).encode()

    out = rewritten(replayable, tmp_path / "out.haaw", {"s000003/info.json": changed})
    with cheap(), Trace(out) as trace:
        parts = set(trace.events["part"].tolist())
    assert max(map(len, parts)) == (300 if used else len("embedding"))
    assert ("x" * 299 + "…" in parts) is used


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b"null"])
@pytest.mark.parametrize(
    "what", ["events.npy", "links.npy", "outputs.npy", "kept.npy", "arena.npy", "info.json"]
)
def test_members_that_are_something_else_are_named(path, model, tmp_path, what, content):
    out = rewritten(path, tmp_path / "out.haaw", {f"s000003/{what}": lambda _: content})
    with cheap(), pytest.raises(TraceDamagedError, match=f"s000003/{what}"):
        use_everything(out, model)


def test_arguments_that_an_operation_cannot_take_are_a_verdict_and_no_crash(replayable, model, tmp_path):
    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        info["args"] = [
            text.replace('"eps": ', '"eps": "x", "e": ').replace('"scale"', '"scales"')
            for text in info["args"]
        ]
        return json.dumps(info).encode()

    out = rewritten(replayable, tmp_path / "out.haaw", {"s000003/info.json": changed})
    with cheap(), pytest.raises(HaawError):
        use_everything(out, model)


def test_a_trace_of_another_model_is_found_by_every_product(replayable, tmp_path):
    other = model_of("gpt2")
    with pytest.raises(HaawError), haaw.open_trace(replayable, other) as trace:
        trace.weights()


def test_a_sound_trace_is_sound(path, replayable, model):
    for each in (path, replayable):
        use_everything(each, model)
        with opened(each, model) as trace:
            assert_identical(trace.replay())
            assert list(trace.verify()) == []
