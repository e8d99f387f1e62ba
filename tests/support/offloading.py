"""Steps for offloaded caches, and movers that are slow, late or fail."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from haaw.arrays import to_host
from haaw.caches.movers import Mover, ThreadMover
from haaw.caches.offloaded import OffloadedCache
from haaw.caches.protocol import CacheLayout
from haaw.generation.engine import advance
from haaw.models.protocol import Transformer

LAYOUT = CacheLayout(layers=5, kv_heads=2, head_dim=4, dtype="float32")
ROW_BYTES = 2 * 2 * 4 * 4
"""Keys and values of one position in one layer: two heads of four float32."""
PROTOTYPE = np.zeros(1, np.float32)
IDS = [int(each) for each in np.random.default_rng(8).integers(0, 64, 100)]


class SlowMover(ThreadMover):
    """A disk that takes its time, and not always the same."""

    def begin(self, work, stored):
        def slowly() -> None:
            time.sleep(0.0002 * (hash(threading.get_ident() + time.perf_counter_ns()) % 5))
            work()

        super().begin(slowly, stored)


class LateMover(Mover):
    """Copies at the last moment that is allowed: whatever was changed since the copy was begun would be seen."""

    def __init__(self) -> None:
        self.work: Any = None

    def begin(self, work, stored):
        assert self.work is None, "a copy is begun before the last one was settled"
        self.work = work

    def settle(self):
        work, self.work = self.work, None
        if work is not None:
            work()

    def drop(self):
        self.work = None


def offloaded_for(model: Transformer, **options: Any) -> OffloadedCache:
    return OffloadedCache(model.cache_layout, model.prototype_Z, **options)


def decoded(model: Transformer, cache: Any, ids: list[int], prefill: int) -> np.ndarray:
    """Logits of each position: a prefill, then one id at a time."""
    parts = [ids[:prefill], *[[each] for each in ids[prefill:]]]
    return np.concatenate([to_host(advance(model, cache, part, rows="all")) for part in parts])


def step(cache: Any, rng: np.random.Generator, tokens: int = 1) -> list[np.ndarray]:
    """A step of random rows; what attention would have seen in each layer, at the time when it would."""
    seen = []
    for layer in range(cache.layout.layers):
        key_TKC, value_TKC = rng.normal(size=(2, tokens, 2, 4)).astype(np.float32)
        cache.append(layer, key_TKC, value_TKC)
        seen += [to_host(part).copy() for part in cache.view(layer)]
    cache.commit(tokens)
    return seen


@contextmanager
def offloaded_files_gone() -> Iterator[None]:
    """A block after which no file of an offloaded cache is open that was not before."""
    before, deadline = _open_files(), time.monotonic() + 20
    yield
    while (
        _open_files() > before and time.monotonic() < deadline
    ):  # another thread may be letting go of its work
        time.sleep(0.01)
    assert _open_files() <= before


def _open_files() -> int:
    gc.collect()
    found = 0
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile
            found += "(deleted)" in os.readlink(each)
    return found
