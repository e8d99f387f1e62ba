"""`haaw` in this process and in one of its own, over a tiny model in a file."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.gguf_models import CHAT_TEMPLATE, tiny_gguf

import haaw
from haaw.cli.main import main

ROOT = Path(haaw.__file__).parent.parent


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a chat template and an endless answer."""
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=1, template=CHAT_TEMPLATE)


@pytest.fixture
def run_haaw(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process: exit status, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, error = capsys.readouterr()
        return status, out, error

    return run


@pytest.fixture
def start_haaw() -> Callable[..., "subprocess.Popen[bytes]"]:
    """Starts `python -m haaw …` with pipes, in a fresh environment without shape checks."""

    def start(*arguments: object, **environment: str) -> "subprocess.Popen[bytes]":
        kept = {name: value for name, value in os.environ.items() if name != "HAAW_CHECK_SHAPES"}
        return subprocess.Popen(
            [sys.executable, "-m", "haaw", *map(str, arguments)],
            cwd=ROOT,
            env=kept | {"OPENBLAS_NUM_THREADS": "1"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start
