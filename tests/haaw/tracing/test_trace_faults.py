"""Trace files that are damaged, cut, killed, foreign or made to do harm: found, named, and cheap to refuse."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.trace_files import rewritten, with_manifest
from support.traced import PROMPT, SAMPLING, assert_identical, model_of, opened

import haaw
from haaw.errors import BadInputError, HaawError
from haaw.tracing.container import Container, TraceDamagedError, repair
from haaw.tracing.schema import EVENT, KEPT, LINK, OUTPUT
from haaw.tracing.trace import Trace

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module")
def path(tmp_path_factory, model):
    """A small full trace with every kind of member: chunks, a drawn answer, facts, and one large value."""
    path = tmp_path_factory.mktemp("traces") / "run.haaw"
    with haaw.record(path, keep="full"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("haaw.tracing.keeping.SMALL_BYTES", 900)
        model.generate(PROMPT, max_tokens=4, prefill_chunk_tokens=6, **SAMPLING)
    with Trace(path) as trace:
        kinds = {name.rpartition("/")[2].partition("-")[0].lstrip("v0123456789.") for name in trace.container.members}
    assert kinds >= {"events.npy", "links.npy", "outputs.npy", "kept.npy", "arena.npy", "info.json", "manifest.json"}
    assert "out0" in kinds
    return path


def use_everything(path: Path, model) -> None:
    """Reads every event, name, fact and value, and replays all."""
    with opened(path, model) as trace:
        for event in trace:
            repr(event)
        trace.facts()
        repr(trace.summary)
        for segment in trace.segments:
            for event, slot, item in segment.kept:
                segment.kept_value(event, slot, item)
        report = trace.replay()
        if not report.ok or report.identical_share < 1:
            raise TraceDamagedError(f"the replay found a fault in this trace: {report!s:.300}".replace("\n", " "))


# Damage.


def check_flips(path, model, out, rng, flips):
    content = path.read_bytes()
    with Trace(path) as trace:
        members = {name: range(each.offset, each.offset + each.size) for name, each in trace.container.members.items()}
    by_use = 0
    for place in rng.integers(0, 8 * len(content), flips).tolist():
        data = bytearray(content)
        data[place // 8] ^= 1 << place % 8
        out.write_bytes(data)
        found = []
        with contextlib.suppress(HaawError), Container.open(out) as container:
            found = list(container.verify())
            assert found, f"bit {place} was not found"
        inside = [name for name, span in members.items() if place // 8 in span]
        if found and inside:
            assert {each.name for each in found} == set(inside), place
        try:  # and whoever does not look first stumbles over it, or never meets it
            use_everything(out, model)
        except HaawError as error:
            by_use += 1
            assert str(error)
    assert by_use > 0.7 * flips


def test_a_flipped_bit_anywhere_is_found_and_its_member_named(path, model, tmp_path, rng):
    check_flips(path, model, tmp_path / "flipped.haaw", rng, 40)


@pytest.mark.long
def test_ten_thousand_flipped_bits_are_found(path, model, tmp_path, rng):
    check_flips(path, model, tmp_path / "flipped.haaw", rng, 10_000)


@pytest.mark.parametrize("what", ["arena.npy", "out0-value.npy", "events.npy", "links.npy", "outputs.npy", "info.json", "kept.npy", "manifest.json", "summary.json"])
def test_every_kind_of_member_is_named_when_one_of_its_bits_flips(path, model, tmp_path, rng, what):
    content, out = path.read_bytes(), tmp_path / "flipped.haaw"
    with Trace(path) as trace:
        members = [(name, each) for name, each in trace.container.members.items() if name.endswith(what)]
    for _ in range(10):
        name, member = members[rng.integers(len(members))]
        data = bytearray(content)
        data[member.offset + rng.integers(member.size)] ^= 1 << rng.integers(8)
        out.write_bytes(data)
        with Container.open(out) as container:
            assert [each.name for each in container.verify()] == [name]
        with pytest.raises(TraceDamagedError, match=name.replace(".", r"\.")):
            use_everything(out, model)


def test_an_altered_value_with_a_good_checksum_is_found_by_its_hash(path, model, tmp_path, rng):
    """Somebody who writes the checksums anew still has to find another value of the same 128-bit hash."""
    with opened(path, model) as trace:
        places = [
            (segment.number, int(row["offset"]), int(row["nbytes"]))
            for segment in trace.segments
            for row in segment.kept_table
            if not row["member"] and int(row["slot"]) < 0 and row["nbytes"]
        ]
    number, offset, nbytes = places[rng.integers(len(places))]
    at = offset + int(rng.integers(nbytes))

    def altered(content: bytes) -> bytes:
        array = bytearray(content)
        start = len(content) - arena_bytes
        array[start + at] ^= 1 << int(rng.integers(8))
        return bytes(array)

    name = f"s{number:06d}/arena.npy"
    with Container.open(path) as container:
        arena_bytes = len(container.array(name))
    out = rewritten(path, tmp_path / "altered.haaw", {name: altered})
    with Container.open(out) as container:
        assert list(container.verify()) == []
    with opened(out, model) as trace:
        report = trace.replay()
        assert len(report.faults) >= 1
        assert "does not have the recorded hash" in report.faults[0].detail or report.faults[0].detail
        assert list(trace.verify())


# Cuts.


def check_cuts(path, model, out, places):
    content = path.read_bytes()
    with Trace(path) as trace:
        ends = []  # where each segment is whole, and how many events there are then
        for segment in trace.segments:
            info = trace.container.members[f"s{segment.number:06d}/info.json"]
            ends.append((info.offset + info.size, segment.first_event + segment.count))
        whole = trace.events.copy() if hasattr(trace, "events") else None
    for place in places:
        out.write_bytes(content[:place])
        expected = max([events for end, events in ends if end <= place], default=0)
        try:
            with opened(out, model) as trace:
                assert not trace.complete
                assert len(trace) == expected, place
                if whole is not None:
                    np.testing.assert_array_equal(trace.events, whole[:expected])
                assert trace.replay().ok
        except BadInputError as error:
            assert expected == 0
            assert "\n" not in str(error)
            continue
        if place % 7 == 0:
            repair(out)
            with opened(out, model) as trace, zipfile.ZipFile(out) as ordinary:
                assert len(trace) == expected
                assert ordinary.testzip() is None


def test_a_file_that_is_cut_anywhere_has_every_event_of_every_finished_step(path, model, tmp_path, rng):
    check_cuts(path, model, tmp_path / "cut.haaw", rng.integers(0, path.stat().st_size, 25).tolist())


@pytest.mark.long
def test_two_hundred_cuts_and_one_at_every_border(path, model, tmp_path, rng):
    with Trace(path) as trace:
        borders = [each.offset + each.size for each in trace.container.members.values()]
    near = [place + step for place in borders for step in (-1, 0, 1)]
    places = [*rng.integers(0, path.stat().st_size, 200).tolist(), *near]
    check_cuts(path, model, tmp_path / "cut.haaw", places)


# SIGKILL.

CHILD = """
import os, sys
sys.path[:0] = {paths!r}
import haaw
from support.traced import PROMPT, SAMPLING, model_of
model = model_of("llama")
with haaw.record({path!r}, keep={keep!r}):
    print("ready", flush=True)
    for request in range(1000):
        stream = iter(model.request(PROMPT, max_tokens=100, **SAMPLING))
        for step, _ in enumerate(stream):
            os.write(1, b"%d %d\\n" % (request + 1, step))
"""


def killed(path: Path, keep: str, after_s: float) -> list[tuple[int, int]]:
    """Runs a traced program, kills it, and returns the steps (request, step) that it told of."""
    code = CHILD.format(paths=[str(ROOT), str(ROOT / "tests")], path=str(path), keep=keep)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "HAAW_CHECK_SHAPES": "0"})
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    told = child.stdout.read()
    child.stdout.close()
    child.wait()
    lines = told.decode().rpartition("\n")[0].splitlines()
    return [(int(request), int(step)) for request, step in map(str.split, lines)]


def check_kills(tmp_path, model, rng, kills):
    for number in range(kills):
        path = tmp_path / f"killed{number}.haaw"
        keep = ("full", "replayable", "events")[number % 3]
        told = killed(path, keep, float(rng.uniform(0.02, 0.6)))
        if not told and not path.stat().st_size:
            continue
        with opened(path, model) as trace:
            assert not trace.complete
            steps = {
                (step.request, 0 if step.stage == "prefill" else step.step)
                for step in trace.steps()
                if step.stage in ("prefill", "decode")
            }
            assert set(told) <= steps, keep
            assert len(trace.steps("decode")) + len(trace.steps("prefill")) <= len(told) + 1
            for request, step in told[-2:]:
                stage = "decode" if step else "prefill"
                (found,) = [each for each in trace.steps(stage, request=request) if each.step == step]
                names = [trace.event(each).name for each in range(found.first, found.end)]
                assert names.count("softmax") == 2  # both layers
                assert "draw" in names
                assert "delta" in names
            if number < 2:
                last = told[-1][0] if told else 1
                assert trace.replay(request=last).ok


def test_a_killed_run_leaves_every_event_of_every_finished_step(tmp_path, model, rng):
    check_kills(tmp_path, model, rng, 3)


@pytest.mark.long
def test_a_hundred_kills_leave_every_event_of_every_finished_step(tmp_path, model, rng):
    check_kills(tmp_path, model, rng, 100)


# Foreign and hostile files.


@contextlib.contextmanager
def cheap(*, counted: bool = False):
    """The block takes less than a second and 50 MB; every allocation is `counted`, or those whose memory is used."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if counted:
        tracemalloc.start()
    try:
        yield
        most = tracemalloc.get_traced_memory()[1] if counted else 0
    finally:
        if counted:
            tracemalloc.stop()
    assert time.process_time() - began < 1  # another clock would measure what else the machine does
    assert most < 50e6
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50e6


@pytest.mark.parametrize("missing", ["schema", "model", "policy", "ops", "weights", "sources", "first_weight_buffer"])
def test_a_manifest_that_lacks_something_is_named(path, model, tmp_path, missing):
    out = with_manifest(path, tmp_path / "out.haaw", lambda manifest: manifest.pop(missing))
    with cheap(), pytest.raises(BadInputError, match="manifest.json"):
        use_everything(out, model)


@pytest.mark.parametrize("key", ["schema", "model", "policy", "ops", "weights", "sources", "first_weight_buffer", "fingerprint", "haaw"])
@pytest.mark.parametrize("value", [None, [], {}, "x", -1, [None], {"a": None}, 2**80, [{"name": "softmax"}], [{"name": 3}]])
def test_a_manifest_with_something_else_in_it_is_refused_in_one_sentence(path, model, tmp_path, key, value):
    out = with_manifest(path, tmp_path / "out.haaw", lambda manifest: manifest.update({key: value}))
    with cheap():
        try:
            use_everything(out, model)
        except HaawError as error:
            assert "\n" not in str(error)
        else:
            assert key in ("policy", "sources", "fingerprint", "haaw", "weights", "model", "first_weight_buffer")


def test_a_newer_schema_is_refused_by_its_number(path, model, tmp_path):
    out = with_manifest(path, tmp_path / "out.haaw", lambda manifest: manifest.update(schema=2, haaw="9.9"))
    with pytest.raises(BadInputError, match=r"made by HAAW 9.9 and has the schema 2; this HAAW reads up to 1"):
        Trace(out)


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b"{", b"\xff", b'{"schema": NaN}', b"[" * 100_000, b"1" * 5_000])
def test_a_manifest_that_is_no_object_is_refused(path, tmp_path, content):
    out = rewritten(path, tmp_path / "out.haaw", {"manifest.json": lambda _: content})
    with cheap(), pytest.raises(TraceDamagedError, match="manifest.json"):
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
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)


def test_a_container_without_a_manifest_is_no_trace(path, tmp_path):
    out = rewritten(path, tmp_path / "out.haaw", {"manifest.json": lambda _: None})
    with pytest.raises(BadInputError, match="no trace: it has no manifest.json"):
        Trace(out)


@pytest.mark.parametrize("what", ["events.npy", "info.json"])
def test_a_segment_that_is_missing_is_named_or_ends_the_trace(path, model, tmp_path, what):
    out = rewritten(path, tmp_path / "out.haaw", {f"s000002/{what}": lambda _: None})
    if what == "events.npy":
        with pytest.raises(TraceDamagedError, match="s000002/events.npy"):
            use_everything(out, model)
    else:
        with pytest.raises(TraceDamagedError, match="s000002/info.json"):
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
            assert "\n" not in str(error)
            assert "out.haaw" in str(error) or "trace" in str(error)
            found.append(str(error))
        with opened(out, model) as trace:
            found += [str(each) for each in trace.verify()]
    assert found or absurd in ("an item of a list", "an output far out", "another buffer made", "kept with another layout", "a version that is not there")


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
    assert "\n" not in str(caught.value)
    assert "info.json" in str(caught.value) or "kept.npy" in str(caught.value) or "layout" in str(caught.value) or "trace" in str(caught.value)


@pytest.mark.parametrize("key", ["stages", "parts", "names", "sites", "args", "layouts", "facts", "first_event"])
@pytest.mark.parametrize("value", [None, 3, "x", {}, [], [None], [[]], ["no JSON"], ["[]"], ["null"], [[1, 2]], [["x", 1, 2, 3, "y"]], [["a", {}]], -1])
def test_absurd_string_tables_are_refused_by_the_member_or_do_no_harm(path, model, tmp_path, key, value):
    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        size = len(info[key]) if isinstance(info[key], list) else 1
        info[key] = value * max(size, 1) if isinstance(value, list) else value
        return json.dumps(info).encode()

    out = rewritten(path, tmp_path / "out.haaw", {"s000003/info.json": changed})
    with cheap():
        try:
            use_everything(out, model)
        except HaawError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b"null"])
@pytest.mark.parametrize("what", ["events.npy", "links.npy", "outputs.npy", "kept.npy", "arena.npy", "info.json"])
def test_members_that_are_something_else_are_named(path, model, tmp_path, what, content):
    out = rewritten(path, tmp_path / "out.haaw", {f"s000003/{what}": lambda _: content})
    with cheap(), pytest.raises(TraceDamagedError, match=f"s000003/{what}"):
        use_everything(out, model)


def test_arguments_that_an_operation_cannot_take_are_a_verdict_and_no_crash(replayable, model, tmp_path):
    def changed(content: bytes) -> bytes:
        info = json.loads(content)
        info["args"] = [text.replace('"eps": ', '"eps": "x", "e": ').replace('"scale"', '"scales"') for text in info["args"]]
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
