"""Kinds of fault that other engines had in these operations; the rule for each, and where it bites."""

import math

import ml_dtypes
import numpy as np
import pytest
from support.tiny_models import tiny_config, tiny_llama

from haaw.arrays import to_host
from haaw.caches.dynamic import DynamicCache
from haaw.generation.engine import advance
from haaw.models.weights import unpermute_rope_rows
from haaw.ops.activations import gelu, gelu_tanh, swiglu
from haaw.ops.attention import attention_mix, attention_scores, causal_mask, merge_heads, softmax
from haaw.ops.norms import layer_norm, rms_norm
from haaw.ops.rope import Llama3Scaling, rope, rope_angles, rope_frequencies

HALF = [np.float16, ml_dtypes.bfloat16]


# RoPE.


def interleaved_reference(x_THC: np.ndarray, frequency_I: np.ndarray, positions: list[int]) -> np.ndarray:
    """Su et al., equation 34, in float64: channels 2i and 2i + 1 turn together. One pair at a time."""
    rotated = x_THC.astype(np.float64).copy()
    for row, position in enumerate(positions):
        for i, frequency in enumerate(frequency_I):
            c, s = math.cos(position * float(frequency)), math.sin(position * float(frequency))
            first, second = x_THC[row, :, 2 * i].astype(float), x_THC[row, :, 2 * i + 1].astype(float)
            rotated[row, :, 2 * i] = first * c - second * s
            rotated[row, :, 2 * i + 1] = first * s + second * c
    return rotated


@pytest.mark.parametrize("head_dim", [2, 4, 6, 64])
def test_interleaved_weights_brought_to_half_split_give_the_same_attention_scores(head_dim, rng):
    """Weights converted for one rotary layout were run with the other: same shapes, wrong answers."""
    heads, width, positions = 3, 10, [0, 1, 7, 500]
    query_rows, key_rows = (rng.normal(size=(heads * head_dim, width)).astype(np.float32) for _ in range(2))
    x_TD = rng.normal(size=(len(positions), width)).astype(np.float32)
    frequency_I = rope_frequencies(head_dim, 10_000.0)
    wanted = [
        interleaved_reference((x_TD @ rows.T).reshape(-1, heads, head_dim), frequency_I, positions)
        for rows in (query_rows, key_rows)
    ]
    wanted_HTS = np.einsum("thc,shc->hts", *wanted)
    cosine_TR, sine_TR = rope_angles(np.array(positions), frequency_I, dtype="float32")

    def scores(convert: bool) -> np.ndarray:
        turned = []
        for rows in (query_rows, key_rows):
            part = rows.copy()
            if convert:
                unpermute_rope_rows(part, heads)
            turned.append(rope((x_TD @ part.T).reshape(-1, heads, head_dim), cosine_TR, sine_TR))
        return attention_scores(turned[0], turned[1].transpose(1, 0, 2), None, scale=1.0)

    np.testing.assert_allclose(scores(True), wanted_HTS, atol=2e-3, rtol=1e-4)
    if head_dim > 2:  # with one pair the two layouts are the same
        assert abs(scores(False) - wanted_HTS).max() > 0.1


def test_undoing_the_permutation_of_a_converter_gives_the_checkpoint_back(rng):
    """The converter's own rule: (heads, 2, half, width) becomes (heads, half, 2, width)."""
    heads, half, width = 3, 4, 5
    checkpoint = rng.normal(size=(heads * 2 * half, width)).astype(np.float32)
    converted = checkpoint.reshape(heads, 2, half, width).swapaxes(1, 2).reshape(checkpoint.shape).copy()
    unpermute_rope_rows(converted, heads)
    np.testing.assert_array_equal(converted, checkpoint)


def test_rope_turns_pairs_that_lie_half_a_head_apart():
    # q = [1, 2, 3, 4], position 1, frequencies 1 and 0.01: pairs (1, 3) and (2, 4)
    frequency_I = rope_frequencies(4, 10_000.0)
    cosine_TR, sine_TR = rope_angles(np.array([1]), frequency_I, dtype="float32")
    rotated = rope(np.array([[[1, 2, 3, 4]]], np.float32), cosine_TR, sine_TR)[0, 0]
    c, s, d, t = math.cos(1), math.sin(1), math.cos(0.01), math.sin(0.01)
    np.testing.assert_allclose(rotated, [c - 3 * s, 2 * d - 4 * t, 3 * c + s, 4 * d + 2 * t], rtol=1e-6)


def test_only_the_rotary_fraction_of_a_head_changes(rng):
    """The fraction was ignored on one path. Head of 16 channels, a quarter of them rotary."""
    x_THC = rng.normal(size=(3, 2, 16)).astype(np.float32)
    cosine_TR, sine_TR = rope_angles(np.array([1, 2, 3]), rope_frequencies(4, 10_000.0), dtype="float32")
    rotated = rope(x_THC, cosine_TR, sine_TR)
    np.testing.assert_array_equal(rotated[..., 4:], x_THC[..., 4:])
    np.testing.assert_array_equal(
        rotated[..., :4], rope(np.ascontiguousarray(x_THC[..., :4]), cosine_TR, sine_TR)
    )
    assert (rotated[..., :4] != x_THC[..., :4]).all()


def test_angles_follow_the_rounding_of_the_reference_implementations():
    """Angles in float64 throughout differ from what the models were trained with; every step rounds to float32."""
    positions_T, frequency_I = np.array([0, 1, 4096, 131_071]), rope_frequencies(64, 500_000.0)
    cosine_TR, sine_TR = rope_angles(positions_T, frequency_I, dtype="float32")
    for row, position in enumerate(positions_T):
        for i in range(32):
            exponent = np.float32(2 * i) / np.float32(64)
            frequency = np.float32(1) / np.float32(500_000.0 ** float(exponent))
            angle = float(np.float32(position) * frequency)
            assert frequency_I[i] == frequency
            for column, sign in ((i, -1), (i + 32, 1)):
                assert abs(cosine_TR[row, column] - math.cos(angle)) <= 2**-23
                assert abs(sine_TR[row, column] - sign * math.sin(angle)) <= 2**-23


def test_three_band_scaling_keeps_blends_and_slows_the_right_pairs():
    """Scaling was parsed and never used: short prompts looked right.

    Wavelength 2π·5e5^(i/32) is below 8192/4 up to i = 14 and above 8192 from i = 18 on.
    """
    plain_I = rope_frequencies(64, 5e5)
    scaled_I = rope_frequencies(64, 5e5, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    np.testing.assert_array_equal(scaled_I[:15], plain_I[:15])
    np.testing.assert_array_equal(scaled_I[18:], plain_I[18:] / np.float32(32))
    for i in range(15, 18):
        smooth = (8192 * float(plain_I[i]) / (2 * math.pi) - 1) / (4 - 1)
        wanted = (1 - smooth) * float(plain_I[i]) / 32 + smooth * float(plain_I[i])
        assert scaled_I[i] == pytest.approx(wanted, rel=1e-6)


def test_a_head_dim_of_its_own_is_used_throughout():
    """hidden 12, heads 4, head_dim 8: the quotient 3 must appear nowhere."""
    model = tiny_llama(1, width=12, query_heads=4, kv_heads=2, head_dim=8)
    layer = model.weights.layers[0]
    assert layer.query_key_value_ZD.shape == (32 + 16 + 16, 12)
    assert layer.output_DE.shape == (12, 32)
    assert model.weights.rope_frequency_I.shape == (4,)
    assert model.cache_layout.head_dim == 8
    assert tiny_config(head_dim=8).head_dim == 8


# Attention.


@pytest.mark.parametrize("group", [1, 2, 3])
def test_key_value_heads_are_repeated_and_not_tiled(group):
    """Query heads 0 and 1 read key/value head 0 of two, not heads 0 and 1 in turn."""
    values_KSC = np.stack([np.full((5, 3), 10, np.float32), np.full((5, 3), 20, np.float32)])
    weights_HTS = np.full((2 * group, 4, 5), 0.2, np.float32)
    mixed_HTC = attention_mix(weights_HTS, values_KSC)
    np.testing.assert_allclose(mixed_HTC[:, 0, 0], [10] * group + [20] * group, rtol=1e-6)
    query_THC = np.ones((4, 2 * group, 3), np.float32)
    scores_HTS = attention_scores(query_THC, values_KSC, None, scale=0.5)
    np.testing.assert_allclose(scores_HTS[:, 0, 0], [15] * group + [30] * group, rtol=1e-6)


def mask(queries: range, keys: int, dtype: str = "float32", window: int | None = None) -> np.ndarray:
    return causal_mask(np.array(queries), np.arange(keys), dtype=dtype, window=window)


def seen_in(mask_P: np.ndarray) -> list[int]:
    assert set(mask_P) <= {0, -np.inf}
    return np.flatnonzero(mask_P == 0).tolist()


def hidden(*rows: list[bool]) -> np.ndarray:
    """A mask from what may be seen."""
    return np.where(np.array(rows), np.float32(0), np.float32(-np.inf))


def test_attention_equals_a_loop_over_heads_tokens_and_positions(rng):
    tokens, heads, kv_heads, positions, channels = 3, 4, 2, 5, 6
    query_THC = rng.normal(size=(tokens, heads, channels))
    keys_KSC, values_KSC = rng.normal(size=(2, kv_heads, positions, channels))
    mask_TP = mask(range(2, 5), positions, "float64")
    merged_TE = merge_heads(
        attention_mix(softmax(attention_scores(query_THC, keys_KSC, mask_TP, scale=0.3)), values_KSC)
    )
    for t in range(tokens):
        for h in range(heads):
            seen = range(2 + t + 1)
            scores = [0.3 * float(query_THC[t, h] @ keys_KSC[h // 2, s]) for s in seen]
            shares = [math.exp(score) for score in scores]
            wanted = sum(share * values_KSC[h // 2, s] for share, s in zip(shares, seen, strict=True)) / sum(
                shares
            )
            np.testing.assert_allclose(merged_TE[t, h * channels : (h + 1) * channels], wanted, rtol=1e-10)


def test_a_window_of_four_covers_four_keys_with_its_own():
    """Query 10 of 12 with a window of 4 sees the keys 7, 8, 9 and 10."""
    assert seen_in(mask(range(10, 11), 12, window=4)[0]) == [7, 8, 9, 10]


def test_masks_equal_brute_force_for_all_sizes_up_to_twelve():
    for keys in range(1, 13):
        for queries in range(1, keys + 1):
            for window in (None, *range(1, 13)):
                mask_TP = mask(range(keys - queries, keys), keys, window=window)
                for row in range(queries):
                    position = keys - queries + row
                    seen = [
                        j for j in range(keys) if j <= position and (window is None or j > position - window)
                    ]
                    assert seen_in(mask_TP[row]) == seen
                    assert len(seen) == min(position + 1, window or keys)


def test_a_row_with_nothing_to_see_becomes_zeros_and_harms_no_other(rng):
    """A fully masked row became NaN and spread."""
    query_THC = rng.normal(size=(3, 4, 6)).astype(np.float32)
    keys_KSC, values_KSC = rng.normal(size=(2, 2, 5, 6)).astype(np.float32)
    rows = [[False] * 5, [True] * 5, [True, True, False, False, False]]
    weights_HTS = softmax(attention_scores(query_THC, keys_KSC, hidden(*rows), scale=0.4))
    mixed_HTC = attention_mix(weights_HTS, values_KSC)
    assert not weights_HTS[:, 0].any()
    assert not mixed_HTC[:, 0].any()
    assert np.isfinite(mixed_HTC).all()
    rows[0] = [True] * 5
    others_HTS = softmax(attention_scores(query_THC, keys_KSC, hidden(*rows), scale=0.4))
    np.testing.assert_array_equal(weights_HTS[:, 1:], others_HTS[:, 1:])


def test_a_mask_on_the_last_keys_leaves_the_earlier_ones_in_sight(rng):
    query_THC, keys_KSC = rng.normal(size=(2, 1, 4)), rng.normal(size=(1, 5, 4))
    partly = attention_scores(query_THC, keys_KSC, mask(range(2), 2, "float64"), scale=1.0)
    fully = attention_scores(query_THC, keys_KSC, mask(range(3, 5), 5, "float64"), scale=1.0)
    np.testing.assert_array_equal(partly, fully)
    assert np.isfinite(partly[0]).tolist() == [[True] * 4 + [False], [True] * 5]


def test_masked_keys_do_not_matter_whatever_they_hold(rng):
    query_THC = rng.normal(size=(1, 1, 4)).astype(np.float32)
    keys_KSC = rng.normal(size=(1, 3, 4)).astype(np.float32)
    mask_TP = hidden([True, True, False])
    wanted = softmax(attention_scores(query_THC, keys_KSC, mask_TP, scale=1.0))
    for planted in (1e30, -1e30, 0):
        keys_KSC[0, 2] = planted
        np.testing.assert_array_equal(
            softmax(attention_scores(query_THC, keys_KSC, mask_TP, scale=1.0)), wanted
        )
    assert wanted[0, 0, 2] == 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_softmax_of_extreme_scores_is_finite_and_adds_up(dtype):
    largest = min(0.49 * float(ml_dtypes.finfo(dtype).max), 1e38)  # so that differences do not overflow
    rows = [
        [-20, -largest, -20, -math.inf],
        [largest, largest, 0, -largest],
        [largest, -largest, largest / 2, 0],
        [-largest, -largest, -largest, -math.inf],
        [-math.inf, -math.inf, -math.inf, 1],
    ]
    weights_HTS = softmax(np.array([rows], dtype=dtype))
    assert weights_HTS.dtype == dtype
    wide = weights_HTS.astype(np.float64)
    np.testing.assert_allclose(wide.sum(axis=-1), 1, rtol=1e-2 if dtype in HALF else 1e-6)
    np.testing.assert_allclose(wide[0, 0], [0.5, 0, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(wide[0, 3], [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-2, atol=1e-9)
    np.testing.assert_array_equal(wide[0, 4], [0, 0, 0, 1])


@pytest.mark.parametrize("dtype", HALF)
def test_softmax_adds_up_in_a_wider_type_than_it_stores(dtype):
    """Sums of float16 stop growing at 2048: three thousand equal scores would come out too large."""
    weights_HTS = softmax(np.zeros((1, 1, 3000), dtype))
    np.testing.assert_allclose(weights_HTS.astype(np.float64), 1 / 3000, rtol=5e-3)


# Norms and activations.


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("size", [0.05, 1e-4, 300.0])
def test_norms_of_half_precision_add_up_in_float32(dtype, size, rng):
    """Small values vanish and large ones overflow when they are squared in the storage type."""
    x_TD = (rng.normal(1, 0.1, (2, 3000)) * size).astype(dtype)
    ones_D = np.ones(3000, dtype)
    exact_TD = x_TD.astype(np.float64)
    wanted = exact_TD / np.sqrt((exact_TD**2).mean(-1, keepdims=True) + 1e-12)
    normed = rms_norm(x_TD, ones_D, eps=1e-12)
    assert normed.dtype == dtype
    np.testing.assert_allclose(normed.astype(np.float64), wanted, rtol=1e-2)
    centred = exact_TD - exact_TD.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    normed = layer_norm(x_TD, ones_D, np.zeros(3000, dtype), eps=1e-12)
    assert normed.dtype == dtype
    np.testing.assert_allclose(normed.astype(np.float64), wanted, rtol=1e-2, atol=1e-2)


def test_eps_stands_inside_the_root_and_has_no_default():
    # mean square 4e-4: 1/sqrt(4e-4 + 1e-6) = 49.938, 1/sqrt(4e-4 + 1e-5) = 49.387
    x_TD = np.full((1, 8), 0.02, np.float32)
    ones_D = np.ones(8, np.float32)
    assert rms_norm(x_TD, ones_D, eps=1e-6)[0, 0] / 0.02 == pytest.approx(49.938, abs=1e-3)
    assert rms_norm(x_TD, ones_D, eps=1e-5)[0, 0] / 0.02 == pytest.approx(49.387, abs=1e-3)
    for norm in (rms_norm, layer_norm):
        assert norm.op.plain.__wrapped__.__kwdefaults__ is None


def test_a_vector_of_zeros_stays_zero():
    zeros_TD, ones_D = np.zeros((2, 4), np.float32), np.ones(4, np.float32)
    assert not rms_norm(zeros_TD, ones_D, eps=1e-6).any()
    assert not layer_norm(zeros_TD, ones_D, 0 * ones_D, eps=1e-6).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_saturate_without_overflow(dtype):
    x_TF = np.array([[-1e30, -1e4, -100, -20, 0, 20, 100, 1e4, 1e18]], dtype)
    ones_TF = np.ones_like(x_TF)
    for activated in (swiglu(x_TF, ones_TF), gelu(x_TF), gelu_tanh(x_TF)):
        assert activated.dtype == dtype
        np.testing.assert_allclose(activated, np.maximum(x_TF, 0), atol=1e-4, rtol=1e-6)


def test_activations_equal_their_formulas():
    x = np.linspace(-6, 6, 97)
    up = np.linspace(2, -3, 97)
    logistic = np.array([1 / (1 + math.exp(-value)) for value in x])
    np.testing.assert_allclose(swiglu(x[None], up[None])[0], x * logistic * up, rtol=1e-12, atol=1e-15)
    normal = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x])
    np.testing.assert_allclose(gelu(x[None])[0], x * normal, rtol=1e-9, atol=1e-13)
    inner = [math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)) for value in x]
    np.testing.assert_allclose(gelu_tanh(x[None])[0], x / 2 * (1 + np.array(inner)), rtol=1e-9, atol=1e-13)


def test_a_whole_model_in_float32_stays_near_the_same_model_in_float64():
    logits = []
    for dtype in ("float32", "float64"):
        model = tiny_llama(3, dtype=dtype)
        cache = DynamicCache(model.cache_layout, model.prototype_Z)
        logits.append(to_host(advance(model, cache, list(range(60)), rows="all")))
    assert abs(logits[0] - logits[1]).max() < 1e-4
    assert logits[0].dtype == np.float32
