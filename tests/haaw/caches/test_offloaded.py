"""The cache that lives elsewhere: the same bits however late a copy comes, one layer ahead, told with its bytes.

FAULTS: S79 (copies that read or overwrote rows before the other side was done).
"""

import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.fake_array import FakeLibrary
from support.offloading import (
    IDS,
    LAYOUT,
    PROTOTYPE,
    ROW_BYTES,
    LateMover,
    SlowMover,
    decoded,
    offloaded_files_gone,
    offloaded_for,
    step,
)
from support.orphans import OrphanRecorder
from support.tiny_models import tiny_language_model, tiny_llama

from haaw.arrays import owner
from haaw.caches.dynamic import DynamicCache
from haaw.caches.kinds import make_cache, plan_cache
from haaw.caches.movers import Mover, StreamMover, ThreadMover, mover_for
from haaw.caches.offloaded import OffloadedCache
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.generation.engine import advance
from haaw.ops.recorder import Recorder, choosing_recorder, recording


class ForgetfulMover(Mover):
    """The fault: the copy takes a while, and nobody waits for it."""

    def begin(self, work, stored):
        threading.Timer(0.005, work).start()


MOVERS = {"a thread": ThreadMover, "a slow thread": SlowMover, "at once": Mover, "late": LateMover}
movers = pytest.mark.parametrize("mover", MOVERS.values(), ids=MOVERS)


def differences(mover: Mover, layers: int, steps: int) -> int:
    """How many views differ from those of a cache that is always resident."""
    layout = CacheLayout(layers=layers, kv_heads=2, head_dim=4, dtype="float32")
    caches = OffloadedCache(layout, PROTOTYPE, first_capacity=8, mover=mover), DynamicCache(layout, PROTOTYPE)
    seen = [
        [step(cache, rng, tokens) for tokens in [7, *[1] * (steps - 1)]]
        for cache, rng in ((cache, np.random.default_rng(layers)) for cache in caches)
    ]
    caches[0].release()
    return sum(
        not np.array_equal(one, other)
        for views in zip(*seen, strict=True)
        for one, other in zip(*views, strict=True)
    )


@movers
@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_two_hundred_steps_show_attention_the_very_same_bits(mover, layers):
    assert differences(mover(), layers, 200) == 0


def test_a_cache_that_does_not_wait_would_be_found_out():
    """The negative control of the test above."""
    assert differences(ForgetfulMover(), 5, 10) > 10


@movers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_gives_the_same_logits_as_with_a_resident_cache(mover, dtype):
    model = tiny_llama(3, dtype=dtype, layers=4)
    with offloaded_files_gone():
        cache = offloaded_for(model, first_capacity=4, mover=mover())
        found = decoded(model, cache, IDS, 30)
        cache.release()
    plain = decoded(model, DynamicCache(model.cache_layout, model.prototype_Z), IDS, 30)
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("float64", 1e-10)])
def test_a_model_gives_the_logits_of_a_whole_pass_without_a_cache(dtype, atol):
    model = tiny_llama(6, dtype=dtype, layers=3)
    for length in range(1, 20):
        cache = offloaded_for(model, first_capacity=4)
        found = decoded(model, cache, IDS[:length], 1 + length // 2)[-1]
        whole = advance(model, DynamicCache(model.cache_layout, model.prototype_Z), IDS[:length])
        np.testing.assert_allclose(found, whole[-1], rtol=0, atol=atol)


def test_another_array_library_keeps_the_store_on_the_host():
    here, there = tiny_llama(5, layers=3), tiny_llama(5, layers=3, xp=FakeLibrary())
    for mover in (None, LateMover()):
        cache = offloaded_for(there, first_capacity=4, mover=mover)
        found = decoded(there, cache, IDS[:40], 13)
        plain = decoded(here, DynamicCache(here.cache_layout, here.prototype_Z), IDS[:40], 13)
        np.testing.assert_array_equal(found, plain)
        assert all(type(segment) is np.ndarray and segment.flags.owndata for segment in cache._store.segments)


def test_a_library_s_mover_is_its_own():
    class FakeCuda:
        class Stream:
            def __init__(self, non_blocking: bool) -> None:
                assert non_blocking

    class FakeCuPy:
        __name__ = "cupy"
        cuda = FakeCuda

    assert type(mover_for(np)) is ThreadMover
    assert type(mover_for(FakeLibrary())) is Mover
    assert type(mover_for(FakeCuPy())) is StreamMover


def test_each_stream_waits_for_the_other():
    """Both edges: the copy waits for what computes, and what computes next waits for the copy (S79)."""
    log: list[Any] = []

    class Stream:
        def __init__(self, name: str = "copy", **_: Any) -> None:
            self.name = name

        def record(self) -> str:
            log.append(("record", self.name))
            return f"event of {self.name}"

        def wait_event(self, event: str) -> None:
            log.append((self.name, "waits for", event))

        def __enter__(self) -> None:
            log.append("copy stream is current")

        def __exit__(self, *_: Any) -> None:
            log.append("copy stream is left")

    class Cuda:
        pass

    Cuda.Stream = Stream
    compute = Stream("compute")
    Cuda.get_current_stream = staticmethod(lambda: compute)
    mover = StreamMover(type("CuPy", (), {"cuda": Cuda}))
    mover.begin(lambda: log.append("work"), [])
    assert log == [
        ("record", "compute"),
        ("copy", "waits for", "event of compute"),
        "copy stream is current",
        "work",
        "copy stream is left",
        ("record", "copy"),
    ]
    log.clear()
    mover.settle()
    mover.settle()
    assert log == [("compute", "waits for", "event of copy")]


# One layer ahead, and no more than the rows in use.


class Events(Recorder):
    """Counts operations and keeps events."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[str, Any]] = []

    def run(self, op, args, kwargs, scope):
        self.counts[op.name] += 1
        return op.plain(*args, **kwargs)

    def emit(self, kind, facts, scope):
        self.events.append((kind, facts))

    def of(self, kind: str, *names: str) -> list[Any]:
        return [tuple(facts[name] for name in names) for seen, facts in self.events if seen == kind]


def test_every_copy_is_told_with_its_bytes_and_its_time_and_comes_one_layer_ahead(rng):
    cache, events = OffloadedCache(LAYOUT, PROTOTYPE), Events()
    with recording(events):
        step(cache, rng, 7)
        events.counts.clear()
        events.events.clear()
        step(cache, rng)
        step(cache, rng)
    # Layer 0 was sent for while the last layer of the step before computed. The layers 1 to 4 have the 7 rows of the
    # first step; layer 0, sent for at the end, also has the row of the step under way.
    wanted = [(0, 7), (1, 7), (2, 7), (3, 7), (4, 7), (0, 8), (1, 8), (2, 8), (3, 8), (4, 8)]
    assert events.of("cache_fetched", "layer", "positions") == wanted
    assert events.of("cache_fetched", "bytes") == [(positions * ROW_BYTES,) for _, positions in wanted]
    assert {when for (when,) in events.of("cache_fetched", "when")} == {"one layer ahead"}
    assert events.of("cache_stored", "layer", "positions", "bytes") == [
        (layer, 1, ROW_BYTES) for layer in [*range(5), *range(5)]
    ]
    times = [*events.of("cache_fetched", "took_ms", "waited_ms"), *events.of("cache_stored", "took_ms")]
    assert all(type(each) is float and each >= 0 for row in times for each in row)
    assert events.counts["kv_fetch"] == 2 * 10
    assert events.counts["kv_store"] == 2 * 10, "a step writes out its own rows"
    assert events.counts["kv_move"] == 0, "and no history"


def test_the_next_layer_is_copied_while_this_one_computes(rng):
    """The copy is done before anybody asks for it, in another thread."""
    copied: list[int] = []

    class Watched(ThreadMover):
        def begin(self, work, stored):
            def watched() -> None:
                work()
                copied.append(threading.get_ident())

            super().begin(watched, stored)

    cache = OffloadedCache(LAYOUT, PROTOTYPE, mover=Watched())
    seen = step(cache, rng, 3)
    cache._settle()
    before = len(copied)
    cache.append(0, *np.ones((2, 1, 2, 4), np.float32))
    keys_KSC, values_KSC = cache.view(0)
    deadline = time.monotonic() + 20
    while len(copied) == before and time.monotonic() < deadline:
        time.sleep(0.001)  # "computing"
    assert len(copied) == before + 1
    for part, earlier in zip((keys_KSC, values_KSC), seen, strict=False):
        np.testing.assert_array_equal(
            part[:, :3], earlier, "what attention reads was not written over meanwhile"
        )
        assert (part[:, 3] == 1).all()
    assert threading.get_ident() not in copied


@pytest.mark.parametrize("layers", [1, 2])
def test_two_layers_stay_where_they_are(rng, layers):
    layout, events = CacheLayout(layers=layers, kv_heads=2, head_dim=4, dtype="float32"), Events()
    cache = OffloadedCache(layout, PROTOTYPE)
    with recording(events):
        for tokens in (5, 1, 1, 1):
            step(cache, rng, tokens)
    assert events.counts["kv_fetch"] == 0


def test_a_store_that_grows_moves_nothing(rng):
    cache, events = OffloadedCache(LAYOUT, PROTOTYPE, first_capacity=4), Events()
    with recording(events):
        for _ in range(20):
            step(cache, rng)
    assert events.of("store_grown", "capacity") == [(4,), (8,), (16,), (32,)]
    assert events.counts["kv_move"] == 0
    assert events.counts["kv_store"] == 20 * 5 * 2


def test_memory_by_hand(rng):
    """Five layers, 20 tokens; store of 32 positions; two working buffers as long as the store."""
    cache = OffloadedCache(LAYOUT, PROTOTYPE, first_capacity=4)
    for _ in range(20):
        step(cache, rng)
    assert (cache.length, cache.capacity) == (20, 32)
    memory = cache.memory()
    assert memory.useful_bytes == 20 * 5 * ROW_BYTES
    assert cache.offloaded_bytes == 32 * 5 * ROW_BYTES
    assert cache.resident_bytes == 2 * 32 * ROW_BYTES, "two layers, however many there are"
    assert memory.allocated_bytes == cache.offloaded_bytes + cache.resident_bytes
    assert (memory.metadata_bytes, memory.shared_bytes) == (0, 0)


def test_views_are_windows_on_the_working_buffers_and_the_store_is_a_file(rng):
    cache = OffloadedCache(LAYOUT, PROTOTYPE)
    step(cache, rng, 3)
    (store,) = cache._store.segments
    assert "mmap" in repr(owner(store).base) or type(owner(store).base).__name__ == "memoryview"
    for layer in range(5):
        for part in cache.view(layer):
            assert not np.shares_memory(part, store)
            assert owner(part).flags.owndata


# The log.


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_a_request_reads_nothing_that_is_not_accounted_for(chunk):
    recorder, changes = OrphanRecorder(), {"layers": 4}
    settings = {"max_tokens": 30, "prefill_chunk_tokens": chunk, "cache": "offloaded"}
    with choosing_recorder(recorder):
        answer = tiny_language_model(1, **changes).generate(IDS[:11], **settings)
    recorder.check_weights()
    assert (
        answer.token_ids
        == tiny_language_model(1, **changes).generate(IDS[:11], **(settings | {"cache": "dynamic"})).token_ids
    )
    assert recorder.counts["kv_fetch"] > 200
    assert not [op for op, dtype in recorder.result_dtypes if dtype == "float64"]


def test_a_request_on_another_library_is_accounted_for():
    recorder = OrphanRecorder()
    with choosing_recorder(recorder):
        answer = tiny_language_model(1, layers=4, xp=FakeLibrary()).generate(
            IDS[:11], max_tokens=9, cache="offloaded"
        )
    assert answer.token_ids == tiny_language_model(1, layers=4).generate(IDS[:11], max_tokens=9).token_ids
    assert recorder.counts["kv_fetch"] > 50


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"first_capacity": 0}, "too small"),
        ({"folder": 3}, "folder"),
        ({"mover": 3}, "mover"),
        ({"x": 1}, "no option"),
    ],
)
def test_options_that_cannot_be_are_refused(options, complaint):
    with pytest.raises(CacheError, match=complaint):
        plan_cache("offloaded", LAYOUT, context_length_tokens=100, **options)
    with pytest.raises(CacheError, match=complaint):
        make_cache("offloaded", LAYOUT, PROTOTYPE, context_length_tokens=100, **options)


@pytest.mark.weights
def test_smollm2_answers_as_under_transformers(smollm2, smollm2_cases):
    for case in (smollm2_cases[0], smollm2_cases[5]):
        answer = smollm2.generate(case["ids"], max_tokens=20, cache="offloaded")
        assert list(answer.token_ids) == case["greedy"][:20]
