"""The hash of an array: xxh3-128 of its bytes in C order, seeded by its dtype and shape."""

import functools
from typing import Any

import numpy as np

from haaw.arrays import Array, to_host
from haaw.errors import MissingLibraryError


@functools.cache
def xxhash_library() -> Any:
    """The library `xxhash`. Errors: `MissingLibraryError` where it is not installed."""
    try:
        import xxhash
    except ImportError as error:
        raise MissingLibraryError("a trace needs the library xxhash: pip install xxhash") from error
    return xxhash


def layout_seed(dtype: str, shape: tuple[int, ...]) -> int:
    """The seed of the hash of arrays of this dtype and shape: xxh3-64 of both, written out."""
    seed: int = xxhash_library().xxh3_64_intdigest(f"{dtype} {list(shape)}".encode())
    return seed


def array_hash(array: Array) -> bytes:
    """The 16 bytes of the hash of any array; a device array comes to the host for it."""
    host = np.ascontiguousarray(to_host(array))
    seed = layout_seed(host.dtype.str, tuple(array.shape))
    digest: bytes = xxhash_library().xxh3_128_digest(host.reshape(-1).view(np.uint8), seed)
    return digest
