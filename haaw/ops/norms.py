"""Normalisations."""

from haaw.arrays import Array, as_stored, namespace, widened
from haaw.ops.card import Card, eps_of
from haaw.ops.op import op
from haaw.ops.threads import in_parts


def _rms_norm_budget(x_TD: Array, weight_D: Array, *, eps: float) -> Array:
    # A root, a division and a product; and the sum of squares, where einsum adds D/32 terms or more one after
    # another: their roundings all go one way if the channels are alike.
    xp = namespace(x_TD)
    width = x_TD.shape[-1]
    size = abs(x_TD * weight_D) / xp.sqrt((x_TD * x_TD).mean(axis=-1, keepdims=True) + eps)
    return (16 + width / 32) * eps_of(x_TD) * size


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
    wide_TD = widened(x_TD)
    normed_TD = xp.empty(wide_TD.shape, dtype=wide_TD.dtype)

    def some_tokens(x_TD: Array, normed_TD: Array) -> None:
        xp.multiply(x_TD, x_TD, out=normed_TD)
        size_T1 = normed_TD.sum(axis=-1, keepdims=True)
        size_T1 /= x_TD.shape[-1]
        size_T1 += eps
        xp.sqrt(size_T1, out=size_T1)
        xp.divide(x_TD, size_T1, out=normed_TD)
        xp.multiply(normed_TD, weight_D, out=normed_TD)

    in_parts(some_tokens, wide_TD, normed_TD)
    return as_stored(normed_TD, x_TD)


def _layer_norm_budget(x_TD: Array, weight_D: Array, bias_D: Array, *, eps: float) -> Array:
    # The mean errs by about log2(D) roundings of mean(|x|), and so does every difference from it: relative to
    # the deviation that is large where the vector lies far from zero.
    xp = namespace(x_TD)
    centred_TD = x_TD - x_TD.mean(axis=-1, keepdims=True)
    deviation_T1 = xp.sqrt((centred_TD * centred_TD).mean(axis=-1, keepdims=True) + eps)
    shift_T1 = abs(x_TD).mean(axis=-1, keepdims=True) / deviation_T1
    size_TD = abs(centred_TD) / deviation_T1
    size_TD = abs(weight_D) * (size_TD * (1 + shift_T1) + shift_T1) + abs(bias_D)
    width = x_TD.shape[-1]
    return (8 + width.bit_length() + width / 256) * eps_of(x_TD) * size_TD


@op(
    out="normed_TD",
    card=Card(
        meaning="Moves each vector to mean zero and variance one, then each channel by its weight and bias.",
        formula="normed = (x − mean(x)) / sqrt(mean((x − mean(x))²) + eps) · weight + bias",
        source="Ba, Kiros and Hinton 2016, arXiv:1607.06450, equation 4",
        operations=lambda n: 7 * n.T * n.D,
        budget=_layer_norm_budget,
    ),
)
def layer_norm(x_TD: Array, weight_D: Array, bias_D: Array, *, eps: float) -> Array:
    """Layer norm over the last axis; divides by D in the variance, `eps` stands inside the root."""
    xp = namespace(x_TD)
    wide_TD = widened(x_TD)
    normed_TD = wide_TD - wide_TD.mean(axis=-1, keepdims=True)
    variance_T1 = xp.einsum("td,td->t", normed_TD, normed_TD)[:, None] / x_TD.shape[-1]
    normed_TD /= xp.sqrt(variance_T1 + eps)
    normed_TD *= weight_D
    normed_TD += bias_D
    return as_stored(normed_TD, x_TD)
