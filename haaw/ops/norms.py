"""Normalisations."""

from haaw.arrays import Array, namespace, working_dtype
from haaw.ops.card import Card, eps_of
from haaw.ops.op import op


def _rms_norm_budget(x_TD: Array, weight_D: Array, *, eps: float) -> Array:
    # Pairwise sums: about log2(D) roundings in the mean, then a root, a division and a product.
    xp = namespace(x_TD)
    width = x_TD.shape[-1]
    size = abs(x_TD * weight_D) / xp.sqrt((x_TD * x_TD).mean(axis=-1, keepdims=True) + eps)
    return (width.bit_length() + 8) * eps_of(x_TD) * size


@op(
    out="normed_TD",
    card=Card(
        meaning="Scales each vector to a root mean square of one, then each channel by its weight.",
        formula="normed = x / sqrt(mean(x²) + eps) · weight",
        source="Zhang and Sennrich 2019, arXiv:1910.07467, equation 4",
        operations=lambda n: 4 * n.T * n.D,
        budget=_rms_norm_budget,
    ),
)
def rms_norm(x_TD: Array, weight_D: Array, *, eps: float) -> Array:
    """Root-mean-square norm over the last axis; `eps` stands inside the root."""
    xp = namespace(x_TD)
    wide_TD = x_TD.astype(working_dtype(x_TD.dtype), copy=False)
    mean_square_T1 = xp.einsum("td,td->t", wide_TD, wide_TD)[:, None] / x_TD.shape[-1]
    normed_TD = wide_TD / xp.sqrt(mean_square_T1 + eps)
    normed_TD *= weight_D
    return normed_TD.astype(x_TD.dtype, copy=False)
