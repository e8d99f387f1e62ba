"""Engines in processes of their own: failures, and memory seen from outside."""

import subprocess
import sys

import pytest

from benchmarks.memory import AnonymousPeak, peak_resident_bytes
from benchmarks.plan import Plan
from benchmarks.processes import Contestant, EngineFailedError, take_turn

HOLDS_64_MB = "b = bytearray(64 << 20); print('ready', flush=True); input()"


def test_an_engine_that_cannot_load_fails_in_one_line_that_names_it():
    with pytest.raises(
        EngineFailedError, match=r"haaw ended with status 2: .*no file /nowhere\.gguf"
    ) as caught:
        take_turn(Contestant("haaw", sys.executable, "/nowhere.gguf"), Plan("/nowhere.gguf", threads=1))
    assert "\n" not in str(caught.value)


def test_memory_of_another_process_is_seen_and_forgotten_after_a_restart():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_64_MB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        peak = AnonymousPeak(process.pid)
        while peak.bytes == 0:
            pass
        seen = peak.restart()
        assert 64 << 20 < seen < 128 << 20
        assert peak_resident_bytes(process.pid) >= seen
        process.communicate(b"\n")
        assert peak.stop() < 128 << 20
