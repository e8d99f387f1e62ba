"""One pull of a file at a time, between processes; the lock goes away with the process that holds it."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from weights_tools.pull.errors import Progress

POLL_S = 0.1


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path` while the body runs, waiting for it; its folder comes and goes with it."""
    descriptor = _acquire(path, progress)
    try:
        yield
    finally:
        # The file goes first and the lock after it: whoever waits then sees that its file is no longer the
        # one at this path, and starts over. Windows cannot remove an open file, and keeps it.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _acquire(path: Path, progress: Progress) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            if not path.parent.parent.is_dir():
                raise
            continue  # the one who held the lock removed the folder between the two calls
        try:
            while not _try_lock(descriptor):
                progress("waiting for another pull", 0, None)
                time.sleep(POLL_S)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
