"""What the rows of a KV cache depend on beside the tokens, so that no request reuses those of another model."""

from hashlib import blake2b

import numpy as np

from haaw.arrays import to_host
from haaw.models.protocol import Transformer


def identity_of(name: str, transformer: Transformer) -> dict[str, str]:
    """Name, family, config (positions' encoding and all), dtype, and a digest of every weight.

    Reads all weights once: about a second for each GB.
    """
    digest = blake2b(digest_size=16)
    for key, array in transformer.named_weights().items():
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(to_host(array)).reshape(-1).view(np.uint8).data)
    config: object = getattr(transformer, "config", None)
    return {
        "model": name,
        "family": transformer.family,
        "config": repr(config),
        "dtype": transformer.cache_layout.dtype,
        "weights": digest.hexdigest(),
    }
