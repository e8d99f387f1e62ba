"""`pull` with a progress bar on a terminal, and silence anywhere else."""

import os
from pathlib import Path

from weights_tools.catalog import CatalogEntry
from weights_tools.pull.puller import pull


def pull_with_bar(
    model: str | CatalogEntry,
    *,
    revision: str | None = None,
    into: str | os.PathLike[str] | None = None,
) -> Path:
    """Do what `pull` does, with a bar on standard error if that is a terminal; it goes away at the end."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        return pull(model, revision=revision, into=into)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        phase_shown = "starting"

        def show(phase: str, done_bytes: int, total_bytes: int | None) -> None:
            nonlocal phase_shown
            if phase != phase_shown:  # a new phase has its own speed and remaining time
                bar.reset(task, description=phase, total=total_bytes, completed=done_bytes)
                phase_shown = phase
            bar.update(task, completed=done_bytes, total=total_bytes)

        return pull(model, revision=revision, progress=show, into=into)
