"""Reading safetensors: one file, or a folder of shards with an index.

Headers and index are checked here before any tensor is read; the data then comes through the `safetensors`
library, some rows at a time.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from weights_tools.formats.errors import FormatError
from weights_tools.formats.mapped_file import MappedFile
from weights_tools.formats.safetensors_header import load_json_object, read_safetensors_header
from weights_tools.formats.storage import SLICE_ELEMENTS, keep_freed_memory
from weights_tools.formats.tensor_file import Float32Array, TensorInfo, find_tensor, row_window

READABLE = ("F32", "F16", "BF16", "F64")
_INDEX_NAME, _SINGLE_NAME = "model.safetensors.index.json", "model.safetensors"
_LARGEST_INDEX_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: its header, and the library's handle on its data."""

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]
    handle: Any


def open_safetensors(path: str | os.PathLike[str]) -> "SafetensorsFile":
    """Open one safetensors file and check its header."""
    shard = _open_shard(Path(path))
    return SafetensorsFile(shard.path.name, shard.metadata, [shard])


def open_sharded(folder: str | os.PathLike[str]) -> "SafetensorsFile":
    """Open a folder's `model.safetensors.index.json` with all its shards, or else its `model.safetensors`.

    Missing shard files are listed before any is opened, and the index and the shards have to name the same
    tensors, in both directions.
    """
    folder = Path(folder)
    index_path = folder / _INDEX_NAME
    if not index_path.exists():
        if (folder / _SINGLE_NAME).exists():
            return open_safetensors(folder / _SINGLE_NAME)
        raise FormatError(
            f"the folder {folder} has neither {_INDEX_NAME} nor {_SINGLE_NAME}; give a model's folder."
        )
    metadata, weight_map = _read_index(index_path)
    file_names = sorted(set(weight_map.values()))
    if missing := [name for name in file_names if not (folder / name).is_file()]:
        raise FormatError(
            f"{_INDEX_NAME} names {len(file_names)} files, of which {len(missing)} are missing in {folder}: "
            f"{_listing(missing)}. Fetch them too."
        )
    shards = [_open_shard(folder / name) for name in file_names]
    _compare_with_index(weight_map, shards)
    return SafetensorsFile(folder.name, metadata, shards)


class SafetensorsFile:
    """One or several open safetensors files as one `TensorFile`; a context manager.

    `metadata` is the file's `__metadata__`, or that of the index. Integer and FP8 tensors are listed, since
    checkpoints carry masks and position ids that nobody reads, but reading one is an error.
    """

    def __init__(self, name: str, metadata: Mapping[str, Any], shards: Sequence[Shard]) -> None:
        self._name = name
        self._handles = {tensor: shard.handle for shard in shards for tensor in shard.tensors}
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {tensor: info for shard in shards for tensor, info in shard.tensors.items()}
        )

    def read_into(self, name: str, out: Float32Array, rows: slice | None = None) -> None:
        """Write tensor `name`, or the window `rows` of its first axis, as float32 into `out`, any strides."""
        info = find_tensor(self.tensors, name, self._name)
        if info.type_name not in READABLE:
            raise FormatError(
                f"{self._name}: tensor {name[:80]!r} holds {info.type_name} values, which HAAW does not read "
                f"as weights; it reads {', '.join(READABLE)}."
            )
        first_row, row_count = row_window(info, out, rows)
        if (handle := self._handles.get(name)) is None:
            raise FormatError(f"{self._name} has been closed; open it again to read from it.")
        if info.type_name == "BF16":
            import ml_dtypes  # noqa: F401  registers "bfloat16" with NumPy, which the library relies on
        if out.size:
            with np.errstate(all="ignore"):
                _copy_rows(handle, info, out, first_row, row_count)

    def read(self, name: str) -> Float32Array:
        """Tensor `name` as a new float32 array."""
        out = np.empty(find_tensor(self.tensors, name, self._name).shape, np.float32)
        self.read_into(name, out)
        return out

    def close(self) -> None:
        """Let go of the files."""
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _copy_rows(handle: Any, info: TensorInfo, out: Float32Array, first_row: int, row_count: int) -> None:
    if not info.shape:
        out[...] = handle.get_tensor(info.name)
        return
    keep_freed_memory()
    window = handle.get_slice(info.name)
    step = max(1, SLICE_ELEMENTS // prod(info.shape[1:]))
    for start in range(0, row_count, step):
        stop = min(start + step, row_count)
        out[start:stop] = window[first_row + start : first_row + stop]


def _open_shard(path: Path) -> Shard:
    with MappedFile(path) as file:
        metadata, tensors = read_safetensors_header(file)
    import safetensors

    try:
        handle = safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise FormatError(f"{path.name}: the safetensors library refuses the file: {error}.") from None
    return Shard(path, metadata, tensors, handle)


def _read_index(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with MappedFile(path) as file:
        if file.size_bytes > _LARGEST_INDEX_BYTES:
            raise FormatError(
                f"{path.name} has {file.size_bytes} bytes; at most {_LARGEST_INDEX_BYTES} are accepted."
            )
        index = load_json_object(path.name, bytes(file.content[:]), "the index")
    weight_map, metadata = index.get("weight_map"), index.get("metadata", {})
    if not isinstance(weight_map, dict) or not weight_map or not isinstance(metadata, dict):
        raise FormatError(f"{path.name} has no weight_map from tensors to files; fetch it again.")
    for file_name in weight_map.values():
        # A bare name only: an index must not reach outside its folder.
        if (
            not isinstance(file_name, str)
            or not file_name.endswith(".safetensors")
            or set(file_name) & set("/\\:\0")
        ):
            raise FormatError(
                f"{path.name} names the file {str(file_name)[:80]!r}; allowed are .safetensors files in "
                "the same folder. Do not use this model unless you trust its source."
            )
    return metadata, weight_map


def _compare_with_index(weight_map: Mapping[str, str], shards: Sequence[Shard]) -> None:
    held = {(tensor, shard.path.name) for shard in shards for tensor in shard.tensors}
    mapped = set(weight_map.items())
    if lacking := sorted(mapped - held):
        pairs = [f"{tensor[:80]!r} in {file_name}" for tensor, file_name in lacking]
        raise FormatError(
            f"{_INDEX_NAME} names tensors that are not there: {_listing(pairs)}. Fetch the files again."
        )
    if extra := sorted(held - mapped):
        pairs = [f"{tensor[:80]!r} in {file_name}" for tensor, file_name in extra]
        raise FormatError(
            f"{_INDEX_NAME} does not name tensors that are there: {_listing(pairs)}. Fetch it again."
        )


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
