"""The bytes of a `.haaw` file: headers of members, the central directory, and the names that are allowed.

Every header has exactly one right form, given the member's place, name, checksum and size. So a reader does not
interpret headers: it makes the right one and compares. That finds any changed bit, padding included.

The layout is that of a ZIP file (PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.14 to 4.3.16), stored only.
The extra field 0x4148 ("HA") of a local header holds a CRC-32 of the header, then zeros up to the alignment.
"""

import mmap
import re
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from haaw.errors import BadInputError

ALIGNMENT = 64
"""Members begin at multiples of this many bytes of the file; a .npy header is a multiple of it too."""

LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
END, WIDE_END, WIDE_LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
DIRECTORY_BEGINNINGS = (CENTRAL, END, WIDE_END)

LONGEST_NAME_BYTES = 512
LIMIT_16, LIMIT_32 = 0xFFFF, 0xFFFF_FFFF
"""Counts, sizes and offsets from here on take ZIP64 fields. Tests lower them."""

_IN_WIDE_FIELD_16, _IN_WIDE_FIELD_32 = 0xFFFF, 0xFFFF_FFFF
_VERSION, _WIDE_VERSION = struct.pack("<H", 20), struct.pack("<H", 45)
_UTF8_STORED_1980 = struct.pack(
    "<4H", 0x0800, 0, 0, (1 << 5) | 1
)  # one date: two equal runs give equal files
_WIDE_ID, CHECK_ID = 0x0001, b"HA"

# What is the same in all headers is packed once: these functions run for each member written or scanned.
_LOCAL_BEGINNING = LOCAL + _VERSION + _UTF8_STORED_1980
_WIDE_LOCAL_BEGINNING = LOCAL + _WIDE_VERSION + _UTF8_STORED_1980
_CENTRAL_BEGINNING = CENTRAL + _VERSION * 2 + _UTF8_STORED_1980
_WIDE_CENTRAL_BEGINNING = CENTRAL + _WIDE_VERSION * 2 + _UTF8_STORED_1980

LOCAL_HEADER = struct.Struct("<14s3I2H")
_LOCAL_FIELDS = struct.Struct("<4s10x3I2H")
_WIDE_SIZES = struct.Struct("<HHQQ")
_CHECK = struct.Struct("<2sHI")
CENTRAL_HEADER = struct.Struct("<16s3I2H10xI")
_WIDE_END_RECORD = struct.Struct("<4sQ4s2I4Q")
_WIDE_LOCATOR_RECORD = struct.Struct("<4sIQI")
END_RECORD = struct.Struct("<4s4H2IH")
_USUAL_HEADER_BYTES = 192
_LONGEST_EXTRA_BYTES = _WIDE_SIZES.size + _CHECK.size + ALIGNMENT

_PART = r"(?!\.\.?(?:/|\Z))[^/\\:\x00-\x1f\x7f-\x9f]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")

Map: TypeAlias = mmap.mmap | bytes
"""A file's bytes, mapped; an empty file cannot be."""


class TraceDamagedError(BadInputError):
    """A `.haaw` file does not hold what was written into it."""


class NotAMember(Exception):  # noqa: N818  it steers the scan and reaches nobody
    """What stands at a place of the file is no whole member; `reason` says why, `is_cut` if the file ends too soon."""

    def __init__(self, reason: str, is_cut: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.is_cut = reason, is_cut


class Record(NamedTuple):
    """One member as it stands in the file: where its header begins, where its data, and what it should hold."""

    header: int
    name: bytes
    crc: int
    size: int
    start: int

    @property
    def end(self) -> int:
        """Where the next member begins."""
        return self.start + self.size


def encode_name(name: str) -> bytes:
    """The name in the file; a `BadInputError` unless it is a plain relative path that any system can unpack."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    if len(encoded) > LONGEST_NAME_BYTES or not _NAME.fullmatch(name) or not encoded:
        raise BadInputError(
            f"the member name {_shown(name)} is not allowed; give a relative path of at most "
            f"{LONGEST_NAME_BYTES} bytes with '/' between its parts, without '..', backslashes, "
            "colons and control characters."
        )
    return encoded


def decode_name(encoded: bytes) -> str:
    """The name of a member as text, with the same rules as `encode_name`."""
    try:
        name = encoded.decode()
    except UnicodeDecodeError:
        name = encoded.decode("latin-1") + "\x00"
    if not _NAME.fullmatch(name):
        encode_name(name)
    return name


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else name[:77] + "...")


def local_header(offset: int, name: bytes, crc: int, size: int) -> bytes:
    """The header of a member that begins at `offset`, padded so that its data is aligned."""
    beginning, wide, shown = _LOCAL_BEGINNING, b"", size
    if size >= LIMIT_32:
        beginning, shown = _WIDE_LOCAL_BEGINNING, _IN_WIDE_FIELD_32
        wide = _WIDE_SIZES.pack(_WIDE_ID, 16, size, size)
    length, extra = len(name), len(wide) + _CHECK.size
    padding = -(offset + LOCAL_HEADER.size + length + extra) % ALIGNMENT
    head = LOCAL_HEADER.pack(beginning, crc, shown, shown, length, extra + padding) + name + wide
    # Starting from the offset, the check holds at this place only: a copy of a member within another is none.
    check = zlib.crc32(head, offset & 0xFFFF_FFFF)
    return head + _CHECK.pack(CHECK_ID, 4 + padding, check) + bytes(padding)


def central_record(offset: int, name: bytes, crc: int, size: int) -> bytes:
    """The entry of the central directory for a member whose header begins at `offset`."""
    wide, shown_size, shown_offset = b"", size, offset
    if size >= LIMIT_32:
        wide, shown_size = struct.pack("<QQ", size, size), _IN_WIDE_FIELD_32
    if offset >= LIMIT_32:
        wide, shown_offset = wide + struct.pack("<Q", offset), _IN_WIDE_FIELD_32
    beginning = _CENTRAL_BEGINNING
    if wide:
        beginning, wide = _WIDE_CENTRAL_BEGINNING, struct.pack("<HH", _WIDE_ID, len(wide)) + wide
    fields = CENTRAL_HEADER.pack(beginning, crc, shown_size, shown_size, len(name), len(wide), shown_offset)
    return fields + name + wide


def end_records(count: int, start: int, size: int) -> bytes:
    """What closes a directory of `count` entries and `size` bytes that begins at `start`."""
    wide = b""
    if count >= LIMIT_16 or start >= LIMIT_32 or size >= LIMIT_32:
        length, versions = _WIDE_END_RECORD.size - 12, _WIDE_VERSION * 2
        wide = _WIDE_END_RECORD.pack(WIDE_END, length, versions, 0, 0, count, count, size, start)
        wide += _WIDE_LOCATOR_RECORD.pack(WIDE_LOCATOR, 0, start + size, 1)
    count = count if count < LIMIT_16 else _IN_WIDE_FIELD_16
    start = start if start < LIMIT_32 else _IN_WIDE_FIELD_32
    size = size if size < LIMIT_32 else _IN_WIDE_FIELD_32
    return wide + END_RECORD.pack(END, 0, 0, count, count, size, start, 0)


def central_directory(records: Iterable[tuple[int, bytes, int, int, int]], start: int) -> bytes:
    """The whole end of a file whose members `records` end at `start`."""
    entries = [central_record(header, name, crc, size) for header, name, crc, size, _ in records]
    directory = b"".join(entries)
    return directory + end_records(len(entries), start, len(directory))


def member_at(content: Map, offset: int, size_bytes: int) -> tuple[int, bytes, int, int, int]:
    """The fields of a `Record` for the member whose header begins at `offset` of a file of `size_bytes`.

    `NotAMember` if no whole one does. Nothing is allocated by what the header claims, and the data is not read.
    """
    found = content[
        offset : offset + _USUAL_HEADER_BYTES
    ]  # one look at the map: each costs more than the arithmetic
    if len(found) < LOCAL_HEADER.size:
        raise NotAMember("the file ends within the header of a member", is_cut=True)
    signature, crc, size, _, name_bytes, _ = _LOCAL_FIELDS.unpack_from(found)
    if signature != LOCAL:
        raise NotAMember("what stands there is no member")
    if name_bytes > LONGEST_NAME_BYTES:
        raise NotAMember(f"the header of a member is damaged: its name would have {name_bytes} bytes")
    name_end = LOCAL_HEADER.size + name_bytes
    if name_end + _LONGEST_EXTRA_BYTES > _USUAL_HEADER_BYTES:
        found = content[offset : offset + name_end + _LONGEST_EXTRA_BYTES]
    name = found[LOCAL_HEADER.size : name_end]
    if size == _IN_WIDE_FIELD_32:
        if name_end + _WIDE_SIZES.size > len(found):
            raise NotAMember("the file ends within the header of a member", is_cut=True)
        size = _WIDE_SIZES.unpack_from(found, name_end)[2]
    header = local_header(offset, name, crc, size)
    start = offset + len(header)
    if start > size_bytes:
        raise NotAMember("the file ends within the header of a member", is_cut=True)
    if not found.startswith(header):
        raise NotAMember("the header of a member is damaged")
    if size > size_bytes - start:
        shown = f"only {size_bytes - start} of {size} bytes"
        raise NotAMember(f"the file holds {shown} of {_shown(name.decode('utf-8', 'replace'))}", is_cut=True)
    return offset, name, crc, size, start


def is_ours(head: bytes) -> bool:
    """Whether a file that begins with `head` (1 KB) seems to be a `.haaw` file, whole or damaged."""
    if head[:4] != LOCAL or len(head) < LOCAL_HEADER.size:
        return head == end_records(0, 0, 0)
    _, _, size, _, name_bytes, _ = _LOCAL_FIELDS.unpack_from(head)
    check = LOCAL_HEADER.size + name_bytes + (_WIDE_SIZES.size if size == _IN_WIDE_FIELD_32 else 0)
    return head[check : check + 2] == CHECK_ID
