"""Where a journey starts: the machine, the process, the imports, and the way from a file to a model.

A leaf of a handful of records with `time.perf_counter_ns`, the clock of all traces; always on. Holds names of
files and never their paths.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

BEGAN_NS = time.perf_counter_ns()
"""When this module was imported, which is the first thing that importing `haaw` does."""

FIRST_KEPT, LATEST_KEPT = 40, 80

_first: list[dict[str, Any]] = []
_latest: deque[dict[str, Any]] = deque(maxlen=LATEST_KEPT)
_left_out = 0
_subject: ContextVar[dict[str, Any] | None] = ContextVar("haaw_journey_subject", default=None)


def mark(name: str, **facts: Any) -> None:
    """Notes a moment. Facts are JSON values."""
    _note(name, time.perf_counter_ns(), 0, facts)


def between(name: str, start_ns: int, end_ns: int, **facts: Any) -> None:
    """Notes what was measured elsewhere, on the clock of `time.perf_counter_ns`."""
    _note(name, start_ns, end_ns - start_ns, facts)


@contextmanager
def span(name: str, **facts: Any) -> Iterator[dict[str, Any]]:
    """Notes how long a block took, also one that fails; facts may be added to the mapping that it yields."""
    start_ns = time.perf_counter_ns()
    try:
        yield facts
    except BaseException as error:
        facts["failed"] = type(error).__name__
        raise
    finally:
        _note(name, start_ns, time.perf_counter_ns() - start_ns, facts)


@contextmanager
def about(**facts: Any) -> Iterator[None]:
    """Adds facts, such as the name of the model, to everything that the block notes."""
    before = _subject.get()
    token = _subject.set({**(before or {}), **facts})
    try:
        yield
    finally:
        _subject.reset(token)


@contextmanager
def imported(module: str) -> Iterator[None]:
    """Notes how long the block's import of a module took; nothing where it was imported before."""
    if module in sys.modules:
        yield
        return
    with span(f"import {module}"):
        yield


def so_far() -> list[dict[str, Any]]:
    """What is known by now, by start: `name`, `start_ns`, `took_ns`, `facts`.

    `start_ns` is on the clock of `time.perf_counter_ns`, so what came before the clock's own zero is
    negative. It is None for what this system does not tell. Of very many records the middle is left out, and
    a record named "left out" says how many.
    """
    middle = [_record("left out", None, None, {"records": _left_out})] if _left_out else []
    records = [*_first, *middle, *_latest]
    records.sort(key=lambda record: (record["start_ns"] is None, record["start_ns"] or 0))
    copies = [{**record, "facts": dict(record["facts"])} for record in records]
    return [*_before_python(), *copies]


def _note(name: str, start_ns: int, took_ns: int, facts: dict[str, Any]) -> None:
    global _left_out
    subject = _subject.get()
    record = _record(name, start_ns, took_ns, facts if subject is None else {**subject, **facts})
    if len(_first) < FIRST_KEPT:
        _first.append(record)
        return
    _left_out += len(_latest) == LATEST_KEPT
    _latest.append(record)


def _record(name: str, start_ns: int | None, took_ns: int | None, facts: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "start_ns": start_ns, "took_ns": took_ns, "facts": facts}


def _before_python() -> list[dict[str, Any]]:
    """When the machine and this process started; Linux tells both, to a hundredth of a second."""
    now_ns = time.perf_counter_ns()
    up_s, started_s = _uptime_s(), _process_start_s()
    machine_ns = None if up_s is None else now_ns - round(up_s * 1e9)
    known = machine_ns is not None and started_s is not None and up_s is not None and started_s <= up_s
    process_ns = machine_ns + round(started_s * 1e9) if known else None  # type: ignore[operator]
    return [
        _record("machine started", machine_ns, 0, {"up_s": up_s}),
        _record("process started", process_ns, 0, {}),
    ]


def _uptime_s() -> float | None:
    """Seconds since the machine started; None where the system does not say."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _process_start_s() -> float | None:
    """Seconds from the machine's start to this process's; None where the system does not say."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            behind_the_name = file.read().rpartition(")")[2].split()  # a program's name may hold anything
        return int(behind_the_name[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5): starttime
    except (OSError, ValueError, IndexError, AttributeError):
        return None
