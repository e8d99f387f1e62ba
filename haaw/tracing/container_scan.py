"""Walking through a `.haaw` file from its local headers, and past damaged places.

`walk` reads on behind a damaged header, which `verify` and repairs need; opening a file stops at the first one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from haaw.errors import BadInputError
from haaw.tracing.container_format import (
    CENTRAL,
    CENTRAL_HEADER,
    DIRECTORY_BEGINNINGS,
    END_RECORD,
    LOCAL,
    Map,
    NotAMember,
    Record,
    decode_name,
    member_at,
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes from `start` to `end` that are no whole member, and why."""

    start: int
    end: int
    reason: str
    is_cut: bool


def walk(content: Map, size_bytes: int) -> Iterator[Record | Gap]:
    """All whole members of the file, and what lies between and behind them; a good directory comes as the last gap."""
    offset = 0
    while offset < size_bytes:
        try:
            record = _named_member_at(content, offset, size_bytes)
        except NotAMember as stop:
            found = _next_member(content, offset + 1, size_bytes)
            end = size_bytes if found is None else found.header
            yield Gap(offset, end, stop.reason, stop.is_cut and found is None)
            offset = end
        else:
            yield record
            offset = record.end


def _next_member(content: Map, offset: int, size_bytes: int) -> Record | None:
    while (offset := content.find(LOCAL, offset)) >= 0:
        try:
            return _named_member_at(content, offset, size_bytes)
        except NotAMember:
            offset += 1
    return None


def _named_member_at(content: Map, offset: int, size_bytes: int) -> Record:
    record = Record(*member_at(content, offset, size_bytes))
    try:
        decode_name(record.name)
    except BadInputError as error:
        raise NotAMember(str(error).rstrip(".")) from None
    return record


def is_directory(content: Map, offset: int) -> bool:
    """Whether what begins at `offset` looks like the central directory."""
    return content[offset : offset + 4] in DIRECTORY_BEGINNINGS


def names_in_directory(content: Map, size_bytes: int) -> dict[int, str]:
    """Offset of each member's header -> its name, as far as the central directory at the end can be read.

    Only for saying which member a damaged header belongs to; offsets over 4 GB are left out.
    """
    names: dict[int, str] = {}
    end = size_bytes - END_RECORD.size
    if end < 0:
        return names
    offset = END_RECORD.unpack_from(content, end)[6]
    while offset + CENTRAL_HEADER.size <= end:
        fields = CENTRAL_HEADER.unpack_from(content, offset)
        if not fields[0].startswith(CENTRAL):
            break
        name_end = offset + CENTRAL_HEADER.size + fields[4]
        names[fields[6]] = content[offset + CENTRAL_HEADER.size : name_end].decode("utf-8", "replace")
        offset = name_end + fields[5]
    return names
