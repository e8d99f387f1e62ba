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


def _layer_norm_budget(x_TD: Array, weight_D: Array, bias_D: Array, *, eps: float) -> Array:
    # The mean errs by about log2(D) roundings of mean(|x|), and so does every difference from it: relative to
    # the deviation that is large where the vector lies far from zero.
    xp = namespace(x_TD)
    deviation_T1 = xp.sqrt(x_TD.var(axis=-1, keepdims=True) + eps)
    shift_T1 = abs(x_TD).mean(axis=-1, keepdims=True) / deviation_T1
    size_TD = abs(x_TD - x_TD.mean(axis=-1, keepdims=True)) / deviation_T1
    size_TD = abs(weight_D) * (size_TD * (1 + shift_T1) + shift_T1) + abs(bias_D)
    return (x_TD.shape[-1].bit_length() + 8) * eps_of(x_TD) * size_TD


@op(
    out="normed_TD",
    card=Card(
        meaning="Moves each vector to mean zero and scales it to variance one, then each channel by its weight "
        "and bias.",
        formula="normed = (x − mean(x)) / sqrt(mean((x − mean(x))²) + eps) · weight + bias",
        source="Ba, Kiros and Hinton 2016, arXiv:1607.06450, equation 4",
        operations=lambda n: 7 * n.T * n.D,
        budget=_layer_norm_budget,
    ),
)
def layer_norm(x_TD: Array, weight_D: Array, bias_D: Array, *, eps: float) -> Array:
    """Layer norm over the last axis; the variance is that of the vector itself, `eps` stands inside the root."""
    xp = namespace(x_TD)
    wide_TD = x_TD.astype(working_dtype(x_TD.dtype), copy=False)
    normed_TD = wide_TD - wide_TD.mean(axis=-1, keepdims=True)
    variance_T1 = xp.einsum("td,td->t", normed_TD, normed_TD)[:, None] / x_TD.shape[-1]
    normed_TD /= xp.sqrt(variance_T1 + eps)
    normed_TD *= weight_D
    normed_TD += bias_D
    return normed_TD.astype(x_TD.dtype, copy=False)
