"""The reserved cache: as large as asked for, from the first to the last step, in the same arrays.

FAULTS: S75 (a capacity that is accepted and not used).
"""

import numpy as np
import pytest
from support.cache_pairs import LAYOUT, Allocations
from support.tiny_models import tiny_language_model, tiny_llama

from haaw.arrays import owner
from haaw.caches.protocol import CacheError
from haaw.caches.static import StaticCache
from haaw.errors import BadInputError
from haaw.generation.engine import advance
from haaw.ops.recorder import recording

PROTOTYPE = np.zeros(1, np.float32)


@pytest.mark.parametrize(("capacity", "positions"), [(None, 128), (1, 1), (77, 77), (128, 128), (1000, 1000)])
def test_the_memory_reserved_is_that_of_the_capacity_asked_for(capacity, positions):
    cache = StaticCache(LAYOUT, PROTOTYPE, context_length_tokens=128, capacity=capacity)
    # 2 · 3 layers · 2 heads · 4 channels · 4 bytes = 192 bytes a position
    assert cache.memory().allocated_bytes == 192 * positions
    assert (cache.capacity, cache.length) == (positions, 0)


def test_all_rows_lie_in_the_arrays_made_at_the_start():
    model, allocations = tiny_llama(1), Allocations()
    with recording(allocations):
        cache = StaticCache(model.cache_layout, model.prototype_Z, context_length_tokens=128, capacity=40)
        assert len(allocations.made) == 2 * 2  # keys and values of two layers
        first = [owner(part) for layer in range(2) for part in cache._buffers[layer]]
        for tokens in (7, 1, 1, 20, 1, 10):
            advance(model, cache, [5] * tokens)
            views = [owner(part) for layer in range(2) for part in cache.view(layer)]
            assert all(one is other for one, other in zip(views, first, strict=True))
        assert len(allocations.made) == 2 * 2
    assert cache.length == cache.capacity == 40


def test_a_step_over_the_end_is_refused_and_the_cache_is_as_before():
    model = tiny_llama(1)
    cache = StaticCache(model.cache_layout, model.prototype_Z, context_length_tokens=128, capacity=8)
    advance(model, cache, [1, 2, 3, 4, 5, 6])
    keys_KSC = cache.view(0)[0].copy()
    with pytest.raises(CacheError, match="3 more positions do not fit behind 6; this cache has room for 8"):
        advance(model, cache, [7, 8, 9])
    assert cache.length == 6
    np.testing.assert_array_equal(cache.view(0)[0], keys_KSC)
    advance(model, cache, [7, 8])
    assert cache.length == 8


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_of_nothing_is_refused(capacity):
    with pytest.raises(CacheError, match=f"capacity of {capacity} positions is too small"):
        StaticCache(LAYOUT, PROTOTYPE, context_length_tokens=128, capacity=capacity)


@pytest.mark.parametrize("capacity", [5, 6, 10, 24])
def test_a_request_uses_every_position_and_then_ends_by_itself(capacity):
    """Five ids of prompt; each new id but the last takes a position of its own."""
    model = tiny_language_model(1)
    answer = model.generate(
        [1, 2, 3, 4, 5], max_tokens=20, cache="static", cache_options={"capacity": capacity}
    )
    whole = model.generate([1, 2, 3, 4, 5], max_tokens=20)
    new = min(20, capacity - 5 + 1)
    assert answer.token_ids == whole.token_ids[:new]
    if new < 20:
        assert (answer.finish.reason, answer.finish.evidence) == ("context", {"cache_positions": capacity})
    else:
        assert answer.finish.reason == "length"


def test_a_prompt_with_more_tokens_than_the_cache_has_room_for_is_refused_before_anything_runs():
    with pytest.raises(BadInputError, match="the prompt has 9 tokens, and its cache has room for 8"):
        tiny_language_model(1).request([1] * 9, cache="static", cache_options={"capacity": 8})
