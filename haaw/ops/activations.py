"""The non-linear part of an MLP."""

import math

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, eps_of
from haaw.ops.error_function import erfc_positive
from haaw.ops.op import op
from haaw.ops.threads import in_parts

HALF_ROOT = 0.5**0.5
TANH_SLOPE = (2 / math.pi) ** 0.5


def _swiglu_budget(gate_TF: Array, up_TF: Array) -> Array:
    # The error of exp grows with its argument's rounding, at most |gate| ulp. Beyond 88, where exp is cut
    # off, the sigmoid is below the smallest normal number.
    xp = namespace(gate_TF)
    size_TF = abs(gate_TF * up_TF)
    rounding_TF = (16 + abs(gate_TF)) * eps_of(gate_TF) * size_TF / (1 + xp.exp(-gate_TF.clip(-80, None)))
    return rounding_TF + float(xp.finfo(gate_TF.dtype).tiny) * (1 + size_TF)


@op(
    out="activated_TF",
    card=Card(
        meaning="A smooth switch (SiLU) on the gate decides how much of each channel of `up` passes.",
        formula="activated = gate · sigmoid(gate) · up",
        source="Shazeer 2020, arXiv:2002.05202, equation 6",
        operations=lambda n: 5 * n.T * n.F,
        budget=_swiglu_budget,
    ),
)
def swiglu(gate_TF: Array, up_TF: Array) -> Array:
    """SiLU of the gate times the up projection; saturates without overflow."""
    xp = namespace(gate_TF)
    activated_TF = xp.empty(gate_TF.shape, dtype=gate_TF.dtype)

    def some_tokens(gate_TF: Array, up_TF: Array, activated_TF: Array) -> None:
        xp.negative(gate_TF, out=activated_TF)
        xp.minimum(activated_TF, 88, out=activated_TF)  # exp stays finite; 1 / exp(88) is less than `tiny`
        xp.exp(activated_TF, out=activated_TF)
        activated_TF += 1
        xp.divide(gate_TF, activated_TF, out=activated_TF)
        activated_TF *= up_TF

    in_parts(some_tokens, gate_TF, up_TF, activated_TF)
    return activated_TF


def _gelu_budget(x_TF: Array) -> Array:
    # Rounding x/√2 moves erfc by a share of 2u² roundings, and the square in its exponent by u² more;
    # beyond u = 4 the approximation itself errs by less than 1e-20.
    xp = namespace(x_TF)
    size_TF = abs(x_TF)
    u_TF = size_TF * HALF_ROOT
    tail_TF = size_TF * erfc_positive(u_TF) / 2
    rounding_TF = (24 + 4 * xp.minimum(u_TF, 30) ** 2) * tail_TF + 2 * size_TF * (x_TF > 0)
    return eps_of(x_TF) * rounding_TF + 1e-20 * size_TF + float(xp.finfo(x_TF.dtype).tiny)


@op(
    out="activated_TF",
    card=Card(
        meaning="Lets each channel pass by as much of a normal distribution as lies below its value.",
        formula="activated = x · Φ(x) = max(x, 0) − |x| · erfc(|x| / √2) / 2",
        source="Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2; erfc: Cody 1969, doi:10.2307/2004390",
        operations=lambda n: 60 * n.T * n.F,
        budget=_gelu_budget,
    ),
)
def gelu(x_TF: Array) -> Array:
    """GELU, exact: written with erfc, so that the small values left of zero do not cancel."""
    xp = namespace(x_TF)
    activated_TF = xp.maximum(x_TF, 0)

    def some_tokens(x_TF: Array, activated_TF: Array) -> None:
        size_TF = abs(x_TF)
        tail_TF = erfc_positive(size_TF * HALF_ROOT)
        tail_TF *= size_TF
        tail_TF *= 0.5
        activated_TF -= tail_TF

    in_parts(some_tokens, x_TF, activated_TF)
    return activated_TF


def _gelu_tanh_budget(x_TF: Array) -> Array:
    # 1 + tanh cancels left of zero, which leaves an error in proportion to |x| and not to the result.
    return 8 * eps_of(x_TF) * abs(x_TF) + float(namespace(x_TF).finfo(x_TF.dtype).tiny)


@op(
    out="activated_TF",
    card=Card(
        meaning="GELU as GPT-2 was trained with: the normal distribution is replaced by a tanh close to it.",
        formula="activated = x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))",
        source="Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2",
        operations=lambda n: 9 * n.T * n.F,
        budget=_gelu_tanh_budget,
    ),
)
def gelu_tanh(x_TF: Array) -> Array:
    """GELU in its tanh form; saturates without overflow."""
    xp = namespace(x_TF)
    activated_TF = xp.empty(x_TF.shape, dtype=x_TF.dtype)

    def some_tokens(x_TF: Array, activated_TF: Array) -> None:
        inner_TF = xp.clip(x_TF, -100, 100)  # tanh is ±1 long before; x³ would overflow
        xp.multiply(inner_TF, inner_TF, out=activated_TF)
        activated_TF *= 0.044715
        activated_TF += 1
        activated_TF *= inner_TF
        activated_TF *= TANH_SLOPE
        xp.tanh(activated_TF, out=activated_TF)
        activated_TF += 1
        activated_TF *= 0.5
        activated_TF *= x_TF

    in_parts(some_tokens, x_TF, activated_TF)
    return activated_TF
