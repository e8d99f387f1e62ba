"""GELU in both forms, the error function below it, and LayerNorm: values, budgets, dtypes, extremes, devices."""

import math

import numpy as np
import pytest
from support.fake_array import FakeLibrary

from haaw.ops.activations import gelu, gelu_tanh
from haaw.ops.error_function import erfc_positive
from haaw.ops.norms import layer_norm
from haaw.ops.threads import SLICE_ELEMENTS

SWEEP = np.concatenate(
    [np.linspace(-12, 12, 4001), np.geomspace(1e-30, 30, 500), -np.geomspace(1e-30, 30, 500)]
)


def exact_gelu(x: float) -> float:
    """x · Φ(x) by the C library's erfc in float64."""
    return x * math.erfc(-x / math.sqrt(2)) / 2


def tanh_gelu(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMS = pytest.mark.parametrize(("op", "oracle"), [(gelu, exact_gelu), (gelu_tanh, tanh_gelu)])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def test_erfc_agrees_with_the_c_library_in_float64() -> None:
    x = np.concatenate([np.linspace(0, 4, 20_001), [0.46875, np.nextafter(0.46875, 1)]])
    expected = np.array([math.erfc(v) for v in x])
    assert np.max(abs(erfc_positive(x) / expected - 1)) < 2e-15
    tail = np.linspace(4, 40, 5001)
    expected = np.array([math.erfc(v) for v in tail])
    assert np.all(abs(erfc_positive(tail) - expected) <= 1e-7 * expected + 1e-300)


def test_erf_that_follows_from_it_is_good_to_the_last_bits_of_float64() -> None:
    x = np.linspace(0.5, 8, 5001)
    expected = np.array([math.erf(v) for v in x])
    assert np.max(abs((1 - erfc_positive(x)) / expected - 1)) < 1e-15


@FORMS
@DTYPES
def test_every_value_is_within_its_budget(op, oracle, dtype: str) -> None:
    x_TF = SWEEP.astype(dtype)[None, :]
    expected = np.array([oracle(float(v)) for v in x_TF[0]])
    result_TF = op(x_TF)
    assert result_TF.dtype == dtype
    assert np.all(abs(result_TF[0] - expected) <= op.op.card.budget(x_TF)[0])


@FORMS
def test_the_budget_is_tight_enough_to_notice_the_other_form(op, oracle) -> None:
    x_TF = np.linspace(-3, 3, 61, dtype=np.float32)[None, :]
    other = gelu_tanh if op is gelu else gelu
    assert np.any(abs(other(x_TF) - op(x_TF)) > 100 * op.op.card.budget(x_TF))


def test_the_exact_form_keeps_its_digits_where_one_plus_erf_would_cancel() -> None:
    """At -5, 1 + erf(x/√2) keeps one digit of float32; the value is -1.43e-06 (scipy's norm.cdf says so too)."""
    result = float(gelu(np.array([[-5.0]], np.float32))[0, 0])
    assert result == pytest.approx(exact_gelu(-5.0), rel=1e-5)


@FORMS
@DTYPES
def test_infinite_and_huge_values_saturate_without_a_warning_and_nan_stays(op, oracle, dtype: str) -> None:
    x_TF = np.array([[1e30, -1e30, 3e38, 0.0, np.nan, 1e-38]], dtype)
    result = op(x_TF)[0]
    np.testing.assert_allclose(result[[0, 1, 2, 3]], np.array([1e30, 0, 3e38, 0], dtype), atol=1e-30)
    assert np.isnan(result[4])
    assert result[5] == pytest.approx(5e-39, rel=1e-6, abs=1e-44)  # half of it: the slope at zero is 1/2


@FORMS
def test_arguments_are_left_alone(op, oracle, rng) -> None:
    x_TF = rng.normal(size=(3, 8)).astype(np.float32)
    before = x_TF.copy()
    op(x_TF)
    np.testing.assert_array_equal(x_TF, before)


def test_work_in_slices_gives_each_row_what_it_gets_alone(rng) -> None:
    x_TF = rng.normal(0, 2, (5, SLICE_ELEMENTS // 2 - 1)).astype(
        np.float32
    )  # two rows a slice, one left over
    whole = gelu(x_TF)
    for row in range(5):
        np.testing.assert_array_equal(whole[row], gelu(x_TF[row : row + 1])[0])


def test_layer_norm_of_a_vector_worked_by_hand() -> None:
    # 1 2 3 4: mean 2.5, squares of the differences 2.25 0.25 0.25 2.25, their mean 1.25; with eps 0.19 the root
    # is 1.2. Then -1.5/1.2 = -1.25, -0.5/1.2 = -5/12 and so on; weights 2, biases 1.
    x_TD = np.array([[1.0, 2, 3, 4]])
    result = layer_norm(x_TD, np.full(4, 2.0), np.full(4, 1.0), eps=0.19)
    np.testing.assert_allclose(result, [[-1.5, 1 - 5 / 6, 1 + 5 / 6, 3.5]], rtol=1e-15)


@pytest.mark.parametrize("width", [1, 2, 48, 768, 4099])
@pytest.mark.parametrize("shift", [0.0, 3.0, 300.0])
def test_layer_norm_in_float32_is_within_its_budget_of_float64(width: int, shift: float, rng) -> None:
    x_TD = (rng.normal(size=(7, width)) + shift).astype(np.float32)
    weight_D, bias_D = rng.normal(size=(2, width)).astype(np.float32)
    wide = [array.astype(np.float64) for array in (x_TD, weight_D, bias_D)]
    expected = layer_norm(*wide, eps=1e-5)
    result = layer_norm(x_TD, weight_D, bias_D, eps=1e-5)
    assert result.dtype == np.float32
    assert expected.dtype == np.float64
    assert np.all(abs(result - expected) <= layer_norm.op.card.budget(x_TD, weight_D, bias_D, eps=1e-5))


def test_layer_norm_of_a_constant_vector_is_the_bias() -> None:
    x_TD = np.full((2, 6), 0.1, np.float32)
    bias_D = np.arange(6, dtype=np.float32)
    result = layer_norm(x_TD, np.ones(6, np.float32), bias_D, eps=1e-5)
    np.testing.assert_allclose(result, np.stack([bias_D, bias_D]), atol=1e-4)


def test_half_precision_is_widened_for_the_sums() -> None:
    """300 and more, squared, is beyond float16's 65,504; the result is still that of float64."""
    x_TD = np.array([[-400.0, 0, 400, 800]], np.float16)
    one, zero = np.ones(4, np.float16), np.zeros(4, np.float16)
    result = layer_norm(x_TD, one, zero, eps=1e-5)
    assert result.dtype == np.float16
    # mean 200, mean square of the differences 200,000, root 447.2136: -600/447.2136 and so on
    np.testing.assert_allclose(result, [[-1.3416, -0.4472, 0.4472, 1.3416]], atol=2e-3)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_three_agree_with_pytorch(dtype: str, rng) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x_TD = rng.normal(0, 3, (9, 64)).astype(dtype)
    weight_D, bias_D = rng.normal(size=(2, 64)).astype(dtype)
    x, weight, bias = (torch.from_numpy(array) for array in (x_TD, weight_D, bias_D))
    limit = 3e-6 if dtype == "float32" else 3e-15
    for result, expected in (
        (gelu(x_TD), functional.gelu(x)),
        (gelu_tanh(x_TD), functional.gelu(x, approximate="tanh")),
        (layer_norm(x_TD, weight_D, bias_D, eps=1e-5), functional.layer_norm(x, (64,), weight, bias, 1e-5)),
    ):
        np.testing.assert_allclose(result, expected.numpy(), atol=limit, rtol=limit)


def test_a_device_library_computes_the_same(rng) -> None:
    xp = FakeLibrary()
    x_TD = rng.normal(size=(4, 16)).astype(np.float32)
    weight_D, bias_D = rng.normal(size=(2, 16)).astype(np.float32)
    x, weight, bias = map(xp.asarray, (x_TD, weight_D, bias_D))
    np.testing.assert_array_equal(gelu(x).get(), gelu(x_TD))
    np.testing.assert_array_equal(gelu_tanh(x).get(), gelu_tanh(x_TD))
    normed = layer_norm(x, weight, bias, eps=1e-5).get()
    np.testing.assert_array_equal(normed, layer_norm(x_TD, weight_D, bias_D, eps=1e-5))
