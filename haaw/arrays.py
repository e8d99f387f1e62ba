"""Which array library holds this array, its dtype rules, and the one door to the host.

Knows NumPy and CuPy; anything else must follow the array API's `__array_namespace__`.
Nothing here chooses a library: it always comes from the array at hand.
"""

from functools import cache
from typing import Any

from haaw import journey

with journey.imported("numpy"):
    import numpy as np

from haaw.errors import BadInputError, MissingLibraryError

Array = Any
"""An array of NumPy, CuPy or a look-alike. Shapes stand in names: see `haaw.ops.shapes`."""


def namespace(x: Array) -> Any:
    """The array library of `x`, as a module: `numpy`, `cupy`, or what `__array_namespace__` says."""
    if type(x) is np.ndarray:
        return np
    if _is_of_cupy(x):
        import cupy

        return cupy
    if isinstance(x, np.ndarray | np.generic):
        return np
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    raise BadInputError(
        f"an array of NumPy or CuPy is needed, not {type(x).__name__}; convert it with numpy.asarray first"
    )


def to_host(x: Array) -> Any:
    """The values of `x` as a NumPy array; the only place where a device array comes to the host."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "get"):
        return x.get()
    return np.asarray(x)


def like(values: Any, other: Array, dtype: Any = None) -> Array:
    """Host `values` (array or list) as an array of the library, and on the device, of `other`."""
    return namespace(other).asarray(values, dtype=dtype)


def is_array(x: object) -> bool:
    """Whether `x` is an array of NumPy, CuPy or a look-alike (NumPy scalars are not)."""
    if isinstance(x, np.ndarray | np.generic):
        return isinstance(x, np.ndarray)
    # CuPy's arrays have no `__array_namespace__` (14.2), NumPy's scalars have one, and strides too.
    return hasattr(x, "strides") and (_is_of_cupy(x) or hasattr(x, "__array_namespace__"))


def _is_of_cupy(x: object) -> bool:
    return type(x).__module__.partition(".")[0] == "cupy"


def owner(x: Array) -> Array:
    """The array that owns the memory of `x`: `.base` followed while it is an array."""
    while is_array(base := getattr(x, "base", None)):
        x = base
    return x


def widened(x: Array) -> Array:
    """`x` in the dtype of norms, softmax and sums: float16 and bfloat16 widen to float32, the rest stays."""
    return x if x.dtype.itemsize > 2 else x.astype(np.float32)


def as_stored(result: Array, x: Array) -> Array:
    """`result` in the dtype of `x`, which was widened for the calculation."""
    return result if result.dtype == x.dtype else result.astype(x.dtype)


def namespace_of_device(device: str) -> Any:
    """The array library for `device`: "cpu" (NumPy) or "gpu" (CuPy).

    Errors: `MissingLibraryError` without CuPy, `BadInputError` for another name or no usable GPU.
    """
    if device == "cpu":
        return np
    if device != "gpu":
        raise BadInputError(f'device "{device}" is unknown; use "cpu" or "gpu"')
    try:
        import cupy
    except ImportError as error:
        raise MissingLibraryError("a GPU needs CuPy: pip install 'haaw[gpu]'") from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BadInputError(f'no usable GPU was found ({error}); use device="cpu"') from error
    return cupy


@cache
def keep_freed_memory() -> None:
    """Lets the C library keep the memory of freed arrays for the next ones, once for the whole process.

    glibc hands large blocks back to the system at once, and every new one then costs a page fault per 4 KB (51,000
    in a prefill of 512 tokens by SmolLM2). It keeps blocks up to the size of the largest one ever freed,
    32 MB at most. Other C libraries are not affected.
    """
    np.empty(31 << 20, dtype=np.uint8)
