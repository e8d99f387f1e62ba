"""Writing a `.haaw` file: members are appended whole, and nothing is ever written over.

After a crash or a failed write the file ends in at most one batch that is not whole, which readers leave out.
"""

import io
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.container_files import create
from haaw.tracing.container_format import central_record, encode_name, end_records, local_header
from haaw.tracing.container_npy import AnyArray, npy_header

Content: TypeAlias = "bytes | bytearray | memoryview | AnyArray"

_JOINED_BYTES = 1 << 20
"""Batches up to here are joined into one write; larger pieces are written from where they lie."""


class ContainerWriter:
    """Appends members to a new `.haaw` file; a context manager that closes it.

    `exists` says what becomes of a `.haaw` file at `path`: "refuse" or "replace". Any other file there is refused,
    and so is a folder that is missing or not writable (`BadInputError`). A full disk is the system's own `OSError`;
    after it the next call cuts off what was half written, and `abandon` does only that.
    For one thread at a time. An interruption (Ctrl-C) may come anywhere.
    """

    def __init__(self, path: str | os.PathLike[str], exists: Literal["refuse", "replace"] = "refuse") -> None:
        self.path = Path(path)
        self._file: io.FileIO | None = create(self.path, exists)
        self._directory = bytearray()
        self._names: set[bytes] = set()
        # One attribute, so that an interruption finds a batch counted wholly or not at all.
        self._whole = (0, 0, 0)  # bytes of the file, bytes of the directory, members
        self._under_way: tuple[set[bytes], tuple[int, int, int]] | None = None
        """The names of a batch that is being written, and what was whole before it."""

    @property
    def size_bytes(self) -> int:
        """How long the file is, up to its last whole member."""
        return self._whole[0]

    @property
    def count(self) -> int:
        """How many members were written."""
        return self._whole[2]

    def __contains__(self, name: str) -> bool:
        """Whether a member of that name was written, wholly."""
        self._ready()
        return name.encode() in self._names

    def add_bytes(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Append one member of plain bytes."""
        self.add_many([(name, data)])

    def add_array(self, name: str, array: AnyArray) -> None:
        """Append one array in C order as a .npy member; a `BadInputError` for objects or another memory order."""
        self.add_many([(name, array)])

    def add_many(self, members: Iterable[tuple[str, Content]]) -> None:
        """Append members, arrays as .npy; small batches in one write. Nothing is written if one of them is refused."""
        file = self._ready()
        offset, directory_bytes, count = self._whole
        pieces: list[Any] = []
        entries: list[bytes] = []
        names: set[bytes] = set()
        for name, content in members:
            encoded = encode_name(name)
            if encoded in names or encoded in self._names:
                raise BadInputError(
                    f"{self.path.name} has a member {name!r} already; give each its own name."
                )
            names.add(encoded)
            head, data = _as_bytes(name, content)
            size = len(head) + len(data)
            crc = zlib.crc32(data, zlib.crc32(head))
            header = local_header(offset, encoded, crc, size)
            pieces += (header, head, data)
            entries.append(central_record(offset, encoded, crc, size))
            offset += len(header) + size
        directory = b"".join(entries)
        self._under_way = names, self._whole
        _write_pieces(file, pieces)
        self._directory += directory
        self._names |= names
        self._whole = (offset, directory_bytes + len(directory), count + len(entries))
        self._under_way = None

    def close(self) -> None:
        """Write the central directory and close the file, which then opens as a ZIP; a second call does nothing."""
        if self._file is None:
            return
        file = self._ready()
        end, directory_bytes, count = self._whole
        self._under_way = set(), self._whole
        _write_pieces(file, [self._directory, end_records(count, end, directory_bytes)])
        self._under_way = None
        self._release()

    def abandon(self) -> None:
        """Cut the file behind its last whole member and close it without a directory; needs no space on disk."""
        if self._file is not None:
            self._ready()
            self._release()

    def _ready(self) -> io.FileIO:
        """The open file, without the rest of a batch that failed or was interrupted."""
        if self._file is None:
            raise BadInputError(f"the writer of {self.path.name} is closed; open a new one.")
        if self._under_way is not None:
            end, directory_bytes, _ = self._whole
            self._file.truncate(end)
            del self._directory[directory_bytes:]
            names, before = self._under_way
            if self._whole == before:  # else the batch is counted wholly, and only this was left to do
                self._names -= names
            self._under_way = None
        return self._file

    def _release(self) -> None:
        file, self._file = self._file, None
        self._names, self._directory = set(), bytearray()
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not isinstance(error, OSError) or self._under_way is None:
                self.close()
        finally:
            self.abandon()  # nothing to do after a close that went well


def _as_bytes(name: str, content: Content) -> tuple[bytes, Any]:
    """The .npy header, if any, and the content as flat bytes, not copied."""
    if isinstance(content, np.ndarray):
        if not content.flags.c_contiguous:
            raise BadInputError(
                f"the array for {name!r} with shape {content.shape} and strides {content.strides} is not in C order; "
                "give numpy.ascontiguousarray of it."
            )
        head = npy_header(content)
        flat = content if content.ndim == 1 else content.reshape(-1)
        return head, flat.view(np.uint8) if content.nbytes else b""
    if isinstance(content, bytes):
        return b"", content
    if isinstance(content, bytearray | memoryview) and (view := memoryview(content)).c_contiguous:
        return b"", view.cast("B") if view.nbytes else b""
    raise BadInputError(
        f"the content for {name!r} is a {type(content).__name__}; give bytes in one piece, or an array."
    )


def _write_pieces(file: io.FileIO, pieces: Sequence[Any]) -> None:
    if sum(map(len, pieces)) <= _JOINED_BYTES:
        write_all(file, b"".join(pieces))
        return
    small: list[Any] = []
    for piece in pieces:
        if len(piece) > _JOINED_BYTES // 4:
            write_all(file, b"".join(small))
            write_all(file, piece)
            small = []
        else:
            small.append(piece)
    write_all(file, b"".join(small))


def write_all(file: io.FileIO, data: Any) -> None:
    """Hand `data` to the system, which may take it in parts."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[file.write(rest) :]
