"""Reading GGUF files: metadata, the table of tensors, and tensors as float32.

Names and values stand as in the file; what they mean to a model is decided elsewhere. The header is read by
`gguf_header` and `gguf_values`, the storage types by `storage`.
"""

import os
from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from weights_tools.formats.gguf_header import Header, read_header
from weights_tools.formats.gguf_values import Value, decode_value
from weights_tools.formats.mapped_file import MappedFile
from weights_tools.formats.storage import STORAGE_TYPES, decode_into
from weights_tools.formats.tensor_file import Float32Array, TensorInfo, find_tensor, row_window


def open_gguf(path: str | os.PathLike[str]) -> "GGUFFile":
    """Open a GGUF file and check its header; `FormatError` if anything in it does not add up."""
    file = MappedFile(path)
    try:
        return GGUFFile(file, read_header(file))
    except BaseException:
        file.close()
        raise


class GGUFMetadata(Mapping[str, Any]):
    """Key -> value, read-only. Each look-up decodes anew: keep a large array rather than asking twice.

    Values are int, float, bool or str; an array of strings is a `list[str]`, one of numbers a flat array.
    """

    def __init__(self, file: MappedFile, values: Mapping[str, Value]) -> None:
        self._file = file
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return decode_value(self._file.name, self._file.content, key, value)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<{len(self)} metadata keys of {self._file.name}>"

    def length(self, key: str) -> int:
        """The number of elements of an array, without decoding it; 1 for a value that is no array."""
        return self._values[key].count


class GGUFFile:
    """An open GGUF file; a `TensorFile` and a context manager.

    Tensors are read from a memory map, so that reading costs little memory beyond `out`.
    """

    def __init__(self, file: MappedFile, header: Header) -> None:
        self._file = file
        self.mapped_ns = file.mapped_ns
        self.version = header.version
        self.metadata = GGUFMetadata(file, header.values)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(header.tensors)

    def read_into(self, name: str, out: Float32Array, rows: slice | None = None) -> None:
        """Write tensor `name`, or the window `rows` of its first axis, as float32 into `out`.

        `out` has the shape of what is read and may have any strides. Rows of a quantised tensor of one axis
        must fall on whole blocks.
        """
        info = find_tensor(self.tensors, name, self._file.name)
        first_row, row_count = row_window(info, out, rows)
        storage = STORAGE_TYPES[info.type_name]
        row_elements = prod(info.shape[1:])
        start, size_bytes = storage.byte_range(first_row * row_elements, row_count * row_elements, name)
        decode_into(storage, self._file.window(info.offset + start, size_bytes), out)

    def read(self, name: str) -> Float32Array:
        """Tensor `name` as a new float32 array."""
        out = np.empty(find_tensor(self.tensors, name, self._file.name).shape, np.float32)
        self.read_into(name, out)
        return out

    def close(self) -> None:
        """Let go of the file; values and tensors not yet read can then no longer be."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
