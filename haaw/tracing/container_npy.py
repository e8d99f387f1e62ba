"""Arrays as bytes of the .npy format, version 1.0, and back. Never a pickle, and nothing allocated by a claimed shape.

Source: NumPy's `numpy.lib.format` describes the format; its limit of 10,000 characters for a header is kept, since
`numpy.load` refuses longer ones.
"""

import ast
import warnings
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib import format as npy

from haaw.errors import BadInputError
from haaw.tracing.container_format import ALIGNMENT, TraceDamagedError

LONGEST_HEADER = 10_000
_MAGIC = b"\x93NUMPY\x01\x00"
_HEAD_BYTES = len(_MAGIC) + 2
_KEYS = {"descr", "fortran_order", "shape"}

AnyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def npy_header(array: AnyArray) -> bytes:
    """The header for an array in C order, of a multiple of 64 bytes."""
    return _header(array.dtype, array.shape)


@lru_cache(maxsize=256)  # tables have as many rows as those of the step before
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    text = f"{_header_beginning(dtype)}{shape}, }}".encode("latin-1")
    padding = -(_HEAD_BYTES + len(text) + 1) % ALIGNMENT
    return b"%s%s%s%s\n" % (_MAGIC, (len(text) + padding + 1).to_bytes(2, "little"), text, b" " * padding)


@lru_cache(maxsize=256)
def _header_beginning(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        raise BadInputError(
            f"an array of dtype {dtype} holds Python objects, which a trace never stores; give numbers."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns where it drops a dtype's metadata
        descr = npy.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': "
    if npy.descr_to_dtype(descr) != dtype or not text.isascii() or len(text) > LONGEST_HEADER - 1_000:
        raise BadInputError(
            f"the dtype {str(dtype)[:80]} cannot be written as .npy and read back the same; "
            "give a view of a plain NumPy dtype, such as uint16 for bfloat16."
        )
    return text


def array_from_npy(content: memoryview, what: str) -> AnyArray:
    """A read-only array over the bytes of a whole .npy member; `what` names it in the error if it is none."""
    try:
        dtype, shape, order, start = _read_header(content)
        if prod(shape) * dtype.itemsize != len(content) - start:
            raise ValueError(
                f"its header claims the shape {_short(shape)} of {_short(dtype)}, "
                f"but it holds {len(content) - start} bytes"
            )
        # np.ndarray holds on to no memoryview, so that the file could be unmapped beneath it; np.frombuffer does.
        flat = np.frombuffer(content, np.uint8)
        return np.ndarray(shape, dtype, flat, start, order=order)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise TraceDamagedError(f"{what} is no readable .npy array: {_short(error)}.") from None


def _read_header(content: memoryview) -> tuple[np.dtype[Any], tuple[int, ...], Any, int]:
    if bytes(content[: len(_MAGIC)]) != _MAGIC or len(content) < _HEAD_BYTES:
        raise ValueError("it does not begin as .npy version 1.0 does")
    length = int.from_bytes(content[len(_MAGIC) : _HEAD_BYTES], "little")
    if length > min(LONGEST_HEADER, len(content) - _HEAD_BYTES):
        raise ValueError(f"its header would have {length} bytes, of at most {LONGEST_HEADER}")
    dtype, shape, order = _parse_header(bytes(content[_HEAD_BYTES : _HEAD_BYTES + length]))
    return dtype, shape, order, _HEAD_BYTES + length


@lru_cache(maxsize=256)
def _parse_header(text: bytes) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    try:
        header = ast.literal_eval(text.decode("latin-1"))
    except (SyntaxError, RecursionError):
        raise ValueError("its header is no Python literal") from None
    if (
        not isinstance(header, dict)
        or header.keys() != _KEYS
        or not isinstance(header["fortran_order"], bool)
    ):
        raise ValueError("its header does not have the keys descr, fortran_order and shape")
    shape = header["shape"]
    if not isinstance(shape, tuple) or not all(
        type(length) is int and 0 <= length < 2**63 for length in shape
    ):
        raise ValueError(f"its shape {_short(shape)} is not allowed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about retired spellings of dtypes
        dtype = _dtype(header["descr"])
    return dtype, shape, "F" if header["fortran_order"] else "C"


def _dtype(descr: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = npy.descr_to_dtype(descr)
    except Exception:  # a strange text raises whatever NumPy's parser stumbles over
        raise ValueError(f"its dtype {_short(descr)} is not known") from None
    if dtype.hasobject:
        raise ValueError("it claims to hold Python objects, which HAAW never loads since that can run code")
    return dtype


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."
