"""The non-linear part of an MLP."""

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, eps_of
from haaw.ops.op import op


def _swiglu_budget(gate_TF: Array, up_TF: Array) -> Array:
    # The error of exp grows with its argument's rounding, at most |gate| ulp; gate beyond ±88 saturates.
    return (16 + abs(gate_TF)) * eps_of(gate_TF) * abs(gate_TF * up_TF) / (
        1 + namespace(gate_TF).exp(-gate_TF.clip(-80, None))
    ) + float(namespace(gate_TF).finfo(gate_TF.dtype).tiny)


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
    activated_TF = xp.negative(gate_TF)
    xp.clip(activated_TF, None, 80, out=activated_TF)  # exp stays finite in float32; sigmoid(-80) is 2e-35
    xp.exp(activated_TF, out=activated_TF)
    activated_TF += 1
    xp.divide(gate_TF, activated_TF, out=activated_TF)
    activated_TF *= up_TF
    return activated_TF
