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
from haaw.ops.threads import in_parts


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
    """The three bands, with the rounding of the reference, which divides by multiplying with a reciprocal."""
    one, context = np.float32(1), scaling.original_context_tokens
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    factor = np.float32(scaling.factor)
    wavelength_I = one / frequency_I * np.float32(2 * math.pi)
    slowed_I = np.where(wavelength_I > context / low, frequency_I / factor, frequency_I)
    blend_I = (one / wavelength_I * np.float32(context) - np.float32(low)) / np.float32(high - low)
    blended_I = (one - blend_I) * slowed_I / factor + blend_I * slowed_I
    between_I = (wavelength_I <= context / low) & (wavelength_I >= context / high)
    return np.where(between_I, blended_I, slowed_I).astype(np.float32)


def _angles_budget(positions_T: Array, frequency_I: Array, *, dtype: str) -> tuple[Array, Array]:
    shape = (len(positions_T), 2 * len(frequency_I))
    bound_TR = namespace(frequency_I).full(shape, 4 * float(np.finfo(dtype).eps), dtype=dtype)
    return bound_TR, bound_TR


@op(
    out=("cosine_TR", "sine_TR"),
    card=Card(
        meaning="How far each channel is turned at each token's position, with the sign of its partner's share.",
        formula="angle = position · frequency; cosine = (cos, cos), sine = (−sin, sin)",
        source="Su et al. 2021, arXiv:2104.09864, section 3.2.2",
        operations=lambda n: 3 * n.T * n.I,
        budget=_angles_budget,
    ),
)
def rope_angles(positions_T: Array, frequency_I: Array, *, dtype: str) -> tuple[Array, Array]:
    """Cosine and signed sine for R = 2·I rotated channels; position times frequency is rounded to float32."""
    xp = namespace(frequency_I)
    angle_TI = (positions_T.astype(frequency_I.dtype)[:, None] * frequency_I).astype(dtype, copy=False)
    cosine_TI, sine_TI = xp.cos(angle_TI), xp.sin(angle_TI)
    return xp.concatenate([cosine_TI, cosine_TI], axis=1), xp.concatenate([-sine_TI, sine_TI], axis=1)


def _rope_budget(x_THC: Array, cosine_TR: Array, sine_TR: Array) -> Array:
    xp = namespace(x_THC)
    half = cosine_TR.shape[-1] // 2
    size = abs(x_THC[..., :half]) + abs(x_THC[..., half : 2 * half])
    still = xp.zeros_like(x_THC[..., 2 * half :])
    return 2 * eps_of(x_THC) * xp.concatenate([size, size, still], axis=-1)


@op(
    out="rotated_THC",
    card=Card(
        meaning="Turns each channel pair of each head by its token's angle, so that products of queries and "
        "keys depend on the distance between them.",
        formula="rotated[i] = x[i]·cos − x[i+R/2]·sin; rotated[i+R/2] = x[i+R/2]·cos + x[i]·sin",
        source="Su et al. 2021, arXiv:2104.09864, equation 34, half-split layout",
        operations=lambda n: 3 * n.T * n.H * n.R,
        budget=_rope_budget,
    ),
)
def rope(x_THC: Array, cosine_TR: Array, sine_TR: Array) -> Array:
    """Rotates the first R channels of every head; channels beyond them stay as they are."""
    xp = namespace(x_THC)
    rotary = cosine_TR.shape[-1]
    x_THR = x_THC[..., :rotary]
    rotated_THR = xp.empty(x_THR.shape, dtype=x_THR.dtype)

    def some_tokens(x_THR: Array, cosine_T1R: Array, sine_T1R: Array, rotated_THR: Array) -> None:
        half = rotary // 2
        xp.multiply(x_THR, cosine_T1R, out=rotated_THR)
        partner_THR = xp.concatenate([x_THR[..., half:], x_THR[..., :half]], axis=-1)
        partner_THR *= sine_T1R
        rotated_THR += partner_THR

    in_parts(some_tokens, x_THR, cosine_TR[:, None], sine_TR[:, None], rotated_THR)
    if rotary == x_THC.shape[-1]:
        return rotated_THR
    return xp.concatenate([rotated_THR, x_THC[..., rotary:]], axis=-1)
