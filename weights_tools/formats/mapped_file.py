"""A regular file, mapped into memory to be read, and what a foreign file looks like.

Knows no format's inside: it opens, measures, maps, and recognises the first bytes of other kinds of file so
that an error can say what the person has really got.
"""

import contextlib
import mmap
import os
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from weights_tools.formats.errors import FormatError

_PICKLE = (
    "a Python pickle, which HAAW never loads since it can run code; get the model as safetensors or GGUF"
)
_TORCH = f"a ZIP archive; if it is a PyTorch checkpoint, then it holds {_PICKLE}"
_LFS = "a Git LFS pointer and not the file itself; fetch it with `git lfs pull`"
_OLD_GGML = "a GGML file from before GGUF; get the model as GGUF version 2 or 3"
_BEGINNINGS = (
    (b"GGUF", "a GGUF file; name it .gguf"),
    (b"PK\x03\x04", _TORCH),
    (b"version https://git-lfs", _LFS),
    (b"version http://git-media", _LFS),
    (b"\x1f\x8b\x08", "a gzip archive; unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it first"),
    (b"\x93NUMPY", "a NumPy array (.npy)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file; get the model as safetensors or GGUF"),
    (b"lmgg", _OLD_GGML),
    (b"fmgg", _OLD_GGML),
    (b"tjgg", _OLD_GGML),
)


def is_safetensors(head: bytes) -> bool:
    """Whether `head` could begin a safetensors file: a header length below 4 GB, then a JSON object."""
    return head[4:9] == b"\0\0\0\0{"


def looks_like(head: bytes) -> str | None:
    """What a file that begins with `head` (64 bytes) seems to be, and what to do; None if unknown."""
    if not head:
        return "an empty file; fetch it again"
    if is_safetensors(head):
        return "a safetensors file; name it .safetensors"
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and head[2:3].strip(b"\0"):
        return _PICKLE  # a zero would make it a small number, such as the 640 that begins a llama2.c file
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if b"\0" in head:
        return None
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page, probably a download that failed; fetch the file itself"
    if text.startswith((b"{", b"[")):
        return "a JSON text; give the weights file"
    return None


class MappedFile:
    """A file's bytes in memory, read-only, without reading them first.

    `name` is the file's name for messages, `size_bytes` its length when it was opened, `mapped_ns` when that was
    (`time.perf_counter_ns`).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map `path`; anything but a readable regular file is a `FormatError`."""
        self.path = Path(path)
        self.name = self.path.name
        try:
            status = os.stat(self.path)
            if stat.S_ISDIR(status.st_mode):
                raise FormatError(f"{self.path} is a folder, not a file; give the weights file in it.")
            if not stat.S_ISREG(status.st_mode):  # a pipe or device could block for ever
                raise FormatError(f"{self.path} is not a regular file; give a file on disk.")
            with open(self.path, "rb") as file:
                self.size_bytes = os.fstat(file.fileno()).st_size
                self._content: mmap.mmap | bytes | None = b""
                if self.size_bytes:
                    self._content = mmap.mmap(file.fileno(), self.size_bytes, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise FormatError(f"there is no file {self.path}; check the path.") from None
        except (OSError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            reason = error.strerror if isinstance(error, OSError) else error
            raise FormatError(f"{self.path} cannot be opened: {reason}.") from None
        self.mapped_ns = time.perf_counter_ns()

    @property
    def content(self) -> mmap.mmap | bytes:
        """The whole file, to be sliced or unpacked from; a `FormatError` after `close`."""
        if self._content is None:
            raise FormatError(f"{self.name} has been closed; open it again to read from it.")
        return self._content

    def window(self, offset: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """A flat array that is a window on the file, not a copy."""
        return np.frombuffer(self.content, np.uint8, size_bytes, offset)

    def close(self) -> None:
        """Unmap the file; a second call does nothing."""
        mapped, self._content = self._content, None
        if isinstance(mapped, mmap.mmap):
            with contextlib.suppress(BufferError):  # a window is still in use: the last one to go unmaps it
                mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
