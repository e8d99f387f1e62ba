"""What every weights file offers, whatever its format: metadata, a table of tensors, and float32 values.

Knows nothing of models: names are those in the file, shapes are in row-major (NumPy) order, and nothing is
permuted, renamed or transposed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from weights_tools.formats.errors import FormatError

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of a file's table of tensors.

    `shape` is in row-major order (the last axis is contiguous), `type_name` is the storage type (`"F32"`,
    `"Q4_1"`, …), `offset` is in bytes from the start of the file that holds the data.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int

    @property
    def elements(self) -> int:
        """The number of values, padding and scales not counted."""
        return prod(self.shape)


class TensorFile(Protocol):
    """An open weights file. Errors are `FormatError`."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the file says about itself; keys as they stand in the file."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the order of the file."""

    def read_into(self, name: str, out: Float32Array, rows: slice | None = None) -> None:
        """Write a tensor, or the window `rows` of its first axis, as float32 into `out` of that shape."""

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""


def find_tensor(tensors: Mapping[str, TensorInfo], name: str, file_name: str) -> TensorInfo:
    """The table's row for `name`, else an error that names the file."""
    if (info := tensors.get(name)) is not None:
        return info
    raise FormatError(
        f"{file_name} has no tensor named {name!r}; it has {len(tensors)} tensors of other names."
    )


def row_window(info: TensorInfo, out: Float32Array, rows: slice | None) -> tuple[int, int]:
    """(first row, number of rows) that `rows` selects on the first axis, after checking that `out` fits them.

    A tensor without axes has one row. A window that is out of range, or has a step, is an error: nothing is
    clamped.
    """
    available = info.shape[0] if info.shape else 1
    start, stop = 0, available
    if rows is not None:
        start = 0 if rows.start is None else rows.start
        stop = available if rows.stop is None else rows.stop
        if rows.step not in (None, 1) or not 0 <= start <= stop <= available:
            raise FormatError(
                f"rows {rows.start}:{rows.stop}:{rows.step} of tensor {info.name!r} do not exist; "
                f"it has rows 0 to {available}, to be read in steps of 1."
            )
    expected = (stop - start, *info.shape[1:]) if info.shape else ()
    if out.dtype != np.float32 or out.shape != expected or not out.flags.writeable:
        raise FormatError(
            f"tensor {info.name!r} needs a writeable float32 array of shape {expected} to be read into, "
            f"not {out.dtype} of shape {out.shape}."
        )
    return start, stop - start
