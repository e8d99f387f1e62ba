"""The ring of a sliding cache: what it holds however it was filled, what an append costs, and what it refuses.

FAULTS: S53 (W or W + 1 keys), S71 (a ring read by logical index), S72 (two ways to fill, two invariants), S76.
"""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.cache_pairs import LAYOUT, Allocations, Case, Pair
from support.orphans import OrphanRecorder
from support.tiny_models import tiny_llama

from haaw.arrays import owner
from haaw.caches.kinds import make_cache, plan_cache
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.caches.sliding import SlidingCache
from haaw.generation.engine import advance
from haaw.ops.attention import causal_mask
from haaw.ops.recorder import recording

PROTOTYPE = np.zeros(1, np.float32)


def ring_of(
    window: int | None, sinks: int = 0, *, layout: CacheLayout = LAYOUT, context: int = 1000
) -> SlidingCache:
    return SlidingCache(layout, PROTOTYPE, context_length_tokens=context, window=window, sinks=sinks)


def numbered(cache: SlidingCache, steps: list[int]) -> None:
    """Appends rows whose every number is their position (keys) or its negative (values)."""
    for tokens in steps:
        positions_T = np.arange(cache.length, cache.length + tokens, dtype=np.float32)
        rows_TKC = np.broadcast_to(positions_T[:, None, None], (tokens, LAYOUT.kv_heads, LAYOUT.head_dim))
        for layer in range(cache.layout.layers):
            cache.append(layer, rows_TKC, -rows_TKC)
        cache.commit(tokens)


def stored(cache: SlidingCache, layer: int = 0) -> list[int]:
    """The numbers in the rows of a view, in the order in which they lie."""
    keys_KSC, values_KSC = cache.view(layer)
    np.testing.assert_array_equal(keys_KSC, -values_KSC)
    return [int(row) for row in keys_KSC[1, :, 2]]


@pytest.mark.parametrize(
    ("window", "sinks"), [(8, 0), (8, 3), (5, 0), (1, 0), (19, 0), (20, 0), (21, 0), (3, 17)]
)
def test_every_way_to_fill_leaves_the_same_rows_positions_and_next_scores(window, sinks):
    """Twenty ids as 5 + 5 + 10, in one step, and one by one."""
    model = tiny_llama(3, dtype="float64")
    ids = np.random.default_rng(4).integers(0, 64, 21).tolist()
    found: list[tuple[Any, ...]] = []
    for chunks in ([5, 5, 10], [20], [1] * 20, [19, 1], [1, 19], [7, 7, 6]):
        cache = make_cache(
            "sliding", model.cache_layout, PROTOTYPE, context_length_tokens=128, window=window, sinks=sinks
        )
        for tokens in chunks:
            advance(model, cache, ids[cache.length : cache.length + tokens])
        positions = list(cache.positions(1))
        keys_KSC, values_KSC = cache.view(1)
        assert sorted(positions) == sorted({*range(min(20, sinks)), *range(max(sinks, 20 - window), 20)})
        found.append((positions, keys_KSC.copy(), values_KSC.copy(), advance(model, cache, ids[20:])))
    for positions, keys_KSC, values_KSC, logits_BV in found[1:]:
        assert positions == found[0][0]
        np.testing.assert_allclose(keys_KSC, found[0][1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(values_KSC, found[0][2], rtol=0, atol=1e-12)
        np.testing.assert_allclose(logits_BV, found[0][3], rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([3], [0, 1, 2]),
        ([4], [0, 1, 2, 3]),  # full
        ([4, 1], [4, 1, 2, 3]),  # one past: the new row lies where the oldest was
        ([5], [4, 1, 2, 3]),
        ([1] * 7, [4, 5, 6, 3]),
        ([8], [4, 5, 6, 7]),  # round once
        ([3, 6], [8, 5, 6, 7]),
        ([30], [28, 29, 26, 27]),  # longer than the window several times over
    ],
)
def test_rows_lie_in_the_ring_where_their_positions_say(steps, expected):
    cache = ring_of(4)
    numbered(cache, steps)
    assert stored(cache) == expected == list(cache.positions(0))
    with_sinks = ring_of(4, 2)
    numbered(with_sinks, [2, *steps])
    assert stored(with_sinks) == [0, 1, *(position + 2 for position in expected)]


def test_the_rows_of_a_long_prefill_are_in_order_while_it_runs():
    """A ring read by logical index gives another order (S71)."""
    cache = ring_of(4, 1)
    numbered(cache, [7])
    rows_TKC = np.broadcast_to(np.arange(7, 13, dtype=np.float32)[:, None, None], (6, 2, 4))
    cache.append(0, rows_TKC, -rows_TKC)
    assert stored(cache) == [0, 4, 5, 6, *range(7, 13)] == list(cache.positions(0))


@pytest.mark.parametrize("window", [2, 16, 64])
def test_an_append_in_decode_moves_one_row_whatever_the_window_and_allocates_nothing(window):
    cache = ring_of(window)
    numbered(cache, [window, 3])
    moved: Counter[str] = Counter()

    class Bytes(Allocations):
        def run(self, op, args, kwargs, scope):
            moved[op.name] += sum(part.nbytes for part in args[1:])
            return super().run(op, args, kwargs, scope)

    allocations = Bytes()
    with recording(allocations):
        numbered(cache, [1])
        views = [cache.view(layer) for layer in range(3)]
    row = 2 * 3 * LAYOUT.kv_heads * LAYOUT.head_dim * 4
    assert moved == {"kv_append": 2 * row}  # the new row, and the old one to the spare
    assert allocations.held_bytes() == 0
    rings = {id(array) for ring in cache._rings.values() for array in ring.arrays}
    assert all(id(owner(part)) in rings for pair in views for part in pair)


@pytest.mark.parametrize("window", [1, 2, 3, 7])
@pytest.mark.parametrize("sinks", [0, 1, 4])
def test_masks_show_a_window_of_keys_and_the_sinks_and_no_more(window, sinks):
    """Every pair of a query and a key, in any order of the keys, against the sentence that defines it."""
    for first, stop in ((0, 6), (5, 9), (8, 9)):
        keys_P = np.random.default_rng(window).permutation(stop)
        queries_T = np.arange(first, stop)
        mask_TP = causal_mask(queries_T, keys_P, dtype="float32", window=window, sinks=sinks)
        for row, query in enumerate(queries_T):
            seen = {int(key) for key in keys_P[mask_TP[row] == 0]}
            last = range(max(query - window + 1, 0), query + 1)
            assert seen == {*last, *(key for key in range(sinks) if key <= query)}


def test_memory_is_that_of_the_ring_and_stays_so():
    cache = ring_of(8, 2)
    rows = 8 + 2 + 1
    assert cache.memory().allocated_bytes == rows * LAYOUT.bytes_per_position
    assert cache.capacity == 10
    for _ in range(5):
        numbered(cache, [1] * 10 + [40])
        memory = cache.memory()
        assert memory.allocated_bytes == rows * LAYOUT.bytes_per_position
        assert memory.useful_bytes == 10 * LAYOUT.bytes_per_position


def test_rows_that_wait_for_the_end_of_their_step_are_counted():
    cache, rows_TKC = ring_of(4), np.zeros((9, 2, 4), np.float32)
    before = cache.memory().allocated_bytes
    cache.append(0, rows_TKC, rows_TKC)
    assert cache.memory().allocated_bytes == before + 2 * rows_TKC.nbytes
    cache.crop_to(0)
    assert cache.memory().allocated_bytes == before


MIXED = dataclasses.replace(LAYOUT, windows=(3, None, 6))


def test_only_layers_with_a_window_have_a_ring():
    cache = ring_of(None, layout=MIXED)
    a_row = LAYOUT.bytes_per_position // 3
    assert cache.memory().allocated_bytes == (3 + 1 + 6 + 1) * a_row
    numbered(cache, [5, 1, 20])
    assert [sorted(stored(cache, layer)) for layer in range(3)] == [
        [23, 24, 25], list(range(26)), list(range(20, 26)),
    ]  # fmt: skip
    assert cache.memory().allocated_bytes == (3 + 1 + 6 + 1 + 64) * a_row
    assert cache.memory().useful_bytes == (3 + 26 + 6) * a_row


def test_growth_of_a_full_layer_is_told_with_the_number_that_the_model_gives_it():
    recorder = OrphanRecorder()
    with recording(recorder):
        recorder.know_weights({"prototype": PROTOTYPE})
        cache = ring_of(None, layout=MIXED)
        rows_TKC = np.zeros((40, 2, 4), np.float32)
        recorder.declare("rows", rows_TKC, None)
        for _ in range(2):
            for layer in range(3):
                cache.append(layer, rows_TKC, rows_TKC)
            cache.commit(40)
    assert ("cache_grown", {"layer": 1, "capacity": 128, "moved_positions": 40}) in recorder.events
    evicted = [facts for kind, facts in recorder.events if kind == "cache_evicted"]
    assert evicted == [
        {"first": 0, "last": 36, "layers": [0]},
        {"first": 0, "last": 33, "layers": [2]},
        {"first": 37, "last": 76, "layers": [0]},
        {"first": 34, "last": 73, "layers": [2]},
    ]


def test_a_crop_is_exact_where_nothing_evicted_is_needed_and_refused_elsewhere():
    cache = ring_of(4, 2)
    numbered(cache, [12])
    with pytest.raises(
        CacheError, match="layer 0 has evicted those before 8, which a window of 4 still needs"
    ):
        cache.crop_to(10)
    assert stored(cache) == [0, 1, 10, 11, 8, 9]
    cache.crop_to(11)  # the token at 11 looks at 8, 9 and 10
    assert sorted(stored(cache)) == [0, 1, 8, 9, 10]
    with pytest.raises(CacheError, match="crop to 11 or more"):
        cache.crop_to(10)
    numbered(cache, [1])
    assert stored(cache) == [0, 1, 10, 11, 8, 9]
    cache.crop_to(2)  # only the sinks are left, and the next token needs no more
    assert stored(cache) == [0, 1]
    numbered(cache, [3, 4])
    assert sorted(stored(cache)) == [0, 1, 5, 6, 7, 8]


def test_a_step_that_was_cut_off_while_it_was_made_part_of_the_rings_leaves_no_wrong_cache():
    pair = Pair(Case(lambda prototype: ring_of(4), reserves=True), PROTOTYPE, np.random.default_rng(1))
    cache, rows_TKC = pair.cache, np.zeros((6, 2, 4), np.float32)
    numbered(cache, [4])
    for layer in range(3):
        cache.append(layer, rows_TKC, rows_TKC)
    pair.allocations.fail_at(3)
    with recording(pair.allocations), pytest.raises(Exception, match="kv_append"):
        cache.commit(6)
    cache.crop_to(4)  # what the engine does after any failure
    for attempt in (lambda: cache.view(0), lambda: cache.append(0, rows_TKC, rows_TKC), cache.fork):
        with pytest.raises(CacheError, match="released"):
            attempt()
    assert cache.memory().allocated_bytes == 0


@pytest.mark.parametrize(
    ("windows", "options", "noted"),
    [
        (None, {}, True),  # 256 of 1,000
        (None, {"window": 999}, True),
        (None, {"window": 1000}, False),
        (None, {"window": 990, "sinks": 10}, False),  # together they cover the context
        (None, {"window": 989, "sinks": 10}, True),
        ((3, None, 6), {}, False),  # as the model was made
        ((3, None, 6), {"window": 6}, True),  # the full layer is cut
        ((3, 6, 6), {"window": 6}, False),
        ((3, 6, 6), {"window": 5}, True),
        ((3, 6, 6), {"sinks": 1}, True),  # the model does not look at sinks
    ],
)
def test_an_approximation_says_so(windows, options, noted):
    layout = dataclasses.replace(LAYOUT, windows=windows)
    plan = plan_cache("sliding", layout, context_length_tokens=1000, **options)
    assert ["approximation" in note for note in plan.notes] == [True] * noted
    assert plan.most_positions is None


def test_a_window_asked_for_never_widens_that_of_the_model():
    cache = ring_of(5, layout=MIXED)
    assert [window.tokens for window in cache.windows if window is not None] == [3, 5, 5]


def test_a_ring_is_no_larger_than_the_context():
    assert ring_of(4096, context=50).capacity == 50
    assert ring_of(4096, 10, context=50).capacity == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window of 0 positions sees nothing"),
        ({"window": -4}, "window of -4"),
        ({"window": 4, "sinks": -1}, "-1 sinks"),
        ({"window": 4, "sinks": 1000}, "1000 sinks leave no window in a context of 1000"),
    ],
)
def test_windows_that_cannot_be_are_refused_before_anything_is_made(options, message):
    for door in (
        lambda: plan_cache("sliding", LAYOUT, context_length_tokens=1000, **options),
        lambda: ring_of(**options),
    ):
        with pytest.raises(CacheError, match=message):
            door()


@pytest.mark.parametrize("windows", [(3,), (3, 0, 3), (1, 2, 3, 4)])
def test_windows_that_do_not_fit_the_layers_are_refused(windows):
    with pytest.raises(CacheError, match="do not fit 3 layers"):
        dataclasses.replace(LAYOUT, windows=windows)


def test_ctrl_c_while_what_was_evicted_is_told_breaks_the_cache_and_stays_ctrl_c(monkeypatch):
    """Rows that were evicted do not come back, so that the step cannot be taken back."""
    cache = ring_of(4)
    numbered(cache, [6])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("haaw.caches.sliding.emit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        numbered(cache, [3])
    cache.crop_to(6)  # as whoever runs a step does, and no other error may come of it
