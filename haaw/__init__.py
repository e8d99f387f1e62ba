"""HAAW: how an AI answer works. Real language models from scratch in NumPy, every step open to view.

Importing this package needs NumPy alone; everything else is imported where it is used.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if "numpy" not in sys.modules:  # else it is too late; see haaw.ops.threads
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

from haaw.errors import BadInputError, HaawError

if TYPE_CHECKING:
    from haaw.loading import load
    from haaw.ops.breakpoints import break_at
    from haaw.ops.threads import set_threads

__version__ = "0.1.0"
__all__ = ["BadInputError", "HaawError", "__version__", "break_at", "load", "set_threads"]

_LAZY = {"load": "haaw.loading", "break_at": "haaw.ops.breakpoints", "set_threads": "haaw.ops.threads"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'haaw' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
