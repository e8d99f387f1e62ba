"""Element-wise work on large host arrays, shared among threads: the same bits, sooner.

Matrix products bring threads of their own; the element-wise operations between them do not. NumPy lets other
threads run while it works on an array, so parts of one are worked on at the same time.

Worth it only where BLAS gives its cores back between two products. OpenBLAS keeps them busy waiting for 2**26
cycles unless OPENBLAS_THREAD_TIMEOUT, read when NumPy is loaded, says less: `haaw` says so when it comes first.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise

import numpy as np

from haaw.arrays import Array

LEAST_ELEMENTS = 1 << 16
"""Smaller arrays are done before another thread has woken up."""
MOST_THREADS = 16
LONGEST_WAIT = 20
"""A larger OPENBLAS_THREAD_TIMEOUT (the exponent of the cycles) leaves no core for others."""


def in_parts(work: Callable[..., None], *arrays: Array) -> None:
    """Calls `work(*parts)` for parts of the first axis, which all `arrays` share, until all of it is done.

    `work` writes its result into one of them. What it does for one index must not depend on the others, so that
    the cuts cannot be seen in the result.
    """
    first = arrays[0]
    if first.size < LEAST_ELEMENTS or type(first) is not np.ndarray or thread_count() == 1:
        work(*arrays)
        return
    length = len(first)
    threads = min(thread_count(), length)
    cuts = [length * part // threads for part in range(threads + 1)]
    parts = [[array[start:stop] for array in arrays] for start, stop in pairwise(cuts)]
    others = [_pool().submit(work, *part) for part in parts[1:]]
    try:
        work(*parts[0])
    finally:
        wait(others)  # whoever handles an error must not find threads still at work on the arrays
    for other in others:
        other.result()


@cache
def thread_count() -> int:
    """Threads to share among: `HAAW_THREADS`, else as many as BLAS was told to use, else one a core."""
    if not os.environ.get("OPENBLAS_THREAD_TIMEOUT", "26").isdigit():
        return 1
    if int(os.environ.get("OPENBLAS_THREAD_TIMEOUT", "26")) > LONGEST_WAIT:
        return 1
    for variable in ("HAAW_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if (asked := os.environ.get(variable, "")).isdigit():
            return max(1, min(int(asked), MOST_THREADS))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST_THREADS)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count() - 1, thread_name_prefix="haaw")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
