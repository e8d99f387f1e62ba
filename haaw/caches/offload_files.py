"""Arrays that are files: without a name, of full size from the start, gone with the array.

A file that was never filled would fail when a page of it is first written and the disk is full, by a signal that
ends the process. So all of it is reserved at once, where a full disk is an error like any other.
"""

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from haaw.caches.protocol import CacheError

ZEROS = bytes(1 << 20)

# Not an argument of the operation: an event that runs again elsewhere must not ask for this machine's folders.
_FOLDER: ContextVar[str | None] = ContextVar("haaw_offload_folder", default=None)


@contextlib.contextmanager
def in_folder(folder: str | None) -> Iterator[None]:
    """Files that are made in the block lie in `folder`; None: the system's folder for temporary files."""
    before = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(before)


def mapped_zeros(shape: tuple[int, ...], dtype: str) -> Any:
    """A NumPy array of zeros whose memory is a file; no other process can open it.

    Errors: `CacheError` where the folder is gone, cannot be written to, or the disk has no room.
    """
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    folder = _FOLDER.get()
    try:
        with tempfile.TemporaryFile(prefix="haaw-", dir=folder) as file:
            _reserve(file.fileno(), nbytes)
            memory = mmap.mmap(file.fileno(), nbytes)
    except OSError as error:
        raise CacheError(
            f"no file of {nbytes:,} bytes could be made for the cache in {folder or 'the folder for temporary files'} "
            f"({error.strerror or error}); free some disk space or choose another folder"
        ) from error
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def _reserve(file: int, nbytes: int) -> None:
    """Makes the file that long, and its blocks its own."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # not every file system can
                raise
    left = nbytes
    while left:
        left -= os.write(file, ZEROS[: min(left, len(ZEROS))])
