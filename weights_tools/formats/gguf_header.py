"""The header of a GGUF file (versions 2 and 3), read within bounds.

Turns bytes into keys and a checked table of tensors, and knows no model. Arithmetic is done with Python
integers, which do not wrap, and every number is checked before it is used.

Source of the layout: `docs/gguf.md` of the ggml project.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from weights_tools.formats.errors import FormatError
from weights_tools.formats.gguf_values import UNSIGNED_KINDS, Cursor, Value, decode_value, locate_value, short
from weights_tools.formats.mapped_file import MappedFile, looks_like
from weights_tools.formats.storage import STORAGE_TYPES
from weights_tools.formats.tensor_file import TensorInfo

# Type ids of ggml.h; those without a decoder here are listed so that they can be refused by name.
TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0",
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 31: "Q4_0_4_4", 32: "Q4_0_4_8",
    33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
    39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
SUPPORTED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

# Caps on loops in Python that a file could otherwise make long; real files stay below a tenth of each.
_MOST_KEYS, _MOST_TENSORS = 1 << 14, 1 << 16
_MOST_AXES = 4
_DEFAULT_ALIGNMENT, _LARGEST_ALIGNMENT = 32, 65_536


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says; values are still undecoded."""

    version: int
    values: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_header(file: MappedFile) -> Header:
    """Read and check the header of a GGUF file; every fault is one `FormatError`."""
    cursor = Cursor(file)
    version = _read_version(cursor)
    # The smallest tensor entry: name length, axes, type, offset. The smallest key: length, type, one byte.
    tensor_count = cursor.count("the number of tensors", 24, _MOST_TENSORS)
    key_count = cursor.count("the number of metadata keys", 13, _MOST_KEYS)
    values: dict[str, Value] = {}
    for index in range(key_count):
        key = cursor.name(f"metadata key {index}")
        if key in values:
            raise cursor.error(f"the metadata key {short(key)} occurs twice")
        values[key] = locate_value(cursor, f"the value of {short(key)}")
    entries = [_read_tensor_entry(cursor, index) for index in range(tensor_count)]
    alignment = _alignment(cursor, values)
    data_start = -(-cursor.position // alignment) * alignment
    return Header(version, values, _tensor_table(cursor, entries, data_start, alignment))


def _read_version(cursor: Cursor) -> int:
    head = bytes(cursor.content[:64])
    if head[:4] != b"GGUF":
        kind = looks_like(head)
        seems = f"it looks like {kind}" if kind else f"it begins with {head[:4]!r} and not with 'GGUF'"
        raise FormatError(f"{cursor.file_name} is not a GGUF file: {seems}.")
    cursor.step(4, "the magic")
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        raise cursor.error(
            f"big-endian GGUF (version bytes {head[4:8].hex()}) is not supported",
            "Get the little-endian file, or convert it with `gguf-convert-endian` from the gguf package.",
        )
    raise cursor.error(
        f"GGUF version {version} is not supported; versions 2 and 3 are",
        "Get the model in version 3.",
    )


def _read_tensor_entry(cursor: Cursor, index: int) -> tuple[str, tuple[int, ...], str, int]:
    name = cursor.name(f"tensor {index}")
    what = f"tensor {short(name)}"
    axes = cursor.u32(f"the number of dimensions of {what}")
    if axes > _MOST_AXES:
        raise cursor.error(f"{what} has {axes} dimensions; at most {_MOST_AXES} are allowed")
    shape = tuple(cursor.u64(f"a dimension of {what}") for _ in range(axes))[::-1]
    type_id = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    type_name = TYPE_NAMES.get(type_id)
    if type_name not in SUPPORTED:
        known = f"type {type_name} (id {type_id})" if type_name else f"the unknown type id {type_id}"
        raise cursor.error(
            f"{what} has {known}, which HAAW does not read",
            f"Get the model in one of: {', '.join(SUPPORTED)}.",
        )
    return name, shape, type_name, offset


def _alignment(cursor: Cursor, values: Mapping[str, Value]) -> int:
    if (value := values.get("general.alignment")) is None:
        return _DEFAULT_ALIGNMENT
    if value.kind not in UNSIGNED_KINDS:
        raise cursor.error("general.alignment is not an unsigned 32-bit or 64-bit number")
    alignment: int = decode_value(cursor.file_name, cursor.content, "general.alignment", value)
    if not 8 <= alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(
            f"general.alignment is {alignment}; it must be a power of two from 8 to {_LARGEST_ALIGNMENT}"
        )
    return alignment


def _tensor_table(
    cursor: Cursor, entries: list[tuple[str, tuple[int, ...], str, int]], data_start: int, alignment: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape, type_name, offset in entries:
        what = f"tensor {short(name)} ({type_name} {list(shape)})"
        if name in tensors:
            raise cursor.error(f"tensor {short(name)} occurs twice")
        if 0 in shape:
            raise cursor.error(f"{what} has a dimension of zero")
        storage = STORAGE_TYPES[type_name]
        row_elements = shape[-1] if shape else 1
        if row_elements % storage.block_elements:
            raise cursor.error(
                f"{what} has rows that are no multiple of its {storage.block_elements}-value blocks"
            )
        if offset % alignment:
            raise cursor.error(
                f"{what} begins at offset {offset}, not a multiple of the alignment {alignment}"
            )
        size_bytes = storage.size_bytes(prod(shape))
        if data_start + offset + size_bytes > cursor.end:
            raise cursor.error(
                f"{what} ends at byte {data_start + offset + size_bytes}, but the file at {cursor.end}",
                "The download is probably incomplete; fetch it again.",
            )
        tensors[name] = TensorInfo(name, shape, type_name, data_start + offset, size_bytes)
    _refuse_overlaps(cursor, tensors)
    return tensors


def _refuse_overlaps(cursor: Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    in_file_order = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in pairwise(in_file_order):
        if before.offset + before.size_bytes > after.offset:
            raise cursor.error(f"tensors {short(before.name)} and {short(after.name)} overlap in the file")
