"""What the first member of a trace says: what ran, on what, and the source of every operation and model."""

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.ops.op import OPS
from haaw.tracing.hashing import array_hash
from haaw.tracing.schema import SCHEMA_VERSION
from haaw.version import VERSION

PACKAGES_WITH_SOURCE = ("haaw.ops", "haaw.caches", "haaw.models", "haaw.generation")


def make_manifest(
    described: Mapping[str, Any], model: Mapping[str, Any], policy: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest of a recording that begins now; `described` as by `describe_weights`."""
    return {
        "schema": SCHEMA_VERSION,
        "haaw": VERSION,
        "model": {**model, "digest": digest_of(described)},
        "policy": dict(policy),
        "fingerprint": fingerprint(),
        "ops": [
            {"name": op.name, "parameters": op.parameters, "out": op.out, "writes": op.writes}
            for op in OPS.values()
        ],
        "weights": dict(described),
        "sources": sources(),
    }


def describe_weights(weights: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
    """Shape, dtype and hash of every weight by its canonical name, as it is now: a learner may have changed it."""
    return {
        name: {
            "shape": list(map(int, array.shape)),
            "dtype": array.dtype.str,
            "hash": array_hash(array).hex(),
        }
        for name, array in weights.items()
    }


def digest_of(described: Mapping[str, Mapping[str, Any]]) -> str:
    """One hash for all weights: of their names and hashes, in the order of the names."""
    lines = "\n".join(f"{name} {described[name]['hash']}" for name in sorted(described))
    return array_hash(np.frombuffer(lines.encode(), dtype=np.uint8)).hex()


def fingerprint() -> dict[str, Any]:
    """What the last bits of a result depend on beside the code: NumPy, its BLAS, threads and the processor."""
    from haaw.ops.threads import thread_count

    features = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    found = getattr(features, "__cpu_features__", {})
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
        "threads": thread_count(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu_features": sorted(name for name, there in found.items() if there),
        "cupy": getattr(sys.modules.get("cupy"), "__version__", None),
    }


def _blas() -> list[dict[str, Any]]:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    keys = ("internal_api", "version", "architecture", "num_threads")
    return [
        {key: each.get(key) for key in keys} for each in threadpool_info() if each.get("user_api") == "blas"
    ]


def sources() -> dict[str, str]:
    """The text of every module that operations, caches, models and generation are made of, by file."""
    texts = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.startswith(PACKAGES_WITH_SOURCE) and path and path.endswith(".py"):
            file = name.replace(".", "/") + ("/__init__.py" if Path(path).name == "__init__.py" else ".py")
            try:
                texts[file] = Path(path).read_text(encoding="utf-8")
            except OSError:  # a zipped or frozen package
                continue
    return texts
