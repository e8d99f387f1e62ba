"""The pool of blocks: who holds which, what can be found, and that nothing is ever lost.

FAULTS: S82 ("never" is not "not now"), S86 (shared state), S87 to S91 (what every end gives back).
"""

import sys
import threading
from collections import Counter
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.orphans import OrphanRecorder
from support.paged_rows import LAYOUT, PROTOTYPE, cache_on, check_rows, feed, pool_of, step

from haaw.caches import page_pool, paged, prefixes
from haaw.caches.page_pool import PagePool
from haaw.caches.paged import PagedCache
from haaw.caches.pool_facts import PoolFullError
from haaw.caches.protocol import CacheError
from haaw.ops.recorder import recording

# A position: 2 (keys, values) · 2 layers · 2 heads · 1 channel · 4 bytes = 32 bytes; a block of 4: 128.


def state(pool: PagePool) -> tuple[tuple[int, ...], int, int]:
    return pool.counts, pool.free_blocks, pool.kept_blocks


def check_counts(pool: PagePool, caches: list[PagedCache]) -> None:
    """Counts are those of the tables, and every block is in use, kept or free."""
    held = Counter(block for cache in caches for block in cache.held_blocks())
    assert pool.counts == tuple(held[block] for block in range(pool.blocks))
    assert pool.used_blocks == len(held)
    assert pool.used_blocks + pool.free_blocks == pool.blocks
    assert set(pool._free) | set(pool._kept) == set(range(pool.blocks)) - held.keys()
    assert not set(pool._free) & set(pool._kept)
    assert all(block in pool._index for block in pool._kept)
    assert not any(block in pool._index for block in pool._free)


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (4, 0), (-1, 4)])
def test_a_pool_that_holds_nothing_is_refused(blocks, size):
    with pytest.raises(CacheError, match="both must be 1 or more"):
        pool_of(blocks, size)


def test_every_byte_is_accounted_for_and_shared_ones_once():
    pool = pool_of(10)
    assert pool.memory().allocated_bytes == 0, "memory is taken by the first cache"
    first = cache_on(pool)
    step(first, range(10))  # 3 blocks, the last one half full
    second, third = first.fork(), first.fork()
    memory = pool.memory()
    assert memory.allocated_bytes == sum(part.nbytes for pair in pool.buffers for part in pair) == 10 * 128
    assert (memory.useful_bytes, memory.used_bytes, memory.kept_bytes) == (10 * 32, 3 * 128, 0)
    assert memory.shared_bytes == 3 * 128, "each block once"
    assert memory.utilisation == 10 / 12
    assert memory.metadata_bytes == 8 * (3 * 3 + 10)  # three tables of three entries, ten counts
    for cache in (first, second, third):
        own = cache.memory()
        assert (own.useful_bytes, own.allocated_bytes, own.shared_bytes) == (320, 384, 384)
    step(second, range(11))  # copies the last block
    assert [cache.memory().shared_bytes for cache in (first, second, third)] == [384, 256, 384]
    assert pool.memory().used_bytes == 4 * 128
    assert pool.memory().useful_bytes == (10 + 3) * 32
    first.publish_prefix(range(10))
    index = 2 * (16 + 8 * (2 + 4))  # hash, parent, number and four tokens of two full blocks
    assert pool.memory().metadata_bytes == 8 * (3 * 3 + 10) + index
    for cache in (first, second, third):
        cache.release()
    memory = pool.memory()
    assert (memory.useful_bytes, memory.used_bytes, memory.kept_bytes) == (0, 0, 2 * 128)
    assert memory.utilisation == 1
    assert "2 kept, 8 free" in repr(pool)


def test_a_sequence_alone_and_two_that_grow_in_turn_lie_in_one_piece_each():
    pool = pool_of(64)
    caches = [cache_on(pool) for _ in range(2)]
    for length in range(1, 81):
        for cache in caches:
            step(cache, range(length))
    for cache in caches:
        assert cache.table == tuple(range(cache.table[0], cache.table[0] + 20))
        assert np.shares_memory(cache.view(0)[0], pool.buffers[0][0]), "a window, nothing is copied"


def test_a_table_in_several_pieces_is_gathered():
    pool = pool_of(8)
    caches = [cache_on(pool) for _ in range(3)]
    for length in range(1, 9):
        for cache in caches:
            step(cache, range(length))
    caches[1].release()
    step(caches[0], range(16))
    assert any(right != left + 1 for left, right in zip(caches[0].table, caches[0].table[1:], strict=False))
    assert not np.shares_memory(caches[0].view(0)[0], pool.buffers[0][0])
    check_rows(caches[0], range(16))
    check_rows(caches[2], range(8))


def test_the_block_unused_for_longest_goes_first_and_the_end_of_a_chain_before_its_beginning():
    pool = pool_of(6)
    prompts = [[1] * 8, [2] * 8]  # two blocks each
    for ids in prompts:
        cache = cache_on(pool)
        step(cache, ids)
        cache.publish_prefix(ids)
        cache.release()
    assert state(pool)[1:] == (6, 4)
    large = cache_on(pool)
    step(large, [3] * 12)  # two free blocks, and one that is taken from the first prompt
    found = [len(pool.find({}, [*ids, 0])[0]) for ids in prompts]
    assert found == [1, 2]
    step(large, [3] * 16)
    assert [len(pool.find({}, [*ids, 0])[0]) for ids in prompts] == [0, 2]
    assert pool.find({}, [1] * 9)[1].reason == "evicted"


def test_a_look_up_makes_blocks_young_again():
    pool = pool_of(4)
    for ids in ([1] * 4, [2] * 4):
        cache = cache_on(pool)
        step(cache, ids)
        cache.publish_prefix(ids)
        cache.release()
    again = cache_on(pool)
    assert again.reuse_prefix([1] * 5) == 4
    again.release()
    large = cache_on(pool)
    step(large, [3] * 12)
    assert len(pool.find({}, [1] * 5)[0]) == 1, "used last, so kept"
    assert len(pool.find({}, [2] * 5)[0]) == 0


def test_a_request_that_can_never_fit_is_told_from_one_that_cannot_now():
    """S82: a pool of 4 blocks of 4, a request that needs 5 blocks, then a small one."""
    pool = pool_of(4)
    with pytest.raises(
        PoolFullError, match="20 positions, that is 5 blocks of 4, and the whole pool has 4"
    ) as never:
        cache_on(pool, most_tokens=20)
    assert (never.value.never, never.value.needed_blocks, never.value.free_blocks) == (True, 5, 4)
    with pytest.raises(PoolFullError, match="5 blocks") as prompt:
        cache_on(pool).reuse_prefix([1] * 17)
    assert prompt.value.never
    small = cache_on(pool, most_tokens=16)
    step(small, range(9))
    before = state(pool)
    second = cache_on(pool)
    with pytest.raises(
        PoolFullError, match="2 more blocks of 4 positions are needed, and 1 of 4 are free"
    ) as now:
        second.reuse_prefix([1] * 8)
    assert (now.value.never, now.value.needed_blocks, now.value.free_blocks) == (False, 2, 1)
    with pytest.raises(PoolFullError, match="2 more"):
        feed(second, range(5), 0)
    assert state(pool) == before
    assert (second.length, second.table) == (0, ())
    small.release()
    step(second, range(16))
    check_rows(second, range(16))


def test_the_rest_of_a_prompt_must_fit_beside_the_kept_blocks_that_it_reuses():
    pool = pool_of(4)
    cache = cache_on(pool)
    step(cache, range(12))
    cache.publish_prefix(range(12))
    cache.release()
    holder = cache_on(pool)
    step(holder, [9])
    before = state(pool)
    with pytest.raises(
        PoolFullError, match="4 more blocks"
    ):  # 3 kept ones and one more, and only 3 can be had
        cache_on(pool).reuse_prefix(range(13))
    assert state(pool) == before


def test_what_a_lost_cache_held_comes_back_when_it_is_needed():
    pool = pool_of(4)
    step(cache_on(pool), range(16))  # dropped without a release
    assert pool.free_blocks == 0
    other = cache_on(pool)
    step(other, range(16))
    check_rows(other, range(16))
    assert pool.taken_back == 4


MOST_ALIVE = 8


class Walk:
    """Random requests on one pool beside a model of them: their ids, and which of them are alive."""

    def __init__(self, rng: np.random.Generator, *, blocks: int = 24) -> None:
        self.rng = rng
        self.pool = pool_of(blocks, int(rng.integers(1, 5)))
        self.alive: list[tuple[PagedCache, list[int]]] = []
        self.ended: Counter[str] = Counter()

    def ids(self, count: int) -> list[int]:
        return [int(each) for each in self.rng.integers(2, size=count)]  # two tokens: much is shared

    def tries(self, change: Any) -> bool:
        """A pool that is full refuses by name, and changes nothing."""
        before = self.pool.counts, self.pool.free_blocks
        try:
            change()
        except PoolFullError:
            assert (self.pool.counts, self.pool.free_blocks) == before
            return False
        return True

    def begin(self) -> None:
        cache, ids = cache_on(self.pool), self.ids(int(self.rng.integers(1, 16)))

        def prefill() -> None:
            cache.reuse_prefix(ids)
            step(cache, ids)

        if self.tries(prefill):
            self.alive.append((cache, ids))
        else:
            cache.release()

    def change(self, number: int) -> None:
        cache, ids = self.alive[number]
        match int(self.rng.integers(6)):
            case 0 | 1:
                more = ids + self.ids(int(self.rng.integers(1, 6)))
                if self.tries(lambda: step(cache, more)):
                    ids[:] = more
            case 2:
                del ids[int(self.rng.integers(len(ids) + 1)) :]
                cache.crop_to(len(ids))
            case 3 if len(self.alive) < MOST_ALIVE:
                self.alive.append((cache.fork(), list(ids)))
            case 4:
                cache.publish_prefix(ids)
            case _:
                self.end(number)

    def end(self, number: int) -> None:
        cache, ids = self.alive.pop(number)
        how = str(self.rng.choice(["finished", "cancelled in a step", "failed"]))
        self.ended[how] += 1
        if how == "finished":
            cache.publish_prefix(ids)
        else:
            held = cache.table, self.pool.counts, self.pool.free_blocks
            self.tries(lambda: feed(cache, ids + self.ids(5), len(ids), layers=1))
            cache.crop_to(len(ids))  # as the engine does with a step that did not come to its end
            assert (cache.table, self.pool.counts, self.pool.free_blocks) == held
        if how == "failed":
            cache.withdraw_prefix()
        cache.release()

    def go(self, requests: int) -> None:
        while sum(self.ended.values()) < requests:
            if len(self.alive) < 2 or (len(self.alive) < MOST_ALIVE and self.rng.random() < 0.2):
                self.begin()
            if self.alive:
                self.change(int(self.rng.integers(len(self.alive))))
            check_counts(self.pool, [cache for cache, _ in self.alive])
            for cache, ids in self.alive:
                check_rows(cache, ids)

    def finish(self) -> None:
        while self.alive:
            self.end(0)
        assert self.pool.counts == (0,) * self.pool.blocks
        assert self.pool.free_blocks == self.pool.blocks
        assert self.pool.taken_back == 0
        assert not self.pool.torn
        assert self.pool.memory().useful_bytes == 0


@pytest.mark.parametrize("requests", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_no_block_is_lost_whatever_requests_do(rng, requests):
    walk = Walk(rng)
    walk.go(requests)
    walk.finish()
    assert len(walk.ended) == 3


class Interrupt:
    """Ctrl-C at the n-th line that the caches' own code runs."""

    FILES = frozenset(module.__file__ for module in (page_pool, paged, prefixes))

    def __init__(self, line: int) -> None:
        self.left = line

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


CHANGES: dict[str, Any] = {
    "growth": lambda cache: step(cache, range(13)),
    "a copy": lambda cache: (cache.crop_to(5), step(cache, range(9))),
    "a crop": lambda cache: cache.crop_to(3),
    "a fork": lambda cache: cache.fork().release(),
    "an eviction": lambda cache: step(cache, range(16)),
    "publishing": lambda cache: cache.publish_prefix(range(7)),
    "a look-up": lambda cache: cache_on(cache.pool).reuse_prefix([7] * 9),
    "a release": lambda cache: cache.release(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_interruption_at_any_line_loses_no_block(change):
    for line in range(1, 400):
        pool = pool_of(8, 3)
        kept = cache_on(pool)
        step(kept, [7] * 6)
        kept.publish_prefix([7] * 6)
        kept.release()
        cache = cache_on(pool)
        step(cache, range(7))
        other = cache.fork()
        interrupt = Interrupt(line)
        try:
            with interrupt:
                CHANGES[change](cache)
        except KeyboardInterrupt:
            cache.crop_to(min(7, cache.length))  # as the engine does
        check_rows(other, range(7))
        cache.release()
        step(other, range(12))
        check_rows(other, range(12))
        other.release()
        whole = cache_on(pool)
        step(whole, range(24))  # needs every block
        check_rows(whole, range(24))
        check_counts(pool, [whole])
        if interrupt.left > 0:
            return
    raise AssertionError("the change took more lines than were tried")


def test_sixteen_threads_on_one_pool_never_see_one_another(rng):
    """S86: each thread's ids begin with its own number, or with what all of them share."""
    pool = pool_of(16 * 8)
    failures: list[BaseException] = []

    def work(number: int, seed: int) -> None:
        own = np.random.default_rng(seed)
        try:
            for _ in range(12):
                ids = [0, 0, 0, 0, *([number] * int(own.integers(1, 12)))]
                cache = cache_on(pool)
                cache.reuse_prefix(ids)
                step(cache, ids)
                twin = cache.fork()
                ids += [number]
                step(twin, ids)
                check_rows(cache, ids[:-1])
                check_rows(twin, ids)
                twin.publish_prefix(ids)
                cache.release()
                twin.release()
        except BaseException as error:
            failures.append(error)

    seeds = rng.integers(2**31, size=16)
    threads = [threading.Thread(target=work, args=(number, int(seeds[number]))) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    check_counts(pool, [])


def test_a_recorder_that_comes_late_learns_what_is_in_the_pool_once():
    pool = pool_of(8)
    old = cache_on(pool)
    step(old, range(6))  # nobody listens
    recorder = OrphanRecorder()

    def record(cache: PagedCache, length: int) -> None:
        rows_TKC = np.ones((1, 2, 1), np.float32)
        with recording(recorder):
            recorder.declare("rows", rows_TKC, None)
            for layer in range(LAYOUT.layers):
                cache.append(layer, rows_TKC, rows_TKC)
                cache.view(layer)
            cache.commit(1)
        assert cache.length == length

    record(old, 7)
    assert recorder.declared.count("kv_pool keys of layer 0") == 1
    assert sum(name.startswith("kv_pool") for name in recorder.declared) == 2 * LAYOUT.layers
    record(old, 8)
    record(cache_on(pool), 1)
    assert sum(name.startswith("kv_pool") for name in recorder.declared) == 2 * LAYOUT.layers, "known by now"
    step(cache_on(pool), range(3))  # unheard again
    record(old, 9)
    assert sum(name.startswith("kv_pool") for name in recorder.declared) == 4 * LAYOUT.layers


def test_a_pool_that_is_made_under_a_recorder_needs_no_declaration():
    recorder = OrphanRecorder()
    with recording(recorder):
        recorder.know_weights({"prototype": PROTOTYPE})
        cache = cache_on(pool_of(8))
        rows_TKC = np.ones((9, 2, 1), np.float32)
        recorder.declare("rows", rows_TKC, None)
        for layer in range(LAYOUT.layers):
            cache.append(layer, rows_TKC, rows_TKC)
        cache.commit(9)
        cache.fork().release()
        cache.release()
    assert recorder.declared == ["rows"]
    assert recorder.counts["kv_allocate_blocks"] == 2 * LAYOUT.layers
    told = [(kind, facts.get("blocks")) for kind, facts in recorder.events]
    assert told == [
        ("blocks_taken", [0, 1, 2]),
        ("block_table", [0, 1, 2]),
        ("block_table", [0, 1, 2]),  # of the fork
        ("block_table", []),
        ("blocks_freed", [0, 1, 2]),
        ("block_table", []),
    ]
