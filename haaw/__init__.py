"""HAAW: how an AI answer works. Real language models from scratch in NumPy, every step open to view.

Importing this package needs NumPy alone; everything else is imported where it is used.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Any

if "numpy" not in sys.modules:  # else it is too late; see haaw.ops.threads
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

from haaw import journey
from haaw.errors import BadInputError, HaawError
from haaw.version import VERSION

if TYPE_CHECKING:
    from haaw.loading import load
    from haaw.loading.traces import open_trace
    from haaw.ops.breakpoints import break_at
    from haaw.ops.threads import set_threads
    from haaw.tracing.record import record

__version__ = VERSION
__all__ = [
    "BadInputError",
    "HaawError",
    "__version__",
    "break_at",
    "load",
    "open_trace",
    "record",
    "set_threads",
]

_LAZY = {
    "break_at": "haaw.ops.breakpoints",
    "load": "haaw.loading",
    "open_trace": "haaw.loading.traces",
    "record": "haaw.tracing.record",
    "set_threads": "haaw.ops.threads",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'haaw' has no attribute {name!r}")
    from importlib import import_module

    with journey.imported(_LAZY[name]):
        module = import_module(_LAZY[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)


journey.between("import haaw", journey.BEGAN_NS, time.perf_counter_ns())
