"""Choosing the next token from its scores."""

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, nothing
from haaw.ops.op import op


@op(
    out="id_N",
    card=Card(
        meaning="The most likely token, and the lowest id among equals.",
        formula="id = min { v : scores[v] = max(scores) }",
        source="none: a definition",
        operations=nothing,
    ),
)
def greedy(scores_V: Array) -> Array:
    """The id with the highest score, as an array of one integer."""
    return namespace(scores_V).argmax(scores_V, keepdims=True)
