"""`haaw view`: the page from this machine to this machine, with arrays fetched as they are looked at.

Listens on the loopback only. Every address begins with a random word, and requests under another host name are
refused, so that no other page in the browser can read a trace.
"""

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from haaw.errors import BadInputError, HaawError
from haaw.view.bundle import PAGE
from haaw.view.calculator import calculator_parts
from haaw.view.content import Content, to_json
from haaw.view.source import TraceSource

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class NotThereError(HaawError):
    """The page asked for something that does not exist."""


class TraceServer(ThreadingHTTPServer):
    """Serves the page for one trace at `address` until it is shut down."""

    daemon_threads = True
    block_on_close = False  # Ctrl-C does not wait for a browser

    def __init__(self, source: TraceSource, *, port: int = 0) -> None:
        """Errors: `BadInputError` for a port that is taken or not allowed."""
        if not 0 <= port <= 65_535:
            raise BadInputError(f"the port is {port}; it must be from 0 (any free one) to 65535")
        self.word = secrets.token_urlsafe(18)
        self._content = Content(source)
        self._lock = threading.Lock()  # one reader of the file at a time
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise BadInputError(
                f"port {port} cannot be used ({error.strerror}); choose another with --port, or 0 for any free one"
            ) from error

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}/{self.word}/"

    def answer(self, path: str, asked: dict[str, str]) -> tuple[str, bytes]:
        """The content type and the content of one address below the random word.

        Errors: `NotThereError`, and whatever the trace says of a value.
        """
        if path in ("", "index.html"):
            return KINDS[".html"], (PAGE / "index.html").read_bytes()
        if path.startswith("page/"):
            return _file(path.removeprefix("page/"))
        answers: dict[str, Callable[[dict[str, str]], str]] = {
            "story": self._story,
            "calculator": lambda _: to_json(calculator_parts()),
            "step": self._step,
            "value": self._value,
        }
        if path not in answers:
            raise NotThereError(f'there is no "{path:.60}" here')
        with self._lock:
            return "application/json", answers[path](asked).encode()

    def _story(self, asked: dict[str, str]) -> str:
        return to_json(self._content.story)

    def _step(self, asked: dict[str, str]) -> str:
        stage, step = asked.get("stage", ""), _number(asked.get("step"))
        try:
            return to_json(self._content.step(stage, -1 if step is None else step))
        except LookupError as error:
            raise NotThereError(f'the trace has no step "{stage:.40} {asked.get("step")!s:.20}"') from error

    def _value(self, asked: dict[str, str]) -> str:
        path = asked.get("path", "")
        try:
            return to_json(self._content.value(path, _number(asked.get("head"))))
        except LookupError as error:
            raise NotThereError(f'the trace has no value "{path:.120}"') from error


def _file(name: str) -> tuple[str, bytes]:
    """A file of the page; only those that lie directly in its folder."""
    found = {each.name: each for each in PAGE.iterdir() if each.suffix in KINDS}
    if name not in found:
        raise NotThereError(f'the page has no file "{name:.60}"')
    return KINDS[found[name].suffix], found[name].read_bytes()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


class _Handler(BaseHTTPRequestHandler):
    """GET alone; everything else is refused by the base class."""

    server: TraceServer
    server_version = "haaw"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        hosts = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        url = urlsplit(self.path)
        word, _, path = url.path.lstrip("/").partition("/")
        if self.headers.get_all("Host") not in [[host] for host in hosts]:
            self._send(403, *_said("haaw view answers to 127.0.0.1 and localhost only"))
        elif not hmac.compare_digest(word.encode(), self.server.word.encode()):
            self._send(404, *_said("open the whole address that haaw view has printed"))
        elif "/" not in url.path.lstrip("/"):
            self._send(404, *_said("the address ends with a slash"))
        else:
            self._answer(path, {name: values[0] for name, values in parse_qs(url.query).items()})

    def _answer(self, path: str, asked: dict[str, str]) -> None:
        try:
            self._send(200, *self.server.answer(path, asked))
        except NotThereError as error:
            self._send(404, *_said(str(error)))
        except HaawError as error:
            self._send(409, *_said(str(error)))
        except OSError as error:
            self._send(500, *_said(f"the trace cannot be read any more: {error.strerror}"))

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", POLICY),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to whoever started the server."""


def _said(sentence: str) -> tuple[str, bytes]:
    return "application/json", json.dumps({"error": sentence}).encode()
