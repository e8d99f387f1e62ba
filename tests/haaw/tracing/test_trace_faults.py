"""Trace files that are damaged, cut, or left behind by a kill: what is wrong is found and named, the rest is there."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.trace_files import rewritten
from support.traced import (
    full_trace,
    model_of,
    one_sentence,
    opened,
    use_everything,
)

from haaw.errors import BadInputError, HaawError
from haaw.tracing.container import Container, TraceDamagedError, repair
from haaw.tracing.trace import Trace

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module")
def path(tmp_path_factory, model):
    return full_trace(tmp_path_factory.mktemp("traces") / "run.haaw", model)


# Damage.


def check_flips(path, model, out, rng, flips):
    content = path.read_bytes()
    with Trace(path) as trace:
        members = {
            name: range(each.offset, each.offset + each.size)
            for name, each in trace.container.members.items()
        }
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
            one_sentence(error)
    assert by_use > 0.7 * flips


def test_a_flipped_bit_anywhere_is_found_and_its_member_named(path, model, tmp_path, rng):
    check_flips(path, model, tmp_path / "flipped.haaw", rng, 60)


@pytest.mark.long
def test_ten_thousand_flipped_bits_are_found(path, model, tmp_path, rng):
    check_flips(path, model, tmp_path / "flipped.haaw", rng, 10_000)


@pytest.mark.parametrize(
    "what",
    [
        "arena.npy",
        "out0-value.npy",
        "events.npy",
        "links.npy",
        "outputs.npy",
        "info.json",
        "kept.npy",
        "manifest.json",
        "summary.json",
    ],
)
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
            one_sentence(error)
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
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "HAAW_CHECK_SHAPES": "0"}
    )
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
    check_kills(tmp_path, model, rng, 5)


@pytest.mark.long
def test_a_hundred_kills_leave_every_event_of_every_finished_step(tmp_path, model, rng):
    check_kills(tmp_path, model, rng, 100)
