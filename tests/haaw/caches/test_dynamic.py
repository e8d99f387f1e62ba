"""The growing kinds: how often they move what they hold, and what they say of it."""

import numpy as np
import pytest
from support.cache_pairs import LAYOUT, Case, Pair
from support.orphans import OrphanRecorder

from haaw.arrays import owner
from haaw.caches.concatenated import ConcatenatedCache
from haaw.caches.dynamic import DynamicCache
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.ops.recorder import recording


def grown(first_capacity: int, steps: list[int]) -> DynamicCache:
    case = Case(lambda prototype: DynamicCache(LAYOUT, prototype, first_capacity=first_capacity))
    pair = Pair(case, np.zeros(1, np.float32), np.random.default_rng(1))
    for tokens in steps:
        pair.step(tokens)
    pair.check()
    return pair.cache


@pytest.mark.parametrize(
    ("first", "steps", "capacity", "moves"),
    [
        (4, [4], 4, 0),
        (4, [4, 1], 8, 1),
        (4, [1] * 9, 16, 2),
        (4, [17], 32, 0),  # nothing to move yet: taken at once
        (4, [4, 13], 32, 1),  # 8 and 16 are skipped
        (1, [1] * 300, 512, 9),
    ],
)
def test_a_dynamic_cache_doubles_and_moves_as_seldom_as_doubling_allows(first, steps, capacity, moves):
    cache = grown(first, steps)
    assert cache.capacity == capacity
    assert cache.moves == moves * LAYOUT.layers


def test_growth_is_told_with_what_it_moved():
    recorder = OrphanRecorder()
    prototype = np.zeros(1, np.float32)
    with recording(recorder):
        recorder.know_weights({"prototype": prototype})
        cache = DynamicCache(LAYOUT, prototype, first_capacity=2)
        rows_TKC = np.ones((2, 2, 4), np.float32)
        recorder.declare("rows", rows_TKC, None)
        for _ in range(2):
            cache.append(0, rows_TKC, rows_TKC)
    assert recorder.events == [("cache_grown", {"layer": 0, "capacity": 4, "moved_positions": 2})]


@pytest.mark.parametrize("first_capacity", [0, -1])
def test_a_capacity_that_holds_nothing_is_refused(first_capacity):
    with pytest.raises(CacheError, match="too small"):
        DynamicCache(LAYOUT, np.zeros(1, np.float32), first_capacity=first_capacity)


def test_all_buffers_have_the_dtype_and_layout_of_the_model():
    cache = DynamicCache(CacheLayout(1, 2, 4, "float64"), np.zeros(1))
    cache.append(0, np.ones((1, 2, 4)), np.ones((1, 2, 4)))
    keys_KSC, _ = cache.view(0)
    assert keys_KSC.dtype == np.float64
    assert owner(keys_KSC).flags.c_contiguous, "the rows of one head lie together"
    assert keys_KSC.shape == (2, 1, 4)


def test_concatenation_copies_every_row_for_each_new_one_and_doubling_fewer_than_two():
    """1,000 rows one by one: 0 + 1 + … + 999 = 499,500 copies a layer against 1 + 2 + 4 + … + 512 = 1,023."""
    copied = {}
    for make in (ConcatenatedCache, DynamicCache):
        cache = (
            DynamicCache(LAYOUT, np.zeros(1, np.float32), first_capacity=1)
            if make is DynamicCache
            else make(LAYOUT, np.zeros(1, np.float32))
        )
        recorder = OrphanRecorder()
        row_TKC = np.ones((1, 2, 4), np.float32)
        with recording(recorder):
            recorder.know_weights({"row": row_TKC, "prototype": cache._prototype_Z})
            for _ in range(1000):
                cache.append(0, row_TKC, row_TKC)
        copied[make] = sum(facts["moved_positions"] for _, facts in recorder.events)
        assert cache.capacity == 0  # the other layers have nothing
    assert copied == {ConcatenatedCache: 499_500, DynamicCache: 1_023}
