"""The paged cache in whole runs: equal to no cache, shared prefixes computed once, forks that go their own ways.

FAULTS: S39 and S80 (damaged rows are not published), S76 (allocated is not used), S78 (exact multiples), S86, S87, S89.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.cache_pairs import Allocations, PlantedError
from support.orphans import OrphanRecorder
from support.paged_rows import LAYOUT, PROTOTYPE, cache_on, check_rows, feed, pool_of, rows_of, step
from support.scripted import ScriptedModel
from support.tiny_models import NumberText, tiny_gpt2, tiny_language_model, tiny_llama

from haaw.arrays import to_host
from haaw.caches.dynamic import DynamicCache
from haaw.caches.page_pool import PagePool
from haaw.caches.paged import PagedCache
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.errors import BadInputError
from haaw.generation.engine import advance, advance_without_cache
from haaw.generation.request import Request
from haaw.generation.settings import make_settings
from haaw.ops.recorder import Recorder, choosing_recorder, recording
from haaw.tracing.record import record
from haaw.tracing.replay import Selection, replay
from haaw.tracing.trace import Trace


def scattered_pool(model: Any, blocks: int, block_size: int) -> PagePool:
    """Every other block is taken, so that tables are never one run."""
    pool = PagePool(model.cache_layout, model.prototype_Z, blocks=2 * blocks, block_size=block_size)
    pool.drop(pool.take(2 * blocks, behind=None, room=2 * blocks)[::2])
    return pool


MODELS = {
    ("llama", "float32"): tiny_llama(5),
    ("llama", "float64"): tiny_llama(5, dtype="float64"),
    ("gpt2", "float32"): tiny_gpt2(5),
    ("gpt2", "float64"): tiny_gpt2(5, dtype="float64"),
}


@pytest.mark.parametrize("heap", ["alone", "scattered"])
@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_length_and_chunk_gives_the_logits_of_no_cache(family, dtype, size, heap, rng):
    """Lengths 1 to 2B + 1, in chunks of 1, B and all: 1e-5 in float32, 1e-10 in float64 of the largest logit."""
    model = MODELS[family, dtype]
    layout, prototype_Z = model.cache_layout, model.prototype_Z
    for length in range(1, 2 * size + 2):
        ids = [int(each) for each in rng.integers(64, size=length)]
        wanted = advance_without_cache(
            model, lambda: DynamicCache(layout, prototype_Z), ids, chunk_tokens=length
        )
        for chunk in {1, size, length}:
            if heap == "alone":
                cache = PagedCache(layout, prototype_Z, block_size=size, most_tokens=length)
            else:
                cache = PagedCache(layout, prototype_Z, pool=scattered_pool(model, length, size))
            for start in range(0, length, chunk):
                got = advance(model, cache, ids[start : start + chunk])
            error = abs(to_host(got) - to_host(wanted)).max() / abs(to_host(wanted)).max()
            assert error <= (1e-5 if dtype == "float32" else 1e-10)
            assert cache.length == length


@pytest.mark.parametrize("length", range(1, 18))
def test_a_prompt_that_is_sent_twice_computes_at_least_its_last_token(length, rng):
    """S78: blocks of 4, lengths 1 to 17."""
    model = tiny_language_model(3)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=12, block_size=4)
    prompt = [int(each) for each in rng.integers(64, size=length)]
    options: dict[str, Any] = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 4}
    plain = model.generate(prompt, max_tokens=4)
    for reused in (0, (length - 1) // 4 * 4):
        answer = model.generate(prompt, **options)
        assert answer.token_ids == plain.token_ids
        assert answer.usage.reused_tokens == answer.reused_tokens == reused
        assert answer.usage.prompt_tokens == length
        assert answer.to_dict()["usage"].get("reused_tokens", 0) == reused
    assert pool.used_blocks == 0


class Computed(Recorder):
    """The token ids that went into the model, step by step."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = []
        self.lookups: list[dict[str, Any]] = []

    def run(self, op, args, kwargs, scope):
        return op.plain(*args, **kwargs)

    def declare(self, name, array, scope):
        if name == "ids":
            self.ids.append(array.tolist())

    def know_weights(self, weights):
        pass

    def emit(self, kind, facts, scope):
        if kind == "prefix_lookup":
            self.lookups.append(dict(facts))


def test_shared_tokens_are_never_computed_again(rng):
    model = tiny_language_model(3)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=40, block_size=4)
    shared = [int(each) for each in rng.integers(64, size=22)]
    for number in range(4):
        prompt, recorder = [*shared, number, number], Computed()
        with choosing_recorder(recorder):
            answer = model.generate(prompt, cache="paged", cache_options={"pool": pool}, max_tokens=3)
        reused = 20 if number else 0
        assert answer.reused_tokens == reused
        assert recorder.ids == [prompt[reused:], *([each] for each in answer.token_ids[:-1])]
        assert [each["reused_tokens"] for each in recorder.lookups] == [reused]
        assert answer.token_ids == model.generate(prompt, max_tokens=3).token_ids


def test_a_conversation_goes_on_from_the_rows_of_its_answers():
    model = tiny_language_model(3)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=40, block_size=4)
    options: dict[str, Any] = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 9}
    first = model.generate([1, 2, 3], **options)
    second = model.generate([1, 2, 3, *first.token_ids, 4], **options)
    assert (
        second.reused_tokens == 8
    )  # 3 + 9 ids, but the last of the answer was never run: 11 rows, two blocks
    plain = model.generate([1, 2, 3, *first.token_ids, 4], max_tokens=9)
    assert second.token_ids == plain.token_ids


def test_a_used_length_is_not_an_allocated_one():
    """S76: 300 tokens, a prefix of 260 kept: what goes on from there equals a cold run."""
    model = tiny_llama(2, context_length_tokens=512)
    ids = [int(each) for each in np.random.default_rng(1).integers(64, size=310)]
    cache = PagedCache(model.cache_layout, model.prototype_Z, context_length_tokens=512)
    advance(model, cache, ids[:300])
    cache.crop_to(260)
    assert (cache.length, cache.capacity) == (260, 272)
    got = advance(model, cache, ids[300:])
    cold = DynamicCache(model.cache_layout, model.prototype_Z)
    wanted = advance(model, cold, [*ids[:260], *ids[300:]])
    assert abs(got - wanted).max() < 1e-5 * abs(wanted).max()


def test_models_that_share_a_pool_do_not_share_rows():
    """S80, with real models: equal layouts, other weights; and the same weights with another salt."""
    one, other = tiny_language_model(1), tiny_language_model(2)
    pool = PagePool(one.transformer.cache_layout, one.transformer.prototype_Z, blocks=60, block_size=4)
    prompt = list(range(1, 14))
    for model, salt, reused in (
        (one, None, 0),
        (other, None, 0),
        (one, "x", 0),
        (one, "x", 12),
        (other, None, 12),
    ):
        options = {"pool": pool} | ({} if salt is None else {"salt": salt})
        answer = model.generate(prompt, cache="paged", cache_options=options, max_tokens=3)
        assert answer.reused_tokens == reused
        assert answer.token_ids == model.generate(prompt, max_tokens=3).token_ids
    assert one.identity.keys() == {"model", "family", "config", "dtype", "weights"}
    assert one.identity["weights"] != other.identity["weights"]
    assert one.identity == tiny_language_model(1).identity


def scripted(
    pool: PagePool, prompt: Sequence[int], *, before_step: Any = lambda step: None, **settings: Any
) -> Request:
    model = ScriptedModel([5], prompt_length=len(prompt), before_step=before_step)
    return Request(
        model,
        NumberText(),
        prompt,
        make_settings(cache="paged", **settings),
        make_cache=lambda: PagedCache(model.cache_layout, model.prototype_Z, pool=pool),
    )


SCRIPTED = CacheLayout(layers=1, kv_heads=1, head_dim=2, dtype="float32")
PROMPT = [7] * 9


def damaged_at(number: int) -> Any:
    return lambda step: np.full(300, np.nan, np.float32) if step == number else None


@pytest.mark.parametrize("number", [0, 1, 3])
def test_blocks_of_a_request_whose_scores_are_damaged_are_not_published(number):
    """S39: the first score, or a later one when the prompt's blocks could be found already."""
    pool = PagePool(SCRIPTED, PROTOTYPE, blocks=20, block_size=2)
    answer = scripted(pool, PROMPT, before_step=damaged_at(number), max_tokens=6).run()
    assert answer.finish.reason == "failed"
    assert pool.find({}, PROMPT)[1].reused_tokens == 0
    assert (pool.kept_blocks, pool.used_blocks) == (0, 0)
    assert scripted(pool, PROMPT, max_tokens=6).run().reused_tokens == 0
    assert scripted(pool, PROMPT, max_tokens=6).run().reused_tokens == 8


def test_rows_that_no_score_has_judged_are_not_published():
    """A prompt of which nothing was asked, and one that was cancelled before its first score."""
    pool = PagePool(SCRIPTED, PROTOTYPE, blocks=20, block_size=2)
    assert scripted(pool, PROMPT, max_tokens=0).run().finish.reason == "length"
    request = scripted(
        pool, PROMPT, max_tokens=6, prefill_chunk_tokens=4, before_step=lambda step: request.cancel()
    )
    assert request.run().finish.reason == "cancelled"
    assert (pool.kept_blocks, pool.used_blocks) == (0, 0)


def test_whoever_comes_while_another_decodes_shares_its_prompt():
    pool = PagePool(SCRIPTED, PROTOTYPE, blocks=20, block_size=2)
    first = scripted(pool, PROMPT, max_tokens=6)
    stream = iter(first)
    next(stream)
    assert scripted(pool, PROMPT, max_tokens=2).run().reused_tokens == 8
    assert pool.memory().shared_bytes == 0
    stream.close()
    assert first.answer.finish.reason == "cancelled"
    assert pool.used_blocks == 0


@pytest.mark.parametrize("at", range(6))
def test_every_end_gives_every_block_back(at):
    """S87, S89: closed streams, cancellation and deadline in each phase, failures, and natural ends."""
    pool = PagePool(SCRIPTED, PROTOTYPE, blocks=20, block_size=2)

    def fails(step: int) -> None:
        if step == at:
            raise RuntimeError("planted")

    def cancels(step: int) -> None:
        if step == at:
            request.cancel()

    with pytest.raises(RuntimeError, match="planted"):
        scripted(pool, PROMPT, before_step=fails, max_tokens=9, prefill_chunk_tokens=4).run()
    assert pool.kept_blocks == 0
    request = scripted(pool, PROMPT, before_step=cancels, max_tokens=9, prefill_chunk_tokens=4)
    assert request.run().finish.reason == "cancelled"
    stream = iter(scripted(pool, PROMPT, max_tokens=9))
    for _ in range(at):
        next(stream)
    stream.close()
    assert scripted(pool, PROMPT, max_tokens=9, deadline_s=1e-9).run().finish.reason == "deadline"
    assert scripted(pool, PROMPT, max_tokens=at).run().finish.reason == "length"
    assert pool.counts == (0,) * 20
    assert pool.free_blocks == 20


def test_a_request_that_can_never_fit_is_refused_when_it_is_made_and_the_next_one_is_served():
    """S82, through the front door."""
    model = tiny_language_model(1)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=4, block_size=4)
    options: dict[str, Any] = {"cache": "paged", "cache_options": {"pool": pool}}
    for prompt, tokens in (([1] * 17, 1), ([1] * 4, 14)):  # 4 + 13 rows: the last id is never run
        with pytest.raises(BadInputError, match="5 blocks of 4, and the whole pool has 4"):
            model.request(prompt, max_tokens=tokens, **options)
    assert len(model.generate([1] * 4, max_tokens=13, **options).token_ids) == 13
    assert pool.used_blocks == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_size": 0}, "block_size is 0; it must be 1 or more"),
        ({"blocks": -1}, "blocks is -1"),
        ({"block_size": 4.0}, "must be a whole number"),
        ({"pool": 3}, "pool"),
        ({"pool": pool_of(4), "blocks": 4}, "the pool's own"),
        ({"pool": pool_of(4)}, "make another pool"),
        ({"size": 4}, 'has no option "size"'),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_runs(options, words):
    with pytest.raises(BadInputError, match=words):
        tiny_language_model(1).request([1, 2, 3], cache="paged", cache_options=options, max_tokens=2)


def test_a_pool_of_its_own_is_as_large_as_the_request_can_need():
    model = tiny_language_model(1)  # a context of 128
    request = model.request([1] * 10, max_tokens=23, cache="paged")
    made: list[PagedCache] = []
    original = request._make_cache
    request._make_cache = lambda: made.append(original()) or made[-1]
    answer = request.run()
    assert len(answer.token_ids) == 23
    assert made[0].pool.blocks == 2  # 10 + 22 rows, in blocks of 16
    assert made[0].pool.memory().allocated_bytes == 32 * model.transformer.cache_layout.bytes_per_position
    whole = PagedCache(LAYOUT, PROTOTYPE, context_length_tokens=128)
    assert whole.pool.blocks == 8
    with pytest.raises(CacheError, match="needs a size"):
        PagedCache(LAYOUT, PROTOTYPE)


class Copies(Allocations):
    """Counts the operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def run(self, op, args, kwargs, scope):
        self.names.append(op.name)
        return super().run(op, args, kwargs, scope)


@pytest.mark.parametrize(("length", "copied"), [(0, 0), (5, 1), (7, 1), (8, 0)])
def test_a_fork_copies_one_block_when_it_writes_into_a_shared_one_and_none_at_the_edge(length, copied):
    pool = pool_of(12)
    origin = cache_on(pool)
    step(origin, range(length))
    twin, recorder = origin.fork(), Copies()
    assert twin.table == origin.table
    assert pool.counts[:3] == (2 * (length > 0), 2 * (length > 4), 0)
    with recording(recorder):
        step(twin, [*range(length), 90])
        step(origin, [*range(length), 91])
        step(twin, [*range(length), 90, 92])
    assert recorder.names.count("kv_copy_block") == copied * 2 * LAYOUT.layers, (
        "the last holder writes in place"
    )
    check_rows(origin, [*range(length), 91])
    check_rows(twin, [*range(length), 90, 92])
    origin.release()
    check_rows(twin, [*range(length), 90, 92])


def test_beams_that_change_parents_equal_runs_from_the_start():
    """S77: two beams, the second one dies and the first one has two children."""
    model = tiny_llama(4)
    pool = PagePool(model.cache_layout, model.prototype_Z, blocks=20, block_size=4)
    first = PagedCache(model.cache_layout, model.prototype_Z, pool=pool)
    advance(model, first, [1, 2, 3, 4, 5])
    second = first.fork()
    advance(model, first, [6])
    advance(model, second, [7])
    second.release()
    second = first.fork()
    for cache, ids in ((first, [8, 9]), (second, [10, 11])):
        for each in ids:
            got = advance(model, cache, [each])
        cold = DynamicCache(model.cache_layout, model.prototype_Z)
        wanted = advance(model, cold, [1, 2, 3, 4, 5, 6, *ids])
        assert abs(got - wanted).max() < 1e-5 * abs(wanted).max()


def test_going_on_after_a_crop_leaves_published_rows_as_they_are():
    pool = pool_of(12)
    cache = cache_on(pool)
    step(cache, range(10))
    cache.publish_prefix(range(10))
    published = cache.table
    cache.crop_to(5)
    step(cache, [0, 1, 2, 3, 4, 50, 51])
    assert cache.table[0] == published[0]
    assert cache.table[1] != published[1], "copied, since others can find it"
    other = cache_on(pool)
    assert other.reuse_prefix(range(10)) == 8
    check_rows(other, range(8))
    check_rows(cache, [0, 1, 2, 3, 4, 50, 51])


def test_where_no_block_is_left_for_a_copy_published_rows_of_nobody_else_are_given_up():
    pool = pool_of(3)
    cache = cache_on(pool)
    step(cache, range(12))
    cache.publish_prefix(range(12))
    cache.crop_to(10)  # the third block stays, and can be found
    step(cache, [*range(10), 50])
    check_rows(cache, [*range(10), 50])
    assert pool.find({}, range(13))[1].reused_tokens == 8
    twin = cache.fork()
    with pytest.raises(CacheError, match="1 more blocks"):
        step(twin, [*range(10), 50, 51])
    check_rows(cache, [*range(10), 50])


@pytest.mark.parametrize("length", [0, 4, 6])
@pytest.mark.parametrize("shared", ["alone", "forked", "published"])
def test_a_step_that_fails_at_any_operation_leaves_tables_counts_and_rows_as_they_were(length, shared):
    number = 0
    while True:
        number += 1
        pool = pool_of(12)
        cache = cache_on(pool)
        step(cache, range(8))
        if shared == "published":
            cache.publish_prefix(range(8))
        cache.crop_to(length)
        twin = cache.fork() if shared == "forked" else None
        before = cache.table, pool.counts, pool.free_blocks
        recorder = Allocations()
        recorder.fail_at(number)
        try:
            with recording(recorder):
                feed(cache, range(length + 7), length)
        except PlantedError:
            cache.crop_to(length)
            assert (cache.table, pool.counts, pool.free_blocks) == before
            check_rows(cache, range(length))
            if twin is not None:
                check_rows(twin, range(length))
            step(cache, range(9))
            check_rows(cache, range(9))
            continue
        cache.commit(7)
        check_rows(cache, range(length + 7))
        copied = shared != "alone" and length == 6
        assert number == 1 + (2 + 2 * copied) * LAYOUT.layers
        return


def test_the_block_table_is_told_whenever_it_changes():
    pool = pool_of(12)
    recorder = OrphanRecorder()
    with recording(recorder):
        recorder.know_weights({"prototype": PROTOTYPE})
        cache = cache_on(pool)
        rows = {length: rows_of(range(length), 0).repeat(2).reshape(-1, 2, 1) for length in (3, 2)}
        for length, rows_TKC in rows.items():
            recorder.declare("rows", rows_TKC, None)
            for layer in range(LAYOUT.layers):
                cache.append(layer, rows_TKC, rows_TKC)
            cache.commit(length)
        twin = cache.fork()
        cache.crop_to(4)
        for layer in range(LAYOUT.layers):
            twin.append(layer, rows[2], rows[2])
        twin.commit(2)
    tables = [(facts["cache"], facts["blocks"]) for kind, facts in recorder.events if kind == "block_table"]
    assert tables == [(1, [0]), (1, [0, 1]), (2, [0, 1]), (1, [0])]
    assert twin.table == (0, 1), "its block is shared no longer, so written in place"


def test_requests_in_sixteen_threads_get_their_own_answers():
    """S86: one pool, prompts that share a beginning and end in their own number."""
    model = tiny_language_model(6)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=200, block_size=4)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, number] for number in range(16)]
    wanted = [model.generate(prompt, max_tokens=6).token_ids for prompt in prompts]
    got: dict[int, set[tuple[int, ...]]] = {number: set() for number in range(16)}
    model.generate(prompts[0], max_tokens=1, cache="paged", cache_options={"pool": pool})

    def work(number: int) -> None:
        for _ in range(3):
            answer = model.generate(
                prompts[number], max_tokens=6, cache="paged", cache_options={"pool": pool}
            )
            assert answer.reused_tokens == 8
            got[number].add(answer.token_ids)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {number: {ids} for number, ids in enumerate(wanted)}
    assert pool.used_blocks == 0


def test_a_whole_run_on_a_shared_pool_is_a_closed_log():
    """Also where the pool was filled while nobody listened, and where the table is in pieces."""
    model = tiny_language_model(1)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=20, block_size=4)
    options: dict[str, Any] = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 8}
    model.generate(range(1, 12), **options)
    recorder = OrphanRecorder()
    with choosing_recorder(recorder):
        answer = model.generate([*range(1, 10), 40], **options)
        model.generate([*range(1, 10), 41], **options)
    assert answer.reused_tokens == 8
    assert recorder.counts["kv_gather"] > 0
    assert sum(name.startswith("kv_pool") for name in recorder.declared) == 4


def test_a_trace_of_requests_on_a_shared_pool_can_be_replayed(tmp_path):
    """The pool was filled before the recording began, one prefix is reused, and one table is in pieces."""
    model = tiny_language_model(1)
    pool = PagePool(model.transformer.cache_layout, model.transformer.prototype_Z, blocks=20, block_size=4)
    options: dict[str, Any] = {"cache": "paged", "cache_options": {"pool": pool}, "max_tokens": 8}
    model.generate(range(1, 12), **options)
    with record(tmp_path / "run.haaw"):
        assert model.generate([*range(1, 10), 40], **options).reused_tokens == 8
        model.generate([*range(1, 10), 41], **options)
    trace = Trace(tmp_path / "run.haaw", weights=model.transformer.named_weights)
    report = replay(trace, Selection(trace))
    assert report.ok, str(report)
    assert report.identical_share == 1
