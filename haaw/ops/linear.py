"""Matrix products with weights, and the residual sum."""

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, eps_of, product_error
from haaw.ops.op import op
from haaw.ops.threads import in_parts, is_large


def _product_budget(x_TA: Array, weight_ZA: Array, bias_Z: Array | None = None) -> Array:
    size_TZ = abs(x_TA) @ abs(weight_ZA).T
    if bias_Z is not None:
        size_TZ = size_TZ + abs(bias_Z)
    return product_error(x_TA, x_TA.shape[-1], size_TZ, x_TA @ weight_ZA.T)


@op(
    out="y_TZ",
    card=Card(
        meaning="Every token's vector times one weight matrix: the same product for each token.",
        formula="y = x · weightᵀ (+ bias)",
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.3",
        operations=lambda n: 2 * n.T * n.A * n.Z,
        budget=_product_budget,
    ),
)
def linear(x_TA: Array, weight_ZA: Array, bias_Z: Array | None = None) -> Array:
    """Product with a weight stored as (out, in), plus a bias where there is one."""
    y_TZ = x_TA @ weight_ZA.T
    if bias_Z is not None:
        y_TZ += bias_Z
    return y_TZ


@op(
    out="sum_TD",
    card=Card(
        meaning="The residual stream takes up what a block has to add.",
        formula="sum = x + update",
        source="He et al. 2016, arXiv:1512.03385, equation 1",
        operations=lambda n: n.T * n.D,
        budget=lambda x_TD, update_TD: eps_of(x_TD) * (abs(x_TD) + abs(update_TD)),
    ),
)
def add(x_TD: Array, update_TD: Array) -> Array:
    """Sum of the residual stream and a block's output."""
    if not is_large(x_TD):
        return x_TD + update_TD
    xp = namespace(x_TD)
    sum_TD = xp.empty(x_TD.shape, dtype=x_TD.dtype)
    in_parts(lambda x_TD, update_TD, sum_TD: xp.add(x_TD, update_TD, out=sum_TD), x_TD, update_TD, sum_TD)
    return sum_TD
