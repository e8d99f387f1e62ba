"""A minimal client of the Debug Adapter Protocol, to drive debugpy as an editor does.

Source: microsoft.github.io/debug-adapter-protocol (base protocol: a `Content-Length` header, then JSON).
"""

import json
import socket
import time
from typing import Any


class AdapterClient:
    """One session with a debug adapter that listens on a port of this machine."""

    def __init__(self, port: int, *, timeout_s: float) -> None:
        self._deadline_s = time.monotonic() + timeout_s
        self._socket = self._connected(port)
        self._stream = self._socket.makefile("rb")
        self._sequence = 0
        self._pending: list[dict[str, Any]] = []

    def _connected(self, port: int) -> socket.socket:
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=self._left_s())
            except ConnectionRefusedError:
                time.sleep(0.1)

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the debug adapter did not answer; pending: {self._pending}")
        return left_s

    def send(self, command: str, **arguments: Any) -> int:
        """Sends a request and returns its number."""
        self._sequence += 1
        request = {"seq": self._sequence, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self._sequence

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Sends a request and returns the body of its answer."""
        return self.answer(self.send(command, **arguments))

    def answer(self, number: int) -> dict[str, Any]:
        """The body of the answer to a request sent earlier."""
        message = self._awaited(lambda each: each["type"] == "response" and each["request_seq"] == number)
        if not message["success"]:
            raise AssertionError(f"the debug adapter refused {message['command']}: {message.get('message')}")
        return message.get("body") or {}

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next event of that name."""
        return self._awaited(lambda each: each["type"] == "event" and each["event"] == name).get("body") or {}

    def _awaited(self, wanted: Any) -> dict[str, Any]:
        while True:
            for message in self._pending:
                if wanted(message):
                    self._pending.remove(message)
                    return message
            if any(message.get("event") == "terminated" for message in self._pending):
                raise AssertionError(
                    f"the program ended before what was waited for; pending: {self._pending}"
                )
            self._pending.append(self._read())

    def _read(self) -> dict[str, Any]:
        self._socket.settimeout(self._left_s())
        length = 0
        while (line := self._stream.readline().strip()) or not length:
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
            elif not line and not length:
                raise ConnectionError("the debug adapter closed the connection")
        return json.loads(self._stream.read(length))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
