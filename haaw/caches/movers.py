"""Who copies a layer in while another one computes, and how each side waits for the other.

A copy is begun when the buffer that it fills is free, and settled before anybody reads that buffer. Between the two
the cache changes nothing that the copy reads.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.ops.recorder import LISTENING

Work = Callable[[], None]


class Mover:
    """Does the work at once, in the thread that asks for it."""

    def begin(self, work: Work, stored: Sequence[Array]) -> None:
        """Begins `work`, which reads the windows `stored`."""
        work()

    def settle(self) -> None:
        """Returns when the work is done; an error of it is raised here, once."""

    def drop(self) -> None:
        """Returns when nothing is under way any more; work that was not begun is left undone."""


class ThreadMover(Mover):
    """Works in another thread, one for all caches of the process.

    A recorder hears one thread only. While one listens, the other thread does no more than bring the
    pages of the file into memory, and the copy itself is an operation of the thread that settles.
    """

    def __init__(self) -> None:
        self._running: Future[None] | None = None
        self._left: Work | None = None

    def begin(self, work: Work, stored: Sequence[Array]) -> None:
        """As for `Mover`."""
        heard = LISTENING.get() is not None
        self._left = work if heard else None
        self._running = _begun(partial(read_pages, stored) if heard else work)

    def settle(self) -> None:
        """As for `Mover`. After an interruption there is as much to wait for as before."""
        if self._running is None:
            return
        wait([self._running])
        if self._left is not None and self._running.exception() is None:
            self._left()
        ended, self._running, self._left = self._running, None, None
        ended.result()

    def drop(self) -> None:
        """As for `Mover`."""
        if self._running is not None:
            wait([self._running])
        self._running = self._left = None


class StreamMover(Mover):
    """Works on a CUDA stream of its own: it waits for what was asked of the device before, and the device for it."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._done: Any = None

    def begin(self, work: Work, stored: Sequence[Array]) -> None:
        """As for `Mover`; returns before the copy is done."""
        self._stream.wait_event(self._cuda.get_current_stream().record())
        with self._stream:
            work()
        self._done = self._stream.record()

    def settle(self) -> None:
        """Makes the current stream wait for the copy; the host does not wait."""
        if self._done is not None:
            self._cuda.get_current_stream().wait_event(self._done)
            self._done = None

    def drop(self) -> None:
        """As `settle`: what was begun cannot be called back, and nobody may overtake it."""
        self.settle()


def mover_for(xp: Any) -> Mover:
    """The mover for the array library `xp` that the model lives in."""
    if xp is np:
        return ThreadMover()
    return StreamMover(xp) if getattr(xp, "__name__", None) == "cupy" else Mover()


def read_pages(stored: Sequence[Array]) -> None:
    """Touches every page of windows on a mapped file, so that they are in memory when they are needed."""
    for window in stored:
        if window.size:
            window.view("uint8")[..., :: mmap.PAGESIZE].max()


def _begun(work: Work) -> "Future[None]":
    try:
        return _pool().submit(work)
    except RuntimeError:  # the interpreter is on its way out and starts no more threads: done here instead
        work()
        done: Future[None] = Future()
        done.set_result(None)
        return done


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="haaw-offload")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
