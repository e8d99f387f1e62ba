"""The operations that make and change a cache's buffers; nothing else writes into an array in place."""

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, nothing
from haaw.ops.op import op


@op(
    out="buffer_KPC",
    card=Card(
        meaning="Reserves memory for keys or values of one layer.",
        formula="buffer = 0",
        source="none: an allocation",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 0,
    ),
)
def kv_allocate(kv_heads: int, positions: int, head_dim: int, *, dtype: str, prototype_Z: Array) -> Array:
    """A zeroed buffer (K, P, C) in the array library of `prototype_Z`."""
    return namespace(prototype_Z).zeros((kv_heads, positions, head_dim), dtype=dtype)


@op(
    writes="buffer_KPC",
    card=Card(
        meaning="The new tokens' keys (or values) become rows of the cache.",
        formula="buffer[k, start + t] = rows[t, k]",
        source="Pope et al. 2022, arXiv:2211.05102, section 2",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.T * n.K * n.C * itemsize,
    ),
)
def kv_append(buffer_KPC: Array, rows_TKC: Array, *, start: int) -> None:
    """Writes `rows_TKC` at the positions start … start + T - 1 of every head."""
    buffer_KPC[:, start : start + rows_TKC.shape[0]] = rows_TKC.transpose(1, 0, 2)


@op(
    writes="buffer_KPC",
    card=Card(
        meaning="A grown cache takes over the rows of the smaller one.",
        formula="buffer[k, s] = old[k, s]",
        source="none: a copy",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.K * n.S * n.C * itemsize,
    ),
)
def kv_move(buffer_KPC: Array, old_KSC: Array) -> None:
    """Copies the S rows of `old_KSC` to the front of the buffer."""
    buffer_KPC[:, : old_KSC.shape[1]] = old_KSC
