"""What every kind of cache must do, held against plain Python lists of rows. New kinds join `KINDS`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.fake_array import FakeLibrary
from support.orphans import OrphanRecorder

from haaw.arrays import namespace, owner, to_host
from haaw.caches.dynamic import DynamicCache
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.ops.recorder import recording

LAYOUT = CacheLayout(layers=3, kv_heads=2, head_dim=4, dtype="float32")
KINDS: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda prototype: DynamicCache(LAYOUT, prototype),
    "dynamic from one position": lambda prototype: DynamicCache(LAYOUT, prototype, first_capacity=1),
    "dynamic from three positions": lambda prototype: DynamicCache(LAYOUT, prototype, first_capacity=3),
}
LIBRARIES: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.zeros(1, np.float32),
    "fake device": lambda: FakeLibrary().zeros(1, dtype="float32"),
}


class Reference:
    """The same contract with lists: keys and values of each layer, a row a position."""

    def __init__(self) -> None:
        self.rows: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []) for _ in range(LAYOUT.layers)]
        self.length = 0

    def append(self, layer: int, key_TKC: np.ndarray, value_TKC: np.ndarray) -> None:
        for held, new in zip(self.rows[layer], (key_TKC, value_TKC), strict=True):
            held.extend(np.copy(row) for row in new)

    def commit(self, tokens: int) -> None:
        self.length += tokens

    def crop_to(self, length: int) -> None:
        self.length = length
        for pair in self.rows:
            for held in pair:
                del held[length:]

    def fork(self) -> "Reference":
        twin = Reference()
        twin.rows = [(list(keys[: self.length]), list(values[: self.length])) for keys, values in self.rows]
        twin.length = self.length
        return twin


class Pair:
    """A cache and its reference, given the same."""

    def __init__(self, cache: Any, reference: Reference, rng: np.random.Generator, prototype: Any) -> None:
        self.cache, self.reference, self.rng, self.prototype = cache, reference, rng, prototype

    def rows(self, tokens: int) -> np.ndarray:
        return self.rng.normal(size=(tokens, LAYOUT.kv_heads, LAYOUT.head_dim)).astype(np.float32)

    def append(self, layer: int, tokens: int) -> None:
        key_TKC, value_TKC = self.rows(tokens), self.rows(tokens)
        self.reference.append(layer, key_TKC, value_TKC)
        xp = namespace(self.prototype)
        self.cache.append(layer, xp.asarray(key_TKC), xp.asarray(value_TKC))

    def step(self, tokens: int) -> None:
        for layer in range(LAYOUT.layers):
            self.append(layer, tokens)
            self.check_layer(layer)
        self.cache.commit(tokens)
        self.reference.commit(tokens)

    def check_layer(self, layer: int) -> None:
        for held_KSC, rows in zip(self.cache.view(layer), self.reference.rows[layer], strict=True):
            wanted = np.array(rows, np.float32).reshape(-1, LAYOUT.kv_heads, LAYOUT.head_dim)
            np.testing.assert_array_equal(to_host(held_KSC), wanted.transpose(1, 0, 2), strict=True)

    def check(self) -> None:
        assert self.cache.length == self.reference.length
        assert self.cache.capacity >= self.cache.length
        for layer in range(LAYOUT.layers):
            if self.reference.length:
                self.check_layer(layer)
        self.check_memory()

    def check_memory(self) -> None:
        memory = self.cache.memory()
        assert memory.useful_bytes == self.reference.length * LAYOUT.bytes_per_position
        held = {id(buffer): buffer for buffer in buffers_of(self.cache)}.values()
        assert memory.allocated_bytes == sum(buffer.nbytes for buffer in held)
        assert memory.allocated_bytes >= memory.useful_bytes

    def fork(self) -> "Pair":
        return Pair(self.cache.fork(), self.reference.fork(), self.rng, self.prototype)


def buffers_of(cache: Any) -> list[Any]:
    found = []
    for layer in range(LAYOUT.layers):
        try:
            found += [owner(view) for view in cache.view(layer)]
        except CacheError:
            continue
    return found


@pytest.fixture(params=KINDS)
def make_cache(request) -> Callable[[Any], Any]:
    return KINDS[request.param]


@pytest.fixture(params=LIBRARIES)
def pair(request, make_cache, rng) -> Pair:
    prototype = LIBRARIES[request.param]()
    return Pair(make_cache(prototype), Reference(), rng, prototype)


def test_bytes_of_a_position_are_those_of_the_reference_arithmetic():
    # 2 × 32 layers × 8 key/value heads × 128 channels × 2 bytes = 131,072; 8,192 positions are 1 GiB
    layout = CacheLayout(layers=32, kv_heads=8, head_dim=128, dtype="float16")
    assert layout.bytes_per_position == 131_072
    assert layout.bytes_per_position * 8_192 == 2**30


def test_an_empty_cache_holds_nothing(pair):
    assert (pair.cache.length, pair.cache.capacity) == (0, 0)
    memory = pair.cache.memory()
    assert (memory.useful_bytes, memory.allocated_bytes, memory.shared_bytes) == (0, 0, 0)
    with pytest.raises(CacheError, match="empty"):
        pair.cache.view(0)


@pytest.mark.parametrize("steps", [[1] * 9, [5], [64], [65], [64, 1], [3, 1, 1, 60, 2], [130, 1, 130]])
def test_what_was_appended_is_seen_in_order(pair, steps):
    for tokens in steps:
        pair.step(tokens)
        pair.check()


def test_rows_under_way_are_seen_in_their_layer_and_counted_after_commit(pair):
    pair.step(2)
    pair.append(0, 3)
    pair.check_layer(0)
    pair.check_layer(1)
    assert pair.cache.length == 2
    pair.append(0, 1)  # a layer may be given its rows in parts
    for layer in (1, 2):
        pair.append(layer, 4)
    pair.cache.commit(4)
    pair.reference.commit(4)
    pair.check()


@pytest.mark.parametrize("given", [[4, 4, 3], [0, 0, 0], [5, 5, 5], [4, 0, 0]])
def test_a_step_with_the_wrong_rows_is_not_committed(pair, given):
    pair.step(2)
    for layer, tokens in enumerate(given):
        if tokens:
            pair.append(layer, tokens)
    with pytest.raises(CacheError, match="4 tokens"):
        pair.cache.commit(4)
    assert pair.cache.length == 2
    pair.cache.crop_to(2)
    pair.reference.crop_to(2)
    pair.check()
    pair.step(3)
    pair.check()


@pytest.mark.parametrize("length", [0, 1, 5, 6])
def test_a_cropped_cache_goes_on_as_if_the_rest_had_never_been(pair, length):
    pair.step(6)
    allocated = pair.cache.memory().allocated_bytes
    pair.cache.crop_to(length)
    pair.reference.crop_to(length)
    pair.check()
    assert pair.cache.memory().allocated_bytes == allocated
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("length", [-1, 7, 10**6])
def test_a_crop_to_what_is_not_held_is_refused_and_changes_nothing(pair, length):
    pair.step(6)
    with pytest.raises(CacheError, match=f"crop to {length} positions; this cache holds 6"):
        pair.cache.crop_to(length)
    pair.check()


def test_cropping_forgets_the_rows_of_an_unfinished_step(pair):
    pair.step(3)
    pair.append(0, 2)
    pair.append(1, 2)
    pair.cache.crop_to(3)
    pair.reference.crop_to(3)
    pair.check()
    pair.step(1)
    pair.check()


def test_a_fork_and_its_origin_go_their_own_ways(pair):
    pair.step(5)
    pair.append(0, 1)  # not committed, so not part of the fork
    twin = pair.fork()
    twin.check()
    pair.cache.crop_to(4)
    pair.reference.crop_to(4)
    pair.step(3)
    twin.step(2)
    twin.check()
    pair.check()
    pair.cache.release()
    twin.step(1)
    twin.check()


def test_a_fork_of_an_empty_cache_is_as_good_as_a_new_one(pair):
    twin = pair.fork()
    twin.step(3)
    twin.check()
    fresh = Pair(type(pair.cache).fork(pair.cache), Reference(), pair.rng, pair.prototype)
    fresh.step(3)
    pair.step(3)
    assert fresh.cache.capacity == pair.cache.capacity


def test_a_released_cache_gives_its_memory_back_and_is_of_no_more_use(pair):
    pair.step(5)
    pair.cache.release()
    assert pair.cache.memory().allocated_bytes == 0
    assert pair.cache.length == 0
    for attempt in (
        lambda: pair.append(0, 1),
        lambda: pair.cache.view(0),
        lambda: pair.cache.fork(),
        lambda: pair.cache.crop_to(1),
        lambda: pair.cache.commit(1),
    ):
        with pytest.raises(CacheError):
            attempt()
    pair.cache.release()


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ((2, 1, 4), (2, 1, 4)),  # one head would be spread over both
        ((2, 2, 4), (2, 1, 4)),
        ((2, 2, 1), (2, 2, 1)),
        ((2, 2, 4), (1, 2, 4)),  # one row would be spread over two
        ((2, 2, 4), (3, 2, 4)),
        ((2, 3, 4), (2, 3, 4)),
        ((2, 4), (2, 4)),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(pair, keys, values):
    pair.step(3)
    xp = namespace(pair.prototype)
    with pytest.raises(CacheError, match="do not fit"):
        pair.cache.append(0, xp.zeros(keys, dtype="float32"), xp.zeros(values, dtype="float32"))
    pair.check()
    pair.step(1)
    pair.check()


def test_random_walks_agree_with_the_reference(pair, rng):
    others = [pair]
    for _ in range(40):
        chosen = others[rng.integers(len(others))]
        match rng.integers(5):
            case 0 if len(others) < 4:
                others.append(chosen.fork())
            case 1:
                length = int(rng.integers(chosen.reference.length + 1))
                chosen.cache.crop_to(length)
                chosen.reference.crop_to(length)
            case _:
                chosen.step(int(rng.integers(1, 9)))
        for each in others:
            each.check()


def test_every_write_of_a_cache_is_an_operation(pair):
    recorder = OrphanRecorder()
    with recording(recorder):
        recorder.know_weights({"prototype": pair.prototype})
        for tokens in (3, 1, 70, 1):
            new = [namespace(pair.prototype).asarray(pair.rows(tokens)) for _ in range(2 * LAYOUT.layers)]
            for number, rows in enumerate(new):
                recorder.declare(f"rows {number}", rows, None)
            for layer in range(LAYOUT.layers):
                pair.cache.append(layer, new[2 * layer], new[2 * layer + 1])
            pair.cache.commit(tokens)
        pair.cache.fork()
    assert recorder.counts["kv_append"] == 4 * 2 * LAYOUT.layers
    for buffer in buffers_of(pair.cache):
        assert any(buffer is known for known in recorder.buffers)


# Of the dynamic kind alone.


def grown(first_capacity: int, steps: list[int]) -> DynamicCache:
    prototype = np.zeros(1, np.float32)
    pair = Pair(
        DynamicCache(LAYOUT, prototype, first_capacity=first_capacity),
        Reference(),
        np.random.default_rng(1),
        prototype,
    )
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
        (1, [1] * 1000, 1024, 10),
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
