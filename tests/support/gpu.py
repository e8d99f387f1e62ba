"""CuPy, where it is installed, and whether there is a GPU to run it on."""

import warnings
from typing import Any

import pytest


def import_cupy() -> Any:
    """CuPy, which can be imported and inspected without a GPU; skips the test where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns where it finds no CUDA
        return pytest.importorskip("cupy", reason="CuPy is not installed (extra `gpu`)")


def has_gpu() -> bool:
    """Whether CuPy is installed and finds a GPU."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cupy
        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # no CuPy, no CUDA library, no driver, no device: every one its own type
        return False
