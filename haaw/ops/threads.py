"""Element-wise work on large host arrays, shared among threads: the same bits, sooner.

Matrix products bring threads of their own; the element-wise operations between them do not. NumPy lets other
threads run while it works on an array, so parts of one are worked on at the same time.

Worth it only where BLAS gives its cores back between two products. OpenBLAS keeps them busy waiting for 2**26
cycles unless OPENBLAS_THREAD_TIMEOUT, read when NumPy is loaded, says less: `haaw` says so when it comes first.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache
from itertools import pairwise

import numpy as np

from haaw.arrays import Array
from haaw.errors import BadInputError, MissingLibraryError

LEAST_ELEMENTS = 1 << 16
"""Smaller arrays are done before another thread has woken up."""
SLICE_ELEMENTS = 1 << 16
"""A thread takes so much at a time, so that what one pass leaves is still in its core's cache for the next."""
MOST_THREADS = 16
LONGEST_WAIT = 20
"""A larger OPENBLAS_THREAD_TIMEOUT (the exponent of the cycles) leaves no core for others."""


def is_large(x: Array) -> bool:
    """Whether `x` is worth cutting into parts: a large array on the host."""
    return bool(x.size >= LEAST_ELEMENTS) and type(x) is np.ndarray


def in_parts(work: Callable[..., None], *arrays: Array) -> None:
    """Calls `work(*parts)` for parts of the first axis, which all `arrays` share, until all of it is done.

    `work` writes its result into one of them. What it does for one index must not depend on the others, so that
    the cuts cannot be seen in the result.
    """
    first = arrays[0]
    if not is_large(first):
        work(*arrays)
        return
    length = len(first)
    step = max(1, SLICE_ELEMENTS * length // first.size)
    threads = min(thread_count(), -(-length // step))

    def some_slices(start: int, stop: int) -> None:
        for begin in range(start, stop, step):
            part = slice(begin, min(begin + step, stop))
            work(*[array[part] for array in arrays])

    cuts = [length * part // threads for part in range(threads + 1)]
    others: list[Future[None]] = []
    try:
        for cut in pairwise(cuts[1:]):
            others.append(_begun(threads - 1, some_slices, *cut))
        some_slices(cuts[0], cuts[1])
    finally:
        wait(others)  # whoever handles an error must not find threads still at work on the arrays
    for other in others:
        other.result()


def _begun(helpers: int, work: Callable[[int, int], None], start: int, stop: int) -> "Future[None]":
    """`work(start, stop)` begun in another thread, with the settings (`numpy.errstate`) of this one."""
    try:
        return _pool(helpers).submit(copy_context().run, work, start, stop)
    except RuntimeError:  # the interpreter is on its way out and starts no more threads: done here instead
        work(start, stop)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def set_threads(count: int) -> None:
    """Holds HAAW and BLAS to so many threads from now on; 1 is best on a machine that is busy with other things.

    Errors: `BadInputError` for less than one, `MissingLibraryError` without threadpoolctl.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024:
        raise BadInputError(f"threads is {count!r:.40}; it must be a whole number from 1 on")
    try:
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise MissingLibraryError(
            "setting the threads needs threadpoolctl: pip install threadpoolctl"
        ) from error
    threadpool_limits(limits=count, user_api="blas")
    os.environ["HAAW_THREADS"] = str(count)
    thread_count.cache_clear()


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
def _pool(helpers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers, thread_name_prefix="haaw")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
