"""Files on disk, for the container: what stands at a path, making a new file, mapping one, and the writer's lock."""

import contextlib
import errno
import io
import mmap
import os
import stat
import sys
from pathlib import Path

from haaw.errors import BadInputError
from haaw.tracing.container_format import (
    DIRECTORY_BEGINNINGS,
    LOCAL,
    LOCAL_HEADER,
    Map,
    TraceDamagedError,
    is_ours,
)

_WRONG_PATH = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
    errno.ENOTDIR,
    errno.ENOENT,
)


def create(path: Path, exists: str) -> io.FileIO:
    """A new file that can only be appended to, marked as being written; see `ContainerWriter` for `exists`."""
    if exists not in ("refuse", "replace"):
        raise BadInputError(f"exists={exists!r} is not known; give 'refuse' or 'replace'.")
    if "\0" in str(path):
        raise BadInputError(f"the path {str(path)!r} contains a NUL character; give another path.")
    try:
        if exists == "replace":
            _remove_container(path)
        flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o666)
    except FileExistsError:
        if is_container(path):
            raise BadInputError(
                f"{path} exists already; give another path, or replace it (exists='replace')."
            ) from None
        raise BadInputError(
            f"{path} exists and is no .haaw file, so it is left alone; give another path."
        ) from None
    except OSError as error:
        if error.errno not in _WRONG_PATH:  # a full disk, say
            raise
        if not path.parent.is_dir():
            raise BadInputError(f"the folder {path.parent} does not exist; make it first.") from None
        raise BadInputError(f"{path} cannot be created: {error.strerror}; give another path.") from None
    try_lock(descriptor)
    return io.FileIO(descriptor, "wb")


def _remove_container(path: Path) -> None:
    """Remove a `.haaw` file, or an empty one. Whoever has it mapped keeps it, which writing over it would not allow."""
    if not is_container(path) and not (path.is_file() and path.stat().st_size == 0):
        return
    with open(path, "rb") as file:
        if not try_lock(file.fileno()):
            raise BadInputError(
                f"{path} is being written just now; give another path, or wait for the end of that run."
            )
    path.unlink()


def is_container(path: Path) -> bool:
    """Whether a `.haaw` file, whole or not, stands at `path`."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with open(path, "rb") as file:
                return is_ours(file.read(1024))
    return False


if sys.platform == "win32":

    def try_lock(descriptor: int) -> bool:
        """Windows does not let a file be cut or removed while it is open, so no lock is needed."""
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Mark the file as being written until it is closed; False if another writer has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True


def regular_file(path: Path) -> os.stat_result:
    """The status of the file at `path`; a `BadInputError` if there is none, or it is a folder, pipe or device."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise BadInputError(f"there is no file {path}; check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{str(path)!r} cannot be opened: {reason}.") from None
    if stat.S_ISDIR(status.st_mode):
        raise BadInputError(f"{path} is a folder, not a .haaw file; give the file in it.")
    if not stat.S_ISREG(status.st_mode):  # a pipe or device could block for ever
        raise BadInputError(f"{path} is not a regular file; give a .haaw file on disk.")
    return status


def map_file(path: Path, size_bytes: int) -> Map:
    """The first `size_bytes` of the file in memory, read-only, without reading them first."""
    if not size_bytes:
        return b""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: the file has become shorter since it was measured
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{path} cannot be opened: {reason}.") from None


def nothing_whole(path: Path, head: bytes, sentence: str) -> BadInputError:
    """The error for a file without whole members that begins with `head` (1 KB): what it seems to be."""
    if not head:
        return BadInputError(
            f"{path} is empty; give a .haaw file (a run that has just begun may not have written yet)."
        )
    if is_ours(head):
        return TraceDamagedError(f"{path} has no whole member: {sentence}")
    if len(head) >= LOCAL_HEADER.size and head[:4] == LOCAL:
        flags, method = head[6] | head[7] << 8, head[8] | head[9] << 8
        how = "encrypted" if flags & 1 else "compressed" if method else "not written by HAAW"
        return BadInputError(f"{path} is a ZIP file, but its first member is {how}; give a .haaw file.")
    if head[:4] in DIRECTORY_BEGINNINGS:
        return BadInputError(f"{path} is a ZIP file without members; give a .haaw file.")
    return BadInputError(
        f"{path} is no .haaw file: it does not begin as one; give a trace that HAAW recorded."
    )
