"""Rows that tell which tokens they were computed from: a cache holds the right ones or it does not."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from haaw.arrays import to_host
from haaw.caches.page_pool import PagePool
from haaw.caches.paged import PagedCache
from haaw.caches.protocol import CacheLayout

LAYOUT = CacheLayout(layers=2, kv_heads=2, head_dim=1, dtype="float32")
PROTOTYPE = np.zeros(1, np.float32)


def pool_of(blocks: int, block_size: int = 4, **options: Any) -> PagePool:
    return PagePool(LAYOUT, PROTOTYPE, blocks=blocks, block_size=block_size, **options)


def cache_on(pool: PagePool, **options: Any) -> PagedCache:
    return PagedCache(LAYOUT, PROTOTYPE, pool=pool, **options)


def rows_of(ids: Sequence[int], start: int, *, family: str = "") -> np.ndarray:
    """For each position from `start` on a number that stands for all ids up to it; exact in float32."""
    text = [f"{family}:{','.join(map(str, ids[: end + 1]))}" for end in range(start, len(ids))]
    return np.array([zlib.crc32(each.encode()) % 2**23 for each in text], np.float32)


def feed(cache: PagedCache, ids: Sequence[int], start: int, *, family: str = "", layers: int = 2) -> None:
    """Appends the rows of ids[start:] to the first `layers` layers."""
    new_T = rows_of(ids, start, family=family)
    for layer in range(layers):
        rows_TKC = np.repeat(new_T + layer, 2).reshape(-1, 2, 1)
        cache.append(layer, rows_TKC, -rows_TKC)


def step(cache: PagedCache, ids: Sequence[int], *, family: str = "") -> None:
    """Brings a cache up to date with `ids`, in one step."""
    start = cache.length
    if start < len(ids):
        feed(cache, ids, start, family=family)
        cache.commit(len(ids) - start)


def check_rows(cache: PagedCache, ids: Sequence[int], *, family: str = "") -> None:
    """The rows are those of exactly these ids, in every layer and head."""
    assert cache.length == len(ids)
    assert len(cache.table) == -(-len(ids) // cache.pool.block_size)
    if not ids:
        return
    for layer in range(LAYOUT.layers):
        wanted_S = rows_of(ids, 0, family=family) + layer
        keys_KSC, values_KSC = (to_host(view) for view in cache.view(layer))
        for head in range(LAYOUT.kv_heads):
            np.testing.assert_array_equal(keys_KSC[head, :, 0], wanted_S)
            np.testing.assert_array_equal(values_KSC[head, :, 0], -wanted_S)
