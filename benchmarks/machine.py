"""The machine and the libraries that figures were measured on."""

import os
import platform
from pathlib import Path


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as the system states it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    numbers = "/".join(named.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{named.get('model name', 'unknown processor')} (family/model/stepping {numbers})"


def blas_libraries() -> list[str]:
    """The native libraries with threads that this process has loaded, their kernels and thread counts."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    return sorted(
        f"{each.get('internal_api')} {each.get('version') or ''} {each.get('architecture') or ''}".strip()
        + f": {each.get('num_threads')} threads"
        for each in threadpool_info()
    )


def load_average() -> float:
    """Processes that wanted to run, averaged over the last minute."""
    return os.getloadavg()[0]


def description() -> dict[str, object]:
    """Everything about the machine that a reader of the figures needs."""
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_at_start": load_average(),
    }


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold every numerical library to `threads` threads."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: str(threads) for name in names}
