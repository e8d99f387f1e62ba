"""The header of a safetensors file, checked before the library sees the file.

The two descriptions of each tensor (shape and type; byte range) have to agree, and the ranges have to cover
the data exactly. Source of the layout and its cap: `README.md` of the safetensors project.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from weights_tools.formats.errors import FormatError
from weights_tools.formats.mapped_file import MappedFile, is_safetensors, looks_like
from weights_tools.formats.tensor_file import TensorInfo

_LONGEST_HEADER_BYTES = 100_000_000  # the format's own cap
_MOST_AXES = 32  # more than NumPy 1 could hold
_MOST_ELEMENTS = 1 << 56  # zero axes not counted: an empty tensor must stay within what NumPy accepts
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


def read_safetensors_header(file: MappedFile) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """(metadata, tensors) of a safetensors file; every fault is one `FormatError`."""
    length = _header_length(file)
    header = load_json_object(file.name, bytes(file.content[8 : 8 + length]), "its header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(
            f"{file.name}: __metadata__ is not a table of texts. The file is damaged; fetch it again."
        )
    data_start = 8 + length
    tensors = {name: _tensor_info(file.name, name, entry, data_start) for name, entry in header.items()}
    _check_ranges(file, tensors, data_start)
    return metadata, tensors


def _header_length(file: MappedFile) -> int:
    head = bytes(file.content[:64])
    if not is_safetensors(head) and (kind := looks_like(head)):
        raise FormatError(f"{file.name} is not a safetensors file: it looks like {kind}.")
    if len(head) < 10:
        raise FormatError(
            f"{file.name} has {len(head)} bytes, too few for a safetensors file; fetch it again."
        )
    length = int.from_bytes(head[:8], "little")
    if length > _LONGEST_HEADER_BYTES:
        raise FormatError(
            f"{file.name}: the header is said to have {length} bytes, above the cap of "
            f"{_LONGEST_HEADER_BYTES}. The file is damaged or no safetensors file."
        )
    if length > file.size_bytes - 8:
        raise FormatError(
            f"{file.name}: the header is said to have {length} bytes, but the file has only "
            f"{file.size_bytes}. The download is probably incomplete; fetch it again."
        )
    if head[8:9] != b"{":
        raise FormatError(
            f"{file.name} is not a safetensors file: its header begins with {head[8:9]!r}, not with '{{'."
        )
    return length


def load_json_object(file_name: str, text: bytes, what: str) -> dict[str, Any]:
    """A JSON object whose keys all differ; anything else is a `FormatError`."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise FormatError(f"{file_name}: {what} is not valid JSON: {reason}. Fetch the file again.") from None
    if not isinstance(value, dict):
        raise FormatError(f"{file_name}: {what} is not a JSON object. Fetch the file again.")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in table if names.count(name) > 1)
        raise ValueError(f"the name {twice[:80]!r} occurs twice")
    return table


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # JSON's true is an int too


def _tensor_info(file_name: str, name: str, entry: Any, data_start: int) -> TensorInfo:
    what = f"{file_name}: tensor {name[:80]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{what} does not have just dtype, shape and data_offsets. The file is damaged.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise FormatError(f"{what} has the unknown type {str(dtype)[:40]!r}; known are {', '.join(_BITS)}.")
    if not isinstance(shape, list) or not all(map(_is_count, shape)) or len(shape) > _MOST_AXES:
        raise FormatError(f"{what} has no proper shape: {str(shape)[:80]}. The file is damaged.")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise FormatError(f"{what} has no proper data_offsets: {str(offsets)[:80]}. The file is damaged.")
    begin, end = offsets
    bits = prod(shape) * _BITS[dtype]
    if prod(axis or 1 for axis in shape) > _MOST_ELEMENTS or 8 * (end - begin) != bits:
        raise FormatError(
            f"{what} has {end - begin} bytes (data_offsets {str(offsets)[:80]}), but {dtype} of shape "
            f"{str(shape)[:80]} takes another number. The file is damaged or made to do harm."
        )
    return TensorInfo(name, tuple(shape), dtype, data_start + begin, end - begin)


def _check_ranges(file: MappedFile, tensors: Mapping[str, TensorInfo], data_start: int) -> None:
    reached = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.size_bytes)):
        what = f"{file.name}: tensor {info.name[:80]!r} begins at data byte {info.offset - data_start}"
        if info.offset != reached:
            kind = "overlaps the tensor before it" if info.offset < reached else "leaves a gap before it"
            raise FormatError(
                f"{what} and {kind}, which ends at {reached - data_start}. The file is damaged."
            )
        reached += info.size_bytes
    if reached != file.size_bytes:
        raise FormatError(
            f"{file.name}: the tensors end at byte {reached}, but the file at {file.size_bytes}. "
            "The download is probably incomplete; fetch it again."
        )
