"""Starts an engine's process, follows what it tells, and clocks and weighs it from outside."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import thread_environment
from benchmarks.memory import AnonymousPeak, peak_resident_bytes
from benchmarks.plan import FIRST_WORD_TOKENS, TEXT, Plan

ROOT = Path(__file__).resolve().parent.parent


class EngineFailedError(Exception):
    """An engine's process ended before it had told all; the message has the end of what it wrote."""


@dataclass(frozen=True)
class Contestant:
    """An engine, the interpreter that has it, and the model in the form that it reads."""

    engine: str
    python: str
    model: str


@dataclass
class Turn:
    """What one engine showed in one turn."""

    first_word_s: float
    load_s: float = 0.0
    load_anonymous_bytes: int = 0
    run_anonymous_bytes: int = 0
    resident_bytes: int = 0
    figures_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def take_turn(contestant: Contestant, plan: Plan) -> Turn:
    """Two processes of one engine: one for the first word, one for everything else."""
    turn = Turn(first_word_s(contestant, plan))
    command = [contestant.python, "-m", "benchmarks.child", contestant.engine, "measure", plan.to_json()]
    with tempfile.TemporaryFile() as errors, _start(command, plan, errors) as process:
        peak = AnonymousPeak(process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b'{"event"'):
                _take_in(turn, json.loads(line), process.pid, peak)
        status, turn.run_anonymous_bytes = process.wait(), peak.stop()
        if status or not turn.facts:
            raise _failed(contestant, status, errors)
    return turn


def _take_in(turn: Turn, facts: dict[str, Any], pid: int, peak: AnonymousPeak) -> None:
    match facts.pop("event"):
        case "loaded":
            turn.load_s, turn.load_anonymous_bytes = facts["load_s"], peak.restart()
        case "figures":
            turn.figures_ms, turn.resident_bytes = facts["figures_ms"], peak_resident_bytes(pid)
        case "facts":
            turn.facts = facts


def first_word_s(contestant: Contestant, plan: Plan) -> float:
    """Seconds from the start of a process to the first visible character of its answer."""
    command = [contestant.python, "-m", "benchmarks.child", contestant.engine, "first-word", plan.to_json()]
    if contestant.engine == "haaw":  # the command as people type it
        options = ["--model", contestant.model, "--raw", "--max-tokens", str(FIRST_WORD_TOKENS)]
        command = [contestant.python, "-m", "haaw", "run", *options, TEXT]
    start_s = time.perf_counter()
    with tempfile.TemporaryFile() as errors, _start(command, plan, errors) as process:
        assert process.stdout is not None
        while (byte := process.stdout.read(1)).isspace():
            pass
        seconds = time.perf_counter() - start_s
        process.stdout.read()
        status = process.wait()
        if status or not byte:
            raise _failed(contestant, status, errors)
    return seconds


def _start(command: Sequence[str], plan: Plan, errors: Any) -> "subprocess.Popen[bytes]":
    environment = os.environ | thread_environment(plan.threads)
    # Progress bars and look-ups on the network are no part of what is compared.
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for name in ("HAAW_CHECK_SHAPES", "OPENBLAS_THREAD_TIMEOUT"):  # HAAW sets the second one for itself
        environment.pop(name, None)
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        bufsize=0,
    )


def _failed(contestant: Contestant, status: int, errors: Any) -> EngineFailedError:
    errors.seek(0)
    said = errors.read().decode("utf-8", "replace").strip().splitlines()
    end = " | ".join(said[-3:]) or "it wrote nothing to standard error"
    return EngineFailedError(f"{contestant.engine} ended with status {status}: {end}")


def python_has(python: str, module: str) -> bool:
    """Whether an interpreter can import a module."""
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    return found.returncode == 0


def export_for_transformers(gguf: Path, work: Path) -> Path:
    """The Hugging Face folder with the weights of `gguf`, made at the first call and kept in `work`."""
    stamp = gguf.stat()
    folder = work / f"{gguf.stem}-{stamp.st_size}-{stamp.st_mtime_ns}"
    if not (folder / "config.json").exists():
        print(f"writing the weights for transformers to {folder} (once) …", file=sys.stderr)
        command = [sys.executable, "-m", "benchmarks.export_weights", str(gguf), str(folder)]
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if made.returncode:
            raise EngineFailedError(f"the export failed: {made.stderr.strip().splitlines()[-1:]}")
    return folder
