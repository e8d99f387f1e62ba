"""What every kind of cache must do, held against plain Python lists of rows. New kinds join `KINDS`.

FAULTS: S71 (order in a ring), S72 (two ways to fill), S74 (lengths and dtypes), S76 (allocated is not used).
"""

from contextlib import suppress
from typing import Any

import pytest
from support.cache_pairs import LAYOUT, LIBRARIES, Case, Pair, PlantedError
from support.orphans import OrphanRecorder

from haaw.arrays import namespace, owner
from haaw.caches.kinds import make_cache
from haaw.caches.page_pool import PagePool
from haaw.caches.paged import PagedCache
from haaw.caches.protocol import CacheError, CacheLayout, Window
from haaw.ops.recorder import recording

CONTEXT = 1000


def case(
    kind: str, *, layout: CacheLayout = LAYOUT, expect: dict[str, Any] | None = None, **options: Any
) -> Case:
    """A kind by name, with its options, and what else may be expected of it."""
    return Case(
        lambda prototype: make_cache(kind, layout, prototype, context_length_tokens=CONTEXT, **options),
        layout,
        **(expect or {}),
    )


def sliding(window: int, sinks: int = 0) -> Case:
    windows = [Window(window, sinks)] * LAYOUT.layers
    return case("sliding", window=window, sinks=sinks, expect={"reserves": True, "windows": windows})


def quantised(bits: int, group: int, residual: int, atol: float) -> Case:
    """Rows are normal: a tile of two to four of them spans less than 11, so half a step is 11 / 2 / (2^bits − 1)."""

    def useful(cache: Any) -> int:
        elements = 2 * LAYOUT.layers * LAYOUT.kv_heads * LAYOUT.head_dim
        return cache.quantised * elements * bits // 8 + (cache.length - cache.quantised) * elements * 4

    expect = {"atol": atol, "useful_of": useful, "refuses": "inside a group", "keeps_memory": True}
    return case("quantised", bits=bits, group=group, residual=residual, expect=expect)


PAGED: dict[str, Any] = {
    "keeps_memory": False,
    "allocated": lambda cache: len(cache.table) * cache.pool.block_bytes,  # the buffers are the pool's
}


def scattered(prototype: Any) -> PagedCache:
    """On a pool with every other block taken, so that no two blocks of a table lie side by side."""
    pool = PagePool(LAYOUT, prototype, blocks=1200, block_size=2)
    pool.drop(pool.take(1200, behind=None, room=1200)[::2])
    return PagedCache(LAYOUT, prototype, pool=pool)


MIXED = CacheLayout(layers=3, kv_heads=2, head_dim=4, dtype="float32", windows=(3, None, 6))
KINDS: dict[str, Case] = {
    "dynamic": case("dynamic"),
    "dynamic from one position": case("dynamic", first_capacity=1),
    "dynamic from three positions": case("dynamic", first_capacity=3),
    "dynamic, of a model with windows": case("dynamic", layout=MIXED),
    "quantised, but nothing old enough": quantised(8, 32, 1000, 0.0),
    "quantised to 8 bits": quantised(8, 4, 4, 11 / 2 / 255),
    "quantised to 8 bits in groups of one": quantised(8, 1, 1, 11 / 2 / 255),
    "quantised to 8 bits, an odd residual": quantised(8, 3, 7, 11 / 2 / 255),
    "quantised to 4 bits": quantised(4, 2, 5, 11 / 2 / 15),
    "offloaded": case("offloaded"),
    "offloaded, from one position": case("offloaded", first_capacity=1),
    "paged": case("paged", expect=PAGED),
    "paged in blocks of one": case("paged", block_size=1, expect=PAGED),
    "paged in blocks of three": case("paged", block_size=3, expect=PAGED),
    "paged and scattered": Case(scattered, **PAGED),
    "concatenated": case("concatenated", expect={"keeps_memory": False}),
    "static": case("static", capacity=400, expect={"reserves": True, "most": 400}),
    "sliding over all": sliding(999),
    "sliding over 64": sliding(64),
    "sliding over 5": sliding(5),
    "sliding over 4 and 2 sinks": sliding(4, 2),
    "sliding over 3 and 7 sinks": sliding(3, 7),
    "sliding over one": sliding(1),
    "sliding over one and a sink": sliding(1, 1),
    "sliding beside full layers": case(
        "sliding", layout=MIXED, expect={"reserves": True, "windows": [Window(3), None, Window(6)]}
    ),
}


def buffers_of(cache: Any, layers: int) -> list[Any]:
    return [owner(view) for layer in range(layers) for view in cache.view(layer)]


@pytest.fixture(params=KINDS)
def chosen(request) -> Case:
    return KINDS[request.param]


@pytest.fixture(params=LIBRARIES)
def pair(request, chosen, rng) -> Pair:
    return Pair(chosen, LIBRARIES[request.param](), rng)


def test_bytes_of_a_position_are_those_of_the_reference_arithmetic():
    # 2 × 32 layers × 8 key/value heads × 128 channels × 2 bytes = 131,072; 8,192 positions are 1 GiB
    layout = CacheLayout(layers=32, kv_heads=8, head_dim=128, dtype="float16")
    assert layout.bytes_per_position == 131_072
    assert layout.bytes_per_position * 8_192 == 2**30


def test_an_empty_cache_holds_nothing(pair):
    assert pair.cache.length == 0
    pair.check_memory()
    memory = pair.cache.memory()
    assert (memory.useful_bytes, memory.shared_bytes) == (0, 0)
    if not pair.case.reserves:
        assert (pair.cache.capacity, memory.allocated_bytes) == (0, 0)
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
    pair.check_layer(0)
    pair.commit(4)
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
    pair.crop_to(2)
    pair.check()
    pair.step(3)
    pair.check()


@pytest.mark.parametrize("length", [0, 1, 5, 6])
def test_a_cropped_cache_goes_on_as_if_the_rest_had_never_been(pair, length):
    pair.step(6)
    allocated = pair.cache.memory().allocated_bytes
    pair.crop_to(length)
    pair.check()
    if pair.case.keeps_memory:
        assert pair.cache.memory().allocated_bytes == allocated
    for tokens in (2, 1, 7):
        pair.step(tokens)
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
    pair.crop_to(3)
    pair.check()
    pair.step(1)
    pair.check()


def test_a_fork_and_its_origin_go_their_own_ways(pair):
    pair.step(5)
    pair.append(0, 1)  # not committed, so not part of the fork
    twin = pair.fork()
    twin.check()
    pair.crop_to(pair.cache.length)
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
    pair.step(3)
    pair.check()
    assert twin.cache.capacity == pair.cache.capacity


def test_a_released_cache_gives_its_memory_back_and_is_of_no_more_use(pair):
    pair.step(5)
    pair.cache.release()
    assert pair.cache.memory().allocated_bytes == 0
    assert pair.case.allocated is not None or pair.allocations.held_bytes() == 0
    assert (pair.cache.length, pair.cache.capacity) == (0, 0)
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
                length = chosen.reference.length - int(min(rng.integers(1, 30) - 15, chosen.reference.length))
                chosen.crop_to(min(length, chosen.reference.length))
            case _:
                chosen.step(int(rng.integers(1, 9)))
        for each in others:
            each.check()


def test_every_write_of_a_cache_is_an_operation(pair):
    recorder, layers = OrphanRecorder(), pair.case.layout.layers
    with recording(recorder):
        recorder.know_weights({"prototype": pair.prototype})
        cache = pair.case.make(pair.prototype)
        for tokens in (3, 1, 70, 1):
            new = [namespace(pair.prototype).asarray(pair.rows(tokens)) for _ in range(2 * layers)]
            for number, rows in enumerate(new):
                recorder.declare(f"rows {number}", rows, None)
            for layer in range(layers):
                cache.append(layer, new[2 * layer], new[2 * layer + 1])
                cache.view(layer)
            cache.commit(tokens)
        cache.fork()
        views = buffers_of(cache, layers)
    for buffer in views:
        assert any(buffer is known for known in recorder.buffers)


def attempt(pair: Pair, tokens: int) -> None:
    """A step of the cache alone."""
    xp, new = namespace(pair.prototype), [pair.rows(tokens) for _ in range(2 * pair.case.layout.layers)]
    with recording(pair.allocations):
        for layer in range(pair.case.layout.layers):
            pair.cache.append(layer, *(xp.asarray(rows) for rows in new[2 * layer : 2 * layer + 2]))
            pair.cache.view(layer)


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("steps", [[], [4], [3, 1, 1], [9, 1], [64, 1, 1]])
def test_a_step_that_fails_anywhere_leaves_everything_as_it_was(chosen, rng, steps, tokens):
    pair = Pair(chosen, LIBRARIES["numpy"](), rng)
    for each in steps:
        pair.step(each)
    pair.allocations.fail_at(None)
    attempt(pair, tokens)
    pair.crop_to(pair.reference.length)
    failures = pair.allocations.operations
    for number in range(1, failures):
        pair.allocations.fail_at(number)
        with suppress(PlantedError):
            attempt(pair, tokens)
        pair.allocations.fail_at(None)
        pair.crop_to(pair.reference.length)
        pair.check()
    pair.step(tokens)
    pair.check()


@pytest.mark.parametrize("name", [name for name, each in KINDS.items() if each.most is not None])
@pytest.mark.parametrize(("first", "tokens"), [(400, 1), (399, 2), (1, 400), (0, 401)])
def test_more_than_fits_is_refused_by_name_and_changes_nothing(name, rng, first, tokens):
    chosen = KINDS[name]
    pair = Pair(chosen, LIBRARIES["numpy"](), rng)
    first, tokens = first + chosen.most - 400, tokens if first else tokens + chosen.most - 400
    if first:
        pair.step(first)
    for layer in range(pair.case.layout.layers):
        with pytest.raises(CacheError, match=f"room for {chosen.most}"):
            pair.append(layer, tokens)
    pair.check()
    pair.crop_to(first)
    pair.check()
    if first < chosen.most:
        pair.step(chosen.most - first)
    pair.check()


def test_the_layers_bytes_add_up_to_those_of_the_whole(pair):
    pair.step(7)
    pair.step(1)
    pair.step(1)
    whole = pair.cache.memory()
    layers = [pair.cache.memory(layer) for layer in range(pair.cache.layout.layers)]
    assert sum(each.useful_bytes for each in layers) == whole.useful_bytes
    # What serves all layers at once is in no single one: a block table, the working buffers of an offloaded cache.
    resident = getattr(pair.cache, "resident_bytes", 0)
    assert sum(each.allocated_bytes for each in layers) == whole.allocated_bytes - resident
    if pair.cache.kind != "paged":
        assert sum(each.metadata_bytes for each in layers) == whole.metadata_bytes
    assert 0 <= whole.waste_bytes <= whole.allocated_bytes
    assert whole.utilisation == whole.useful_bytes / whole.allocated_bytes


def test_bytes_of_a_layer_that_is_not_there_are_refused_by_name(pair):
    for layer in (-1, pair.cache.layout.layers):
        with pytest.raises(CacheError, match=f"no layer {layer}"):
            pair.cache.memory(layer)
