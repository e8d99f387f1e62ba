"""Giving a cut `.haaw` file its central directory, so that ZIP tools and NumPy open it."""

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

from haaw.errors import BadInputError
from haaw.tracing.container_files import try_lock
from haaw.tracing.container_format import Record, TraceDamagedError, central_directory
from haaw.tracing.container_reader import Container, Damage
from haaw.tracing.container_scan import Gap, is_directory, walk
from haaw.tracing.container_writer import ContainerWriter, write_all


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did: the file that is whole now, its members, the bytes cut off, and what was left out."""

    path: Path
    members: int
    dropped_bytes: int
    lost: tuple[Damage, ...]
    changed: bool

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.path} is whole: {self.members} members; nothing had to be done."
        lost = f" Left out: {' '.join(map(str, self.lost))}" if self.lost else ""
        return f"{self.path} is whole now: {self.members} members, {self.dropped_bytes} bytes left out.{lost}"


def repair(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> RepairReport:
    """Write the central directory for a cut file, in place, or copy all that is whole into the new file `out`.

    In place only a torn end is cut off. If that would lose whole members, or members are damaged, the file is left
    as it is (`TraceDamagedError`): with `out` the whole ones are copied and the damaged ones are left out and listed.
    A file that is still being written is refused (`BadInputError`).
    """
    path = Path(path)
    with Container.open(path) as container:
        damages = tuple(container.verify())
        if out is not None:
            return _copy_whole(container, Path(out), damages)
        if container.complete and not damages:
            return RepairReport(path, len(container.members), 0, (), changed=False)
        directory, end = _new_end(container, damages)
        members, dropped = len(container.members), container.size_bytes - end
    _replace_end(path, end, directory, end + dropped)
    return RepairReport(path, members, dropped, (), changed=True)


def _new_end(container: Container, damages: tuple[Damage, ...]) -> tuple[bytes, int]:
    """The directory to write and where, if everything up to there is whole and nothing whole lies behind it."""
    end = container.size_bytes if container.cut_at is None else container.cut_at.offset
    records = [piece for piece in walk(container.content, container.size_bytes) if isinstance(piece, Record)]
    inside = [damage for damage in damages if damage.offset < end]
    if inside or any(record.header >= end for record in records):
        raise TraceDamagedError(
            f"{container.name} cannot be repaired in place without losing whole members: {(inside or damages)[0]} "
            "Repair it into another file, which leaves out what is damaged."
        )
    return central_directory(records, end), end


def _replace_end(path: Path, end: int, directory: bytes, size_bytes: int) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise BadInputError(
            f"{path} cannot be repaired in place: {error.strerror}; repair it into another file."
        ) from None
    with io.FileIO(descriptor, "r+b") as file:
        if not try_lock(descriptor) or os.fstat(descriptor).st_size != size_bytes:
            raise BadInputError(f"{path} is being written just now; repair it when that run has ended.")
        file.truncate(end)
        file.seek(end)
        try:
            write_all(file, directory)
            os.fsync(descriptor)
        except BaseException:
            file.truncate(end)
            raise


def _copy_whole(container: Container, out: Path, damages: tuple[Damage, ...]) -> RepairReport:
    damaged, content, dropped_bytes = {damage.offset for damage in damages}, container.content, 0
    writer = ContainerWriter(out)
    try:
        for piece in walk(content, len(content)):
            if isinstance(piece, Gap):
                dropped_bytes += 0 if is_directory(content, piece.start) else piece.end - piece.start
            elif piece.start in damaged:
                dropped_bytes += piece.end - piece.header
            else:
                writer.add_bytes(piece.name.decode(), memoryview(content)[piece.start : piece.end])
        count = writer.count
        writer.close()
    except BaseException:
        writer.abandon()
        with contextlib.suppress(OSError):
            out.unlink()
        raise
    return RepairReport(out, count, dropped_bytes, damages, changed=True)
