"""The whole path on a real GPU through CuPy. Where there is none, `test_array_libraries.py` has to do."""

import gc
from typing import Any

import numpy as np
import pytest
from support.gpu import has_gpu, import_cupy
from support.op_examples import EXAMPLES, all_ops, converted
from support.orphans import OrphanRecorder
from support.tiny_models import tiny_language_model, tiny_llama

from haaw.arrays import is_array, namespace, owner, to_host
from haaw.caches.dynamic import DynamicCache
from haaw.generation.engine import advance
from haaw.ops.linear import add, linear
from haaw.ops.recorder import choosing_recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="there is no CuPy or no GPU on this machine"),
]
PROMPT = [5, 9, 2, 60, 33, 33, 1, 17, 42, 8, 0]
OPS = all_ops()


@pytest.fixture(scope="module")
def cupy() -> Any:
    return import_cupy()


def test_its_arrays_are_known_for_what_they_are(cupy):
    whole = cupy.zeros((4, 6), dtype="float32")
    assert is_array(whole)
    assert namespace(whole) is cupy
    assert owner(whole[1:].T[::2]) is whole
    assert isinstance(to_host(whole), np.ndarray)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_operation_agrees_within_twice_its_budget(cupy, name, rng):
    op = OPS[name]
    for _ in range(5):
        args, kwargs = EXAMPLES[name](rng, 1.0)
        there_args, there_kwargs = converted((args, kwargs), cupy.asarray)
        wanted, found = op.plain(*args, **kwargs), op.plain(*there_args, **there_kwargs)
        if op.writes:
            wanted, found = args[0], there_args[0]
        budget = op.card.budget(*args, **kwargs) if op.card.budget else 0
        several = isinstance(wanted, tuple)
        budgets = budget if isinstance(budget, tuple) else (budget,) * (len(wanted) if several else 1)
        for one, other, allowed in zip(
            wanted if several else (wanted,), found if several else (found,), budgets, strict=True
        ):
            assert namespace(other) is cupy
            there = to_host(other)
            assert there.dtype == one.dtype
            with np.errstate(invalid="ignore"):
                error = np.where(one == there, 0, abs(one.astype(np.float64) - there))
            assert (error <= 2 * np.asarray(allowed, np.float64)).all(), f"{name}: {error.max()}"


@pytest.mark.parametrize("heads", ["together", "separate"])
def test_the_whole_path_agrees_with_numpy(cupy, heads):
    here, there = tiny_language_model(4), tiny_language_model(4, xp=cupy)
    for settings in ({}, {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "seed": 3}):
        one = here.generate(PROMPT, max_tokens=40, heads=heads, **settings)
        other = there.generate(PROMPT, max_tokens=40, heads=heads, **settings)
        assert one.token_ids == other.token_ids
    logits = []
    for model in (here.transformer, there.transformer):
        cache = DynamicCache(model.cache_layout, model.prototype_I)
        logits.append(to_host(advance(model, cache, PROMPT, heads=heads, rows="all")))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)


def test_a_run_is_accounted_for(cupy):
    recorder = OrphanRecorder()
    with choosing_recorder(recorder):
        tiny_language_model(4, xp=cupy).generate(PROMPT, max_tokens=4)
    recorder.check_weights()
    assert recorder.counts["softmax"] == 2 * 4


def test_host_arrays_and_device_arrays_do_not_mix(cupy):
    here, there = np.ones((2, 3), np.float32), cupy.ones((2, 3), dtype="float32")
    for attempt in (
        lambda: add(here, there),
        lambda: add(there, here),
        lambda: linear(there, here),
        lambda: np.asarray(there),
    ):
        with pytest.raises(TypeError):
            attempt()


@pytest.mark.parametrize(
    "prompt", [PROMPT, np.array(PROMPT), tuple(map(np.int64, PROMPT))], ids=["list", "array", "scalars"]
)
def test_a_prompt_of_ids_may_come_in_any_form_of_the_host(cupy, prompt):
    model = tiny_language_model(4, xp=cupy)
    assert model.generate(prompt, max_tokens=3).token_ids == model.generate(PROMPT, max_tokens=3).token_ids


def test_memory_of_a_finished_request_and_of_a_dropped_model_is_given_back(cupy):
    """Used and reserved memory are two figures: the pool keeps blocks that nobody uses."""
    pool = cupy.get_default_memory_pool()
    gc.collect()
    before = pool.used_bytes()
    model = tiny_llama(4, xp=cupy)
    loaded = pool.used_bytes()
    cache = DynamicCache(model.cache_layout, model.prototype_I)
    logits_BV = advance(model, cache, PROMPT)
    assert pool.used_bytes() >= loaded + cache.memory().allocated_bytes
    cache.release()
    del logits_BV
    gc.collect()
    assert pool.used_bytes() == loaded
    del model, cache
    gc.collect()
    assert pool.used_bytes() == before
    pool.free_all_blocks()
    assert pool.total_bytes() >= pool.used_bytes()
