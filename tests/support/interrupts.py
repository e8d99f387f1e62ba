"""Ctrl-C at a chosen line or instruction of the code under test."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import haaw
from haaw.generation.request import Request

PACKAGE = str(Path(haaw.__file__).parent)
TRAPPED = tuple(f"{PACKAGE}/{part}/" for part in ("generation", "models", "caches"))


def strike() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def interrupt_at(
    event_to_strike: int,
    *,
    every: str,
    packages: tuple[str, ...] = TRAPPED,
    action: Callable[[], object] = strike,
) -> Iterator[list[int]]:
    """Raises KeyboardInterrupt, or does something else, at the n-th line or instruction (0 never) of the packages.

    Counts them.
    """
    seen = [0]

    def local(frame, event, argument):
        if event == ("opcode" if every == "instruction" else "line"):
            seen[0] += 1
            if seen[0] == event_to_strike:
                action()
        return local

    def begin(frame, event, argument):
        if not frame.f_code.co_filename.startswith(packages):
            return None
        frame.f_trace_opcodes = every == "instruction"
        return local

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield seen
    finally:
        sys.settrace(before)


def read_to_the_end(request: Request) -> None:
    """As a careful reader of a stream does it."""
    try:
        with closing(iter(request)) as stream:
            for _ in stream:
                pass
    finally:
        request.close()
