"""What every command shares in writing: text to standard output, all else to standard error."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def write_table(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], *, dispensable: Sequence[str] = ()
) -> None:
    """Rows in columns; on a terminal that is too narrow without the `dispensable` ones, the first of them first."""
    from haaw.tracing.display import text_table

    def made() -> str:
        return text_table(columns, [[row[name] for name in columns] for row in rows])

    text, left_out = made(), list[str]()
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        for name in [each for each in dispensable if each in columns]:
            if max(map(len, text.splitlines())) <= width:
                break
            columns = [each for each in columns if each != name]
            left_out.append(name)
            text = made()
    write(f"{text}\n")
    if left_out:
        write(f"Left out, since this terminal is narrow: {', '.join(left_out)}. --json has them.\n")


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
