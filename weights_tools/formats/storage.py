"""Storage types of weights, and turning their bytes into float32 in bounded slices.

Knows bytes and blocks, not files. The block types are decoded by the format owner's library, `gguf.quants`,
which is imported when the first such tensor is read.
"""

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt

from weights_tools.formats.errors import FormatError

Float32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# 256 KB of float32 stays in the level-2 cache through the library's six or so passes: measured on one core,
# slices of 64 or 128 Ki elements cost 2 ns (Q8_0) to 6 ns (Q5_0, Q5_K) an element, 1 Mi twice that; a second
# thread gained nothing. A multiple of every block length.
SLICE_ELEMENTS = 64 * 1024


@dataclass(frozen=True, slots=True)
class StorageType:
    """How values are stored: blocks of `block_elements` values in `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int

    def size_bytes(self, elements: int) -> int:
        """Bytes that hold `elements` values, a whole number of blocks."""
        return elements // self.block_elements * self.block_bytes

    def byte_range(self, first_element: int, elements: int, name: str) -> tuple[int, int]:
        """(offset, length) in bytes of a run of elements of tensor `name`, which must be whole blocks."""
        if first_element % self.block_elements or elements % self.block_elements:
            raise FormatError(
                f"elements {first_element} to {first_element + elements} of tensor {name!r} are not "
                f"whole blocks of {self.block_elements} ({self.name}); read the whole tensor."
            )
        return self.size_bytes(first_element), self.size_bytes(elements)


# Block layouts: ggml-common.h of the ggml project (block_q4_0 … block_q6_K).
STORAGE_TYPES = {
    storage.name: storage
    for storage in (
        StorageType("F64", 1, 8),
        StorageType("F32", 1, 4),
        StorageType("F16", 1, 2),
        StorageType("BF16", 1, 2),
        StorageType("Q4_0", 32, 18),
        StorageType("Q4_1", 32, 20),
        StorageType("Q5_0", 32, 22),
        StorageType("Q5_1", 32, 24),
        StorageType("Q8_0", 32, 34),
        StorageType("Q4_K", 256, 144),
        StorageType("Q5_K", 256, 176),
        StorageType("Q6_K", 256, 210),
    )
}


def decode_into(storage: StorageType, data: Bytes, out: Float32Array) -> None:
    """Write the values stored in `data` (flat bytes, whole blocks) to `out` (any strides), slice by slice.

    The last axis of `out` is a whole number of blocks, or `out` is flat or contiguous. Temporaries stay near
    2 MB. Infinities and NaN pass through unremarked: judging the weights is the caller's business.
    """
    if out.size == 0:
        return
    if out.flags.c_contiguous:
        out = out.reshape(-1)
    keep_freed_memory()
    row_elements = prod(out.shape[1:])
    if row_elements > SLICE_ELEMENTS:
        row_bytes = storage.size_bytes(row_elements)
        for row, window in enumerate(out):
            decode_into(storage, data[row * row_bytes : (row + 1) * row_bytes], window)
        return
    step = SLICE_ELEMENTS // row_elements
    for start in range(0, len(out), step):
        window = out[start : start + step]
        first_byte = storage.size_bytes(start * row_elements)
        chunk = data[first_byte : first_byte + storage.size_bytes(window.size)]
        with np.errstate(all="ignore"):
            window[...] = decode(storage, chunk).reshape(window.shape)


@cache
def keep_freed_memory() -> None:
    """Make glibc reuse the temporaries of one slice for the next instead of returning them to the system.

    Its allocator takes the largest block ever freed as the limit up to which it keeps memory. Without this
    SmolLM2-135M costs 490,000 page faults instead of 105,000, and 1.2 s instead of 0.75 s.
    """
    np.empty(4 * 1024 * 1024, np.uint8)


def decode(storage: StorageType, data: Bytes) -> npt.NDArray[np.floating]:
    """The values of a small piece of `data`, flat, in a type that float32 assignment rounds or widens."""
    match storage.name:
        case "F64":
            return data.view("<f8")
        case "F32":
            return data.view("<f4")
        case "F16":
            return data.view("<f2")
        case "BF16":  # the upper half of a float32
            return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    from gguf.constants import GGMLQuantizationType  # 70 ms, wanted only here
    from gguf.quants import dequantize

    # One long row: the library works through groups of 16 rows, which for narrow rows costs more in calls
    # than in arithmetic.
    values: Float32Array = dequantize(data.reshape(1, -1), GGMLQuantizationType[storage.name])
    return values
