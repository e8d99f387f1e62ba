"""What a look-up finds, and the reason that it gives: the chain of hashes against exact prefixes.

FAULTS: S78 (the last token), S80 (whose rows these are), S81 (why not more).
"""

from collections import Counter

import pytest
from support.orphans import OrphanRecorder
from support.paged_rows import cache_on, check_rows, pool_of, step

from haaw.caches import prefixes
from haaw.caches.dynamic import DynamicCache
from haaw.caches.paged import PagedCache
from haaw.caches.prefix_sharing import prefixes_of
from haaw.caches.prefixes import PrefixIndex, chain_hash
from haaw.caches.protocol import CacheError
from haaw.ops.recorder import recording

SIZE = 4
STORED = list(range(10, 24))  # 14 ids: three blocks of 4, and a tail of 2


def stored_pool(**options):
    """A pool of blocks of 4 in which the rows of STORED can be found, under the identity of model A."""
    pool = pool_of(12, SIZE, identity={"model": "A"}, **options)
    cache = cache_on(pool)
    step(cache, STORED)
    cache.publish_prefix(STORED)
    cache.release()
    return pool


@pytest.mark.parametrize(
    ("ids", "common", "reused", "reason"),
    [
        ([1], 0, 0, "last token must be recomputed"),
        (STORED[:1], 1, 0, "last token must be recomputed"),
        (STORED[:3], 3, 0, "below block size"),
        (STORED[:4], 4, 0, "last token must be recomputed"),
        (STORED[:5], 5, 4, "last token must be recomputed"),
        (STORED[:7], 7, 4, "below block size"),
        (STORED[:8], 8, 4, "last token must be recomputed"),
        (STORED[:9], 9, 8, "last token must be recomputed"),
        (STORED[:12], 12, 8, "last token must be recomputed"),
        (STORED[:13], 13, 12, "last token must be recomputed"),
        (STORED, 14, 12, "below block size"),
        ([*STORED, 1, 2, 3, 4], 14, 12, "below block size"),  # the tail counts as known
        ([*STORED[:10], 1, 2, 3, 4], 10, 8, "below block size"),
        ([*STORED[:8], 1, 2, 3, 4, 5], 8, 8, "stored prefix ends"),
        ([*STORED[:12], 1, 2], 12, 12, "stored prefix ends"),
        ([*STORED[:3], 1, 2, 3], 3, 0, "below block size"),
        ([1, 2, 3, 4, 5], 0, 0, "no match"),
    ],
)
def test_a_look_up_says_how_much_is_common_how_much_is_reused_and_why_not_more(ids, common, reused, reason):
    cache = cache_on(stored_pool())
    recorder = OrphanRecorder()
    with recording(recorder):
        assert cache.reuse_prefix(ids) == reused == cache.length
    match = cache.prefix_match
    assert (match.common_tokens, match.reused_tokens, match.reason) == (common, reused, reason)
    kind, facts = recorder.events[-1 - bool(reused)]
    assert kind == "prefix_lookup"
    assert facts == {
        "cache": cache.number, "prompt_tokens": len(ids), "common_tokens": common, "reused_tokens": reused,
        "reason": reason, "differs": [],
    }  # fmt: skip
    step(cache, ids)
    check_rows(cache, ids)


def test_a_prefix_shorter_than_a_block_is_told_from_none():
    """S81: blocks of 16, a common prefix of 10; also where the first prompt filled no block."""
    for first in ([*range(10), *range(50, 80)], [*range(10), 50]):
        pool = pool_of(12, 16)
        cache = cache_on(pool)
        step(cache, first)
        cache.publish_prefix(first)
        found = pool.find({}, [*range(10), *range(30, 60)])[1]
        assert (found.common_tokens, found.reused_tokens, found.reason) == (10, 0, "below block size")


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"identity": {"model": "B"}}, ("model",)),
        ({"identity": {"model": "A", "adapter": "x"}}, ("adapter",)),
        ({"salt": "x"}, ("salt",)),
        ({"identity": {}}, ("model",)),
        ({"identity": {"model": "B", "dtype": "float64"}}, ("dtype", "model")),
    ],
)
def test_rows_of_another_model_adapter_or_salt_are_never_reused(other, differs):
    """S80."""
    pool = stored_pool()
    cache = cache_on(pool, **other)
    assert cache.reuse_prefix(STORED) == 0
    assert (cache.prefix_match.reason, cache.prefix_match.differs) == ("different model", differs)
    step(cache, STORED, family="other")
    cache.publish_prefix(STORED)
    again, first = cache_on(pool, **other), cache_on(pool)
    assert again.reuse_prefix(STORED) == first.reuse_prefix(STORED) == 12
    check_rows(again, STORED[:12], family="other")
    check_rows(first, STORED[:12])


def test_the_reason_for_an_empty_pool_and_for_an_evicted_block():
    pool = pool_of(3, SIZE)
    assert pool.find({}, STORED)[1].reason == "nothing stored"
    cache = cache_on(pool)
    step(cache, STORED[:12])
    cache.publish_prefix(STORED[:12])
    cache.release()
    other = cache_on(pool)
    step(other, [1, 2, 3])
    found = pool.find({}, STORED)[1]
    assert (found.common_tokens, found.reused_tokens, found.reason) == (12, 8, "evicted")
    other.release()
    again = cache_on(pool)
    step(again, STORED[:12])
    again.publish_prefix(STORED[:12])
    assert pool.find({}, STORED)[1].reason == "stored prefix ends", "its rows are there again"


def test_only_full_blocks_that_are_committed_are_published_and_each_once():
    pool = pool_of(12, SIZE)
    first, second = cache_on(pool), cache_on(pool)
    for cache in (first, second):
        step(cache, STORED[:7])
        cache.publish_prefix(STORED)  # more ids than rows
    assert len(pool._index) == 1
    assert pool.find({}, STORED)[0] == [first.table[0]]
    second.withdraw_prefix()
    assert len(pool._index) == 1, "the block is the first one's"
    first.withdraw_prefix()
    assert len(pool._index) == 0
    first.release()
    assert pool.kept_blocks == 0


def test_what_follows_a_withdrawn_block_cannot_be_found_either():
    pool = pool_of(12, SIZE)
    bad = cache_on(pool)
    step(bad, STORED[:8])
    bad.publish_prefix(STORED[:8])
    heir = cache_on(pool)
    heir.reuse_prefix([*STORED[:8], 1])
    step(heir, [*STORED[:8], 1, 2, 3, 4])
    heir.publish_prefix([*STORED[:8], 1, 2, 3, 4])
    heir.release()
    assert pool.kept_blocks == 1
    bad.withdraw_prefix()
    assert (len(pool._index), pool.kept_blocks) == (0, 0)
    bad.release()
    assert pool.free_blocks == 12


def test_a_prefix_is_looked_for_at_the_start_only():
    pool = stored_pool()
    cache = cache_on(pool)
    step(cache, [1])
    with pytest.raises(CacheError, match="at the start; this cache holds 1 positions"):
        cache.reuse_prefix(STORED)
    cache.release()
    with pytest.raises(CacheError, match="released"):
        cache.reuse_prefix(STORED)
    with pytest.raises(CacheError, match="released"):
        cache.publish_prefix(STORED)


def test_the_index_stays_small_whatever_is_asked_for():
    """Short prompts with ever new salts, and evictions without end."""
    pool = pool_of(6, SIZE)
    for number in range(200):
        cache = cache_on(pool, salt=str(number))
        step(cache, [number] * (number % 9 + 1))
        cache.publish_prefix([number] * (number % 9 + 1))
        cache.release()
    index: PrefixIndex = pool._index
    assert len(index) <= 6
    assert len(index._tails) <= 6
    assert len(index._evicted) <= 6
    assert len(index._roots) <= 12


def test_a_cache_that_shares_nothing_finds_nothing():
    cache = DynamicCache(pool_of(1).layout, pool_of(1)._prototype_Z)
    assert prefixes_of(cache).reuse_prefix([1, 2, 3]) == 0
    assert prefixes_of(cache).prefix_match is None
    paged = cache_on(pool_of(1))
    assert prefixes_of(paged) is paged


def test_the_hash_of_a_block_depends_on_all_tokens_before_it_and_on_their_order():
    root = prefixes.identity_hash({"model": "A"})
    seen = {root, prefixes.identity_hash({}), prefixes.identity_hash({"model": "A", "salt": ""})}
    for first in ([1, 2], [2, 1], [1, 2, 0], [513], [1 << 40, 0]):
        for second in ([1, 2], [2, 1]):
            seen.add(chain_hash(chain_hash(root, first), second))
    assert len(seen) == 3 + 5 * 2


def random_requests(rng, requests: int, *, blocks: int, vocabulary: int = 2) -> Counter[str]:
    """Requests on one pool against a dictionary of exact prefixes; a wrong row is found by what it holds."""
    size = int(rng.integers(1, 5))
    pool = pool_of(blocks, size)
    published: dict[tuple[str, tuple[int, ...]], bool] = {}
    seen: Counter[str] = Counter()
    for _ in range(requests):
        family = str(rng.integers(2))
        ids = [int(each) for each in rng.integers(vocabulary, size=int(rng.integers(1, 5 * size)))]
        cache = cache_on(pool, identity={"model": family})
        reused = cache.reuse_prefix(ids)
        blocks_that_could = (len(ids) - 1) // size
        exact = 0
        while exact < blocks_that_could and (family, tuple(ids[: (exact + 1) * size])) in published:
            exact += 1
        assert reused % size == 0
        assert reused <= exact * size, "never more than an exact prefix that was published"
        if blocks >= 10_000 and not pool._index.collisions:
            assert reused == exact * size, "nothing was evicted, so all of it"
        seen["hits"] += reused > 0
        seen[cache.prefix_match.reason] += 1
        check_rows(cache, ids[:reused], family=family)
        step(cache, ids, family=family)
        check_rows(cache, ids, family=family)
        if rng.random() < 0.7:
            cache.publish_prefix(ids)
            for end in range(size, len(ids) + 1, size):
                published[family, tuple(ids[:end])] = True
        cache.release()
    seen["collisions"] = pool._index.collisions
    assert pool.used_blocks == 0
    return seen


@pytest.mark.parametrize("requests", [250, pytest.param(5000, marks=pytest.mark.long)])
def test_random_requests_never_get_a_wrong_row(rng, requests):
    for blocks in (20, 20_000):  # with evictions and without
        seen = random_requests(rng, requests, blocks=blocks)
        assert seen["hits"] > requests / 20
        assert seen["collisions"] == 0


@pytest.mark.parametrize("requests", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_equal_hashes_of_different_tokens_give_no_wrong_row(rng, requests, monkeypatch):
    """A hash of 8 bits, which collides all the time: the tokens decide."""
    monkeypatch.setattr(prefixes, "chain_hash", lambda parent, tokens: chain_hash(parent, tokens)[:1])
    seen = random_requests(rng, requests, blocks=40, vocabulary=3)
    assert seen["collisions"] > requests / 20
    assert seen["hits"] > requests / 50


def test_the_same_tokens_behind_another_block_are_another_block(monkeypatch):
    """Blocks of two chains with equal tokens and, as if by chance, an equal hash: the parent decides."""
    monkeypatch.setattr(prefixes, "chain_hash", lambda parent, tokens: b"%d" % tokens[0])
    pool = pool_of(12, 1)
    for ids in ([1, 5], [2, 5]):
        cache = cache_on(pool)
        step(cache, ids)
        cache.publish_prefix(ids)
        cache.release()
    other = cache_on(pool)
    assert other.reuse_prefix([2, 5, 3]) == 1
    assert other.prefix_match.reason == "hash collision"
    check_rows(other, [2])
    assert cache_on(pool).reuse_prefix([1, 5, 3]) == 2


def test_a_block_whose_hash_is_taken_is_not_found_and_the_reason_says_so(monkeypatch):
    monkeypatch.setattr(prefixes, "chain_hash", lambda parent, tokens: b"x")
    pool = pool_of(12, SIZE)
    first = cache_on(pool)
    step(first, STORED[:4])
    first.publish_prefix(STORED[:4])
    second: PagedCache = cache_on(pool)
    assert second.reuse_prefix([1, 2, 3, 4, 5]) == 0
    assert second.prefix_match.reason == "hash collision"
    step(second, [1, 2, 3, 4, 5])
    second.publish_prefix([1, 2, 3, 4, 5])
    assert cache_on(pool).reuse_prefix([1, 2, 3, 4, 5]) == 0
    assert cache_on(pool).reuse_prefix(STORED[:5]) == 4
