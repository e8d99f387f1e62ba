"""The profile, the overhead and the export, on a tiny model."""

import itertools

import numpy as np
import pytest
from support.tiny_models import tiny_config, tiny_llama, tiny_tensors

import haaw.models.llama
from benchmarks.export_weights import tensors
from benchmarks.overhead import summary, without_decorator
from benchmarks.profiling import PRODUCTS, Profile, Stopwatch, bare, profile
from benchmarks.steps import Steps
from haaw.ops.recorder import recording


@pytest.fixture
def steps(seed: int) -> Steps:
    steps = Steps(tiny_llama(seed), range(20))
    steps.prefill(10)
    return steps


def ticking():
    """A clock that goes on by one second each time someone looks."""
    return map(float, itertools.count()).__next__


def test_each_operation_is_timed_once(steps: Steps):
    """Two looks at the clock are one tick apart, so seconds are calls: 4 products a layer and one at the end."""
    watch = Stopwatch(ticking())
    with recording(watch):
        steps.decode()
    assert watch.seconds == watch.calls
    products = sum(calls for name, calls in watch.calls.items() if name.startswith("linear"))
    assert products == 4 * tiny_config().layers + 1


def test_a_decode_step_leaves_the_cache_as_long_as_it_was(steps: Steps):
    for _ in range(3):
        steps.decode()
    assert steps._cache is not None
    assert steps._cache.length == 10


def test_bare_products_are_those_of_the_operations(steps: Steps):
    keeper = Stopwatch(ticking())
    keeper.products = []
    with recording(keeper):
        steps.prefill(10)
    assert {op.name for op, _ in keeper.products} == set(PRODUCTS)
    for op, args in keeper.products:
        left, right = bare(op, args)
        if op.name == "attention_scores":
            args, left = (*args[:2], None), left * 0.5
        result = op.plain(*args, **({"scale": 0.5} if op.name == "attention_scores" else {}))
        np.testing.assert_allclose((left @ right).ravel(), result.ravel(), rtol=1e-4, atol=1e-5)


def test_a_profile_adds_up(steps: Steps):
    found = profile("decode", steps.decode, 3, ticking())
    assert isinstance(found, Profile)
    assert found.rest_ms == pytest.approx(found.whole_ms - sum(found.operations_ms.values()))


def test_without_the_decorator_no_operation_is_seen_and_afterwards_all_are(steps: Steps):
    watch = Stopwatch(ticking())
    linear = haaw.models.llama.linear
    with recording(watch), without_decorator():
        steps.decode()
    assert watch.calls == {}
    assert haaw.models.llama.linear is linear
    with recording(watch):
        steps.decode()
    assert watch.calls["rms_norm"] == 2 * tiny_config().layers + 1


def test_the_decorator_comes_back_after_an_error():
    linear = haaw.models.llama.linear
    with pytest.raises(ZeroDivisionError), without_decorator():
        (haaw.models.llama.linear is not linear) / 0
    assert haaw.models.llama.linear is linear


def test_the_cost_is_given_a_step_and_an_operation():
    """Differences of 0.1, 0.2 and 0.3 ms: 200 µs of 10 ms is 2 %; 100 ns · 50 calls = 5 µs, 0.05 %."""
    figures = summary([10.1, 10.2, 10.3], [10.0] * 3, 50, {"plain call": 50.0, "call of an operation": 150.0})
    assert figures["by pairs, % of a step"] == pytest.approx(2)
    assert figures["by pairs, µs an operation"] == pytest.approx(4)
    assert figures["by calls, % of a step"] == pytest.approx(0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_exported_tensors_are_those_that_the_model_was_built_from(seed: int, tied: bool):
    written = tiny_tensors(seed, tiny_config(tied=tied))
    exported = tensors(tiny_llama(seed, tied=tied))
    assert exported.keys() == written.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(exported[name], array)
