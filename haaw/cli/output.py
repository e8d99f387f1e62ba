"""What every command shares in writing: text to standard output, all else to standard error."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BAR_AFTER_S = 1.0
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def remark(message: str) -> None:
    """One line to standard error."""
    print(message, file=sys.stderr, flush=True)


def complain(message: str) -> int:
    """An error in one line to standard error; returns the exit status of bad input."""
    remark(f"haaw: {' '.join(message.split())}")
    return 2


def write(text: str) -> None:
    """Text to standard output at once; on a terminal, control characters of a stranger's text are spelled out."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """One JSON object to standard output."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not unicode, indent=2))


@contextmanager
def bar(description: str, *, of: str = "bytes") -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's standard error for what takes longer than a second; else None.

    It counts bytes, or what `of` says.
    """
    if not sys.stderr.isatty():
        yield None
        return
    import time

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    started_s = time.monotonic()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if of == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None, visible=False)

        def show(done_bytes: int, total_bytes: int) -> None:
            late = time.monotonic() - started_s > BAR_AFTER_S
            progress.update(task, completed=done_bytes, total=total_bytes, visible=late)

        yield show
