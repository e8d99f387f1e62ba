"""Reading a `.haaw` file from its local headers, so that growing and cut files open too.

The file is mapped, not read. Members are windows on the map; a checksum is looked at when a member is first read.
"""

import contextlib
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from haaw.errors import BadInputError
from haaw.tracing.container_files import map_file, nothing_whole, regular_file
from haaw.tracing.container_format import (
    Map,
    NotAMember,
    Record,
    TraceDamagedError,
    central_directory,
    decode_name,
    member_at,
)
from haaw.tracing.container_npy import AnyArray, array_from_npy
from haaw.tracing.container_scan import Gap, is_directory, names_in_directory, walk


class Member(NamedTuple):
    """Where the content of a member stands in the file, its length in bytes, and its CRC-32."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the whole members of a file without a good end stop, why, and how many bytes are left over.

    `is_torn` where the file just ends too soon, as when a run was stopped; else what stands there was damaged.
    """

    offset: int
    left_over_bytes: int
    sentence: str
    is_torn: bool

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place: the member's name (None: not known, or no member), the byte where it begins, a sentence.

    `is_torn` where the file just ends too soon, as when a run was stopped.
    """

    name: str | None
    offset: int
    sentence: str
    is_torn: bool = False

    def __str__(self) -> str:
        return self.sentence


class _Members(Mapping[str, Member]):
    """Name -> Member, in the order of the file; a view on the scan's plain tuples."""

    def __init__(self, tuples: dict[str, tuple[int, int, int]]) -> None:
        self._tuples = tuples

    def __getitem__(self, name: str) -> Member:
        return Member._make(self._tuples[name])

    def __contains__(self, name: object) -> bool:
        return name in self._tuples

    def __iter__(self) -> Iterator[str]:
        return iter(self._tuples)

    def __len__(self) -> int:
        return len(self._tuples)


class Container:
    """An open `.haaw` file; a context manager. Made by `Container.open`.

    `members` are its whole members, `complete` says whether the file was closed properly, and `cut_at` where it ends
    if not. A file that is still growing is not complete; `refresh` looks for more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self._tuples: dict[str, tuple[int, int, int]] = {}
        self.members: Mapping[str, Member] = _Members(self._tuples)
        self._verified: set[str] = set()
        self._end = 0
        self._map: Map | None = b""
        self.cut_at: Cut | None = None
        self._status = regular_file(self.path)
        self._take_in(self._status.st_size)
        if not self._tuples and self.cut_at is not None:
            raise nothing_whole(self.path, self.content[:1024], self.cut_at.sentence)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open and scan `path`; a `BadInputError` if it is no `.haaw` file, or has no whole member."""
        return cls(path)

    @property
    def complete(self) -> bool:
        """Whether the central directory was reached and lists exactly the members that were found."""
        return self.cut_at is None

    @property
    def size_bytes(self) -> int:
        """The file's length when it was last looked at."""
        return len(self.content)

    @property
    def content(self) -> Map:
        """The whole file, to be sliced or unpacked from; a `BadInputError` after `close`."""
        if self._map is None:
            raise BadInputError(f"{self.name} has been closed; open it again to read from it.")
        return self._map

    def refresh(self) -> list[str]:
        """Look at the file again; the names of the members appended since. Arrays read before stay valid."""
        content, status = self.content, regular_file(self.path)
        if not os.path.samestat(status, self._status) or status.st_size < self._end:
            raise TraceDamagedError(
                f"{self.path} is another file now, or was cut, since it was opened; open it again."
            )
        return [] if status.st_size == len(content) else self._take_in(status.st_size)

    def _take_in(self, size_bytes: int) -> list[str]:
        # The old map goes away by itself with the last array that looks into it.
        self._map = content = map_file(self.path, size_bytes)
        before = len(self._tuples)
        reason = self._scan(content, size_bytes)
        self.cut_at = self._look_at_end(content, size_bytes, reason)
        return list(self._tuples)[before:]

    def _scan(self, content: Map, size_bytes: int) -> NotAMember | None:
        """Take in the whole members from `_end` on; why the next one is none."""
        offset, tuples = self._end, self._tuples
        try:
            while True:
                _, encoded, crc, size, start = member_at(content, offset, size_bytes)
                name = decode_name(encoded)
                if name in tuples:
                    raise TraceDamagedError(
                        f"{self.name} has two members named {name!r}, which no writer of HAAW makes."
                    )
                tuples[name] = (start, size, crc)
                self._end = offset = start + size
        except NotAMember as stop:
            at_end = offset == size_bytes or is_directory(content, offset)
            return None if at_end else stop

    def _look_at_end(self, content: Map, size_bytes: int, stop: NotAMember | None) -> Cut | None:
        left_over = size_bytes - self._end
        if stop is not None:
            reason, is_torn = stop.reason, stop.is_cut
        elif is_directory(content, self._end):
            expected = central_directory(self._records(), self._end)
            if _is_rest(content, self._end, expected):
                return None
            reason = "the directory at its end is cut off or damaged"
            is_torn = _is_torn(content, self._end, expected)
        else:
            reason, is_torn = "its directory has not been written", True
        sentence = (
            f"{self.name} ends after {len(self._tuples)} whole members at byte {self._end}: {reason}; "
            f"{left_over} bytes are left over."
        )
        return Cut(self._end, left_over, sentence, is_torn)

    def _records(self) -> Iterator[tuple[int, bytes, int, int, int]]:
        header = 0
        for name, (start, size, crc) in self._tuples.items():
            yield header, name.encode(), crc, size, start
            header = start + size

    def read(self, name: str) -> memoryview:
        """The bytes of a member: a read-only window on the file. A `TraceDamagedError` if its checksum is wrong."""
        content = self.content
        if (found := self._tuples.get(name)) is None:
            raise BadInputError(
                f"{self.name} has no member {name[:80]!r}; it has {len(self._tuples)}, listed by `members`."
            )
        start, size, crc = found
        window = memoryview(content)[start : start + size]
        if name not in self._verified:
            if zlib.crc32(window) != crc:
                raise TraceDamagedError(_wrong_checksum(name, self.name, start))
            self._verified.add(name)
        return window

    def array(self, name: str) -> AnyArray:
        """The array in a .npy member: read-only, a window on the file. A `TraceDamagedError` if it is none."""
        return array_from_npy(self.read(name), f"{name} of {self.name}")

    def verify(self) -> Iterator[Damage]:
        """Look at every byte of the file anew; each damaged place, by the name of its member where it can be told."""
        content = self.content
        size_bytes = len(content)
        names: dict[int, str] | None = None
        records: list[Record] = []
        before = "the beginning"
        gaps = False
        for piece in walk(content, size_bytes):
            if isinstance(piece, Record):
                records.append(piece)
                before = piece.name.decode()
                if zlib.crc32(memoryview(content)[piece.start : piece.end]) != piece.crc:
                    yield Damage(before, piece.start, _wrong_checksum(before, self.name, piece.start))
            elif piece.end == size_bytes and not gaps and is_directory(content, piece.start):
                expected = central_directory(records, piece.start)
                if not _is_rest(content, piece.start, expected):
                    is_torn = _is_torn(content, piece.start, expected)
                    yield Damage(None, piece.start, self._wrong_directory(piece.start), is_torn)
            elif not (piece.end == size_bytes and is_directory(content, piece.start)):
                gaps = True
                names = names_in_directory(content, size_bytes) if names is None else names
                yield self._damaged_gap(piece, names.get(piece.start), before)

    def _wrong_directory(self, offset: int) -> str:
        return (
            f"the directory at the end of {self.name} (byte {offset}) is cut off or damaged; the members are not "
            "concerned, and `haaw trace repair` writes it again."
        )

    def _damaged_gap(self, gap: Gap, name: str | None, before: str) -> Damage:
        which = f"{name} of {self.name}" if name else f"what follows {before} in {self.name}"
        what = "is not whole" if gap.is_cut else "is damaged"
        sentence = f"{which} {what} ({gap.reason}; bytes {gap.start} to {gap.end})."
        return Damage(name, gap.start, sentence, gap.is_cut)

    def close(self) -> None:
        """Let go of the file; arrays read before stay valid. A second call does nothing."""
        mapped, self._map = self._map, None
        if isinstance(mapped, mmap.mmap):
            with contextlib.suppress(BufferError):  # an array is still in use: the last one to go unmaps it
                mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wrong_checksum(name: str, file_name: str, offset: int) -> str:
    return (
        f"{name} of {file_name} is damaged (its checksum does not match; its content begins at byte {offset}); "
        "take it from another copy of the file."
    )


def _is_rest(content: Map, offset: int, expected: bytes) -> bool:
    return len(content) - offset == len(expected) and content[offset:] == expected


def _is_torn(content: Map, offset: int, expected: bytes) -> bool:
    return len(content) - offset < len(expected) and expected.startswith(content[offset:])
