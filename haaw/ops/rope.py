"""Rotary position embedding, in the half-split layout: channel i turns together with channel i + C/2.

The rounding follows the reference implementations step by step: exact angles in float64 would
move the logits by 3e-4 at position 4,096.
"""

import math
from dataclasses import dataclass

import numpy as np

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, eps_of
from haaw.ops.op import op


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths turn `factor` times slower, short ones are kept, those between are blended."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context_tokens: int


def rope_frequencies(head_dim: int, base: float, scaling: Llama3Scaling | None = None) -> np.ndarray:
    """Radians per position of each channel pair, float32, (head_dim / 2,). Made once, at loading.

    frequency[i] = 1 / base**(2i / head_dim): exponent in float32, power in float64 rounded to
    float32, reciprocal in float32. Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2; the scaling is
    the one published with Llama 3.1.
    """
    exponent_I = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    power_I = np.power(float(base), exponent_I.astype(np.float64)).astype(np.float32)
    frequency_I = np.float32(1) / power_I
    return frequency_I if scaling is None else _scaled(frequency_I, scaling)


def _scaled(frequency_I: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    wavelength_I = np.float32(2 * math.pi) / frequency_I
    longest = scaling.original_context_tokens / scaling.low_frequency_factor
    shortest = scaling.original_context_tokens / scaling.high_frequency_factor
    slowed_I = np.where(wavelength_I > longest, frequency_I / np.float32(scaling.factor), frequency_I)
    low, high = np.float32(scaling.low_frequency_factor), np.float32(scaling.high_frequency_factor)
    blend_I = (np.float32(scaling.original_context_tokens) / wavelength_I - low) / (high - low)
    blended_I = (1 - blend_I) * slowed_I / np.float32(scaling.factor) + blend_I * slowed_I
    between_I = (wavelength_I <= longest) & (wavelength_I >= shortest)
    return np.where(between_I, blended_I, slowed_I).astype(np.float32)


@op(
    out=("cosine_TI", "sine_TI"),
    card=Card(
        meaning="How far each channel pair is turned at each token's position.",
        formula="angle = position · frequency; cosine = cos(angle), sine = sin(angle)",
        source="Su et al. 2021, arXiv:2104.09864, section 3.2.2",
        operations=lambda n: 3 * n.T * n.I,
        budget=lambda positions_T, frequency_I, *, dtype: np.full(
            (len(positions_T), len(frequency_I)), 4 * float(np.finfo(dtype).eps)
        ),
    ),
)
def rope_angles(positions_T: Array, frequency_I: Array, *, dtype: str) -> tuple[Array, Array]:
    """Cosine and sine of position times frequency, the product rounded to float32, in `dtype`."""
    xp = namespace(frequency_I)
    angle_TI = (positions_T.astype(frequency_I.dtype)[:, None] * frequency_I).astype(dtype, copy=False)
    return xp.cos(angle_TI), xp.sin(angle_TI)


def _rope_budget(x_THC: Array, cosine_TI: Array, sine_TI: Array) -> Array:
    xp = namespace(x_THC)
    half = cosine_TI.shape[-1]
    size = abs(x_THC[..., :half]) + abs(x_THC[..., half : 2 * half])
    still = xp.zeros_like(x_THC[..., 2 * half :])
    return 2 * eps_of(x_THC) * xp.concatenate([size, size, still], axis=-1)


@op(
    out="rotated_THC",
    card=Card(
        meaning="Turns each channel pair of each head by its token's angle, so that products of queries and "
        "keys depend on the distance between them.",
        formula="rotated[i] = x[i]·cos − x[i+C/2]·sin; rotated[i+C/2] = x[i+C/2]·cos + x[i]·sin",
        source="Su et al. 2021, arXiv:2104.09864, equation 34, half-split layout",
        operations=lambda n: 3 * n.T * n.H * n.C,
        budget=_rope_budget,
    ),
)
def rope(x_THC: Array, cosine_TI: Array, sine_TI: Array) -> Array:
    """Rotates the first 2·I channels of every head; channels beyond them stay as they are."""
    xp = namespace(x_THC)
    half = cosine_TI.shape[-1]
    cosine_T1I, sine_T1I = cosine_TI[:, None, :], sine_TI[:, None, :]
    first_THI, second_THI = x_THC[..., :half], x_THC[..., half : 2 * half]
    rotated_THC = xp.empty(x_THC.shape, dtype=x_THC.dtype)
    xp.multiply(first_THI, cosine_T1I, out=rotated_THC[..., :half])
    rotated_THC[..., :half] -= second_THI * sine_T1I
    xp.multiply(second_THI, cosine_T1I, out=rotated_THC[..., half : 2 * half])
    rotated_THC[..., half : 2 * half] += first_THI * sine_T1I
    if 2 * half < x_THC.shape[-1]:
        rotated_THC[..., 2 * half :] = x_THC[..., 2 * half :]
    return rotated_THC
