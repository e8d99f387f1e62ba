"""The values in a GGUF header: a cursor that never leaves the file; locating and decoding metadata values.

Values are located while the header is scanned and decoded only when asked for: a vocabulary of 128,000
strings is stepped over in a twentieth of a second. Every count and length is compared with what the file can
hold before it is used.

Source of the layout: `docs/gguf.md` of the ggml project.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weights_tools.formats.errors import FormatError
from weights_tools.formats.mapped_file import MappedFile

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
UNSIGNED_KINDS = (4, 10)
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_NUMBER_BYTES = {kind: np.dtype(text).itemsize for kind, text in _NUMBERS.items()}

# A cap on a loop in Python that a file could otherwise make long; the largest vocabularies with their merges
# come to a third of it.
_MOST_STRINGS = 1 << 21
_LONGEST_NAME_BYTES = 65_535  # the format's limit for keys
_DAMAGED = "The file is damaged or made to do harm; fetch it again from a source you trust."


@dataclass(frozen=True, slots=True)
class Value:
    """Where a metadata value lies in the file, and of what type; for an array also type and count."""

    kind: int
    element_kind: int
    count: int
    start: int
    end: int


class Cursor:
    """Reads onwards through a file's bytes; never beyond their end."""

    def __init__(self, file: MappedFile) -> None:
        self.file_name = file.name
        self.content = file.content
        self.end = file.size_bytes
        self.position = 0
        self.strings_left = _MOST_STRINGS

    def error(self, what: str, remedy: str = _DAMAGED) -> FormatError:
        """An error that names the file."""
        return FormatError(f"{self.file_name}: {what}. {remedy}")

    def step(self, size_bytes: int, what: str) -> int:
        """Step over `size_bytes`; the position before."""
        start = self.position
        if size_bytes > self.end - start:
            raise self.error(
                f"{what} at byte {start} needs {size_bytes} bytes, but only {self.end - start} are left",
                "The file is cut short or damaged; fetch it again.",
            )
        self.position = start + size_bytes
        return start

    def u32(self, what: str) -> int:
        """The next 4 bytes as a number."""
        value: int = _U32.unpack_from(self.content, self.step(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """The next 8 bytes as a number."""
        value: int = _U64.unpack_from(self.content, self.step(8, what))[0]
        return value

    def count(self, what: str, smallest_bytes: int, most: int) -> int:
        """A number of things that take at least `smallest_bytes` each and still have to fit in the file."""
        count = self.u64(what)
        if count > most or count * smallest_bytes > self.end - self.position:
            raise self.error(
                f"{what} is {count}, which is more than fits in the {self.end - self.position} bytes "
                f"that are left, or than the {most} that are accepted"
            )
        return count

    def name(self, what: str) -> str:
        """The next key or tensor name."""
        length = self.u64(f"the length of {what}")
        if length > _LONGEST_NAME_BYTES:
            raise self.error(
                f"{what} has a name of {length} bytes; at most {_LONGEST_NAME_BYTES} are allowed"
            )
        start = self.step(length, what)
        try:
            return str(self.content[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} has a name that is not valid UTF-8 (at byte {start})") from None


def locate_value(cursor: Cursor, what: str) -> Value:
    """Step over a metadata value (type, then value) and note where it lies."""
    kind = cursor.u32(f"the type of {what}")
    if kind == _STRING:
        length = cursor.u64(f"the length of {what}")
        start = cursor.step(length, what)
        return Value(kind, kind, 1, start, cursor.position)
    if kind == _ARRAY:
        return _locate_array(cursor, what)
    if kind not in _NUMBERS:
        raise cursor.error(f"{what} has the unknown type {kind}")
    start = cursor.step(_NUMBER_BYTES[kind], what)
    return Value(kind, kind, 1, start, cursor.position)


def _locate_array(cursor: Cursor, what: str) -> Value:
    kind = cursor.u32(f"the element type of {what}")
    if kind == _ARRAY:
        raise cursor.error(f"{what} is an array of arrays, which is not supported")
    if kind == _STRING:
        count = cursor.count(f"the number of strings in {what}", 8, cursor.strings_left)
        cursor.strings_left -= count
        start = cursor.position
        _step_over_strings(cursor, count, what)
    elif kind in _NUMBERS:
        count = cursor.count(f"the number of elements in {what}", _NUMBER_BYTES[kind], 1 << 48)
        start = cursor.step(count * _NUMBER_BYTES[kind], what)
    else:
        raise cursor.error(f"{what} is an array of the unknown type {kind}")
    return Value(_ARRAY, kind, count, start, cursor.position)


def _step_over_strings(cursor: Cursor, count: int, what: str) -> None:
    # The one loop that matters for speed: 128,000 tokens and 280,000 merges in Llama 3.
    unpack, data, position, last = _U64.unpack_from, cursor.content, cursor.position, cursor.end - 8
    for index in range(count):
        if position > last:
            cursor.position = min(position, cursor.end)
            cursor.step(8, f"string {index} of {what}")
        position += 8 + unpack(data, position)[0]
    cursor.step(position - cursor.position, what)


def decode_value(file_name: str, data: Any, key: str, value: Value) -> Any:
    """A metadata value as int, float, bool, str, list[str] or a flat NumPy array of numbers (a copy)."""
    raw: bytes = data[value.start : value.end]
    try:
        if value.kind == _STRING:
            return str(raw, "utf-8")
        if value.element_kind == _STRING:
            return list(_strings(raw, value.count))
    except UnicodeDecodeError:
        raise FormatError(f"{file_name}: the value of {short(key)} is not valid UTF-8. {_DAMAGED}") from None
    if value.element_kind == _BOOL and raw.translate(None, b"\0\1"):
        raise FormatError(
            f"{file_name}: the value of {short(key)} is neither true (1) nor false (0). {_DAMAGED}"
        )
    numbers = np.frombuffer(raw, _NUMBERS[value.element_kind])
    return numbers.copy() if value.kind == _ARRAY else numbers[0].item()


def _strings(raw: bytes, count: int) -> Iterator[str]:
    position = 0
    for _ in range(count):
        start = position + 8
        position = start + _U64.unpack_from(raw, position)[0]
        yield str(raw[start:position], "utf-8")


def short(name: str) -> str:
    """A name from the file, quoted, without letting it flood a message."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
