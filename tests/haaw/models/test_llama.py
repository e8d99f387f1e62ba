"""A Llama agrees with itself: cached and uncached, packed and alone, in either form of attention.

The reference is the naive path: no cache, one sequence, float64. FAULTS: S43 (positions of a batch).
"""

import numpy as np
import pytest
from support.steps import all_logits
from support.tiny_models import tiny_llama

from haaw.arrays import to_host
from haaw.caches.dynamic import DynamicCache
from haaw.generation.engine import advance
from haaw.models.pack import pack_tokens

SHAPES = {
    "grouped": {"query_heads": 8, "kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "narrow, untied": {"head_dim": 10, "tied": False},
}
BUDGET = {"float64": 1e-10, "float32": 5e-5}
"""Measured over 360 runs with logits up to 5.5: float32 median 6e-6, worst 2.1e-5; float64 worst 1.5e-14."""


@pytest.fixture
def ids(rng: np.random.Generator) -> list[int]:
    return rng.integers(0, 64, 70).tolist()


@pytest.mark.parametrize("heads", ["together", "separate"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_cached_decoding_equals_no_cache(shape, dtype, heads, ids) -> None:
    model = tiny_llama(1, dtype=dtype, **shape)
    naive = all_logits(tiny_llama(1, dtype="float64", **shape), ids)
    for chunk in (1, 7, 64, None):
        cached = all_logits(model, ids, chunk=chunk, heads=heads)
        assert cached.dtype == dtype
        np.testing.assert_allclose(cached, naive, rtol=0, atol=BUDGET[dtype])
    for length in (1, 2, 33, 70):  # no cache: all ids anew into a fresh one
        last = advance(model, DynamicCache(model.cache_layout, model.prototype_Z), ids[:length], heads=heads)
        np.testing.assert_allclose(to_host(last)[0], naive[length - 1], rtol=0, atol=BUDGET[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("heads", ["together", "separate"])
def test_sequences_in_one_pack_do_not_see_each_other(dtype, heads, rng) -> None:
    """S43: prompts of 3, 7 and 1 ids, then 10 greedy steps, equal the same sequences alone."""
    model = tiny_llama(2, dtype=dtype)
    prompts = [rng.integers(0, 64, count).tolist() for count in (3, 7, 1)]
    caches = [DynamicCache(model.cache_layout, model.prototype_Z) for _ in prompts]
    fed = [list(prompt) for prompt in prompts]
    turns = prompts
    for _ in range(10):
        pack = pack_tokens(list(zip(turns, caches, strict=True)), model.prototype_Z)
        logits_BV = to_host(model.forward(pack, heads=heads))
        pack.commit()
        assert logits_BV.shape == (3, 64)
        for ids, own_V in zip(fed, logits_BV, strict=True):
            np.testing.assert_allclose(own_V, all_logits(model, ids)[-1], rtol=0, atol=BUDGET[dtype])
        turns = [[int(own_V.argmax())] for own_V in logits_BV]
        fed = [ids + turn for ids, turn in zip(fed, turns, strict=True)]
    assert [cache.length for cache in caches] == [len(ids) - 1 for ids in fed]


def test_a_pack_gives_all_rows_when_asked(rng) -> None:
    model = tiny_llama(3, dtype="float64")
    prompts = [rng.integers(0, 64, count).tolist() for count in (5, 1, 9)]
    caches = [DynamicCache(model.cache_layout, model.prototype_Z) for _ in prompts]
    pack = pack_tokens(list(zip(prompts, caches, strict=True)), model.prototype_Z)
    logits_TV = to_host(model.forward(pack, rows="all"))
    alone = np.concatenate([all_logits(model, prompt) for prompt in prompts])
    np.testing.assert_allclose(logits_TV, alone, rtol=0, atol=1e-10)


def test_later_tokens_change_nothing_before_them(ids) -> None:
    model = tiny_llama(4, dtype="float64")
    other = ids[:40] + [(token_id + 1) % 64 for token_id in ids[40:]]
    first, second = all_logits(model, ids), all_logits(model, other)
    np.testing.assert_allclose(first[:40], second[:40], rtol=0, atol=1e-12)
    assert np.abs(first[40] - second[40]).max() > 0.1


def test_a_step_that_fails_leaves_the_cache_as_it_was(ids, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the layers before the failure must not stay behind."""
    model = tiny_llama(5, dtype="float64")
    cache = DynamicCache(model.cache_layout, model.prototype_Z)
    advance(model, cache, ids[:10])

    class Halt(BaseException):
        pass

    import haaw.models.llama as llama

    true, calls = llama.swiglu, []

    def spoilt(gate_TF, up_TF):
        calls.append(1)
        if len(calls) == 2:
            raise Halt
        return true(gate_TF, up_TF)

    with monkeypatch.context() as patch:
        patch.setattr(llama, "swiglu", spoilt)
        with pytest.raises(Halt):
            advance(model, cache, ids[10:20])
    assert cache.length == 10
    logits_BV = advance(model, cache, ids[10:20])
    np.testing.assert_allclose(to_host(logits_BV)[0], all_logits(model, ids[:20])[-1], rtol=0, atol=1e-10)


def test_every_weight_has_a_name_and_none_is_counted_twice() -> None:
    """Reference: parameters counted by hand for width 24, 4 query and 2 key/value heads of 6, MLP 40, 64 ids.

    A layer: norms 2·24; query 24·24; key and value 2·12·24; output 24·24; gate, up and down 3·40·24.
    """
    layer = 2 * 24 + 24 * 24 + 2 * 12 * 24 + 24 * 24 + 3 * 40 * 24
    frequencies = 6 // 2
    tied = 64 * 24 + 2 * layer + 24 + frequencies
    assert tiny_llama(6, tied=True).weights_bytes == 4 * tied
    assert tiny_llama(6, tied=False).weights_bytes == 4 * (tied + 64 * 24)
    assert sum(array.size for array in tiny_llama(6, tied=True).named_weights().values()) == tied
