"""From token ids to vectors."""

from haaw.arrays import Array
from haaw.ops.card import Card, nothing
from haaw.ops.op import op


@op(
    out="x_TD",
    card=Card(
        meaning="Each token id picks its row of the embedding table.",
        formula="x[t] = table[ids[t]]",
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.4",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.T * n.D * itemsize,
    ),
)
def embed(ids_T: Array, table_VD: Array) -> Array:
    """The embedding rows of `ids_T` (integers in 0 … V-1), copied."""
    return table_VD[ids_T]
