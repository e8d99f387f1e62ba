"""The operations that make and change a cache's buffers; nothing else writes into an array in place."""

from collections.abc import Iterator, Sequence

import numpy as np

from haaw.arrays import Array, like, namespace, to_host
from haaw.caches.offload_files import mapped_zeros
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


@op(
    out="buffer_KMPC",
    card=Card(
        meaning="Reserves memory for all blocks of a pool: keys or values of one layer.",
        formula="buffer = 0",
        source="none: an allocation",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 0,
    ),
)
def kv_allocate_blocks(
    kv_heads: int, blocks: int, block_size: int, head_dim: int, *, dtype: str, prototype_Z: Array
) -> Array:
    """A zeroed buffer (K, M, P, C): the rows of one head in one block lie together, and block behind block."""
    return namespace(prototype_Z).zeros((kv_heads, blocks, block_size, head_dim), dtype=dtype)


@op(
    writes="buffer_KMPC",
    card=Card(
        meaning="The new tokens' keys (or values) become rows of the blocks that a table names.",
        formula="buffer[k, blocks[(start + t) div P], (start + t) mod P] = rows[t, k]",
        source="Kwon et al. 2023, arXiv:2309.06180, section 4.3",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.T * n.K * n.C * itemsize,
    ),
)
def kv_append_blocks(buffer_KMPC: Array, rows_TKC: Array, *, blocks: tuple[int, ...], start: int) -> None:
    """Writes `rows_TKC` into `blocks`, in their order, from the slot `start` of the first one on."""
    kv_heads, _, size, channels = buffer_KMPC.shape
    flat_KPC = buffer_KMPC.reshape(kv_heads, -1, channels)
    done, tokens = 0, rows_TKC.shape[0]
    for first, count in runs(blocks):
        rows = min(tokens - done, count * size - start)
        slot = first * size + start
        flat_KPC[:, slot : slot + rows] = rows_TKC[done : done + rows].transpose(1, 0, 2)
        done, start = done + rows, 0


@op(
    writes="buffer_KMPC",
    card=Card(
        meaning="A block that others share is copied before it is written to.",
        formula="buffer[k, target] = buffer[k, source]",
        source="Kwon et al. 2023, arXiv:2309.06180, section 4.4",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.K * n.P * n.C * itemsize,
    ),
)
def kv_copy_block(buffer_KMPC: Array, *, source: int, target: int) -> None:
    """Copies the rows of the block `source` into the block `target`."""
    buffer_KMPC[:, target] = buffer_KMPC[:, source]


@op(
    out="rows_KSC",
    card=Card(
        meaning="Rows that lie scattered over blocks are brought together for attention.",
        formula="rows[k, s] = buffer[k, blocks[s div P], s mod P]",
        source="Kwon et al. 2023, arXiv:2309.06180, section 4.3",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.K * n.S * n.C * itemsize,
    ),
)
def kv_gather(buffer_KMPC: Array, *, blocks: tuple[int, ...], length: int) -> Array:
    """A copy (K, S, C) of the first `length` rows of `blocks`, in their order."""
    kv_heads, _, size, channels = buffer_KMPC.shape
    flat_KPC = buffer_KMPC.reshape(kv_heads, -1, channels)
    parts, left = [], length
    for first, count in runs(blocks):
        rows = min(left, count * size)
        parts.append(flat_KPC[:, first * size : first * size + rows])
        left -= rows
    return namespace(buffer_KMPC).concatenate(parts, axis=1)


def runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Blocks that follow one another in memory, taken together: their first and their count."""
    first = count = 0
    for block in blocks:
        if count and block == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = block, 1
    if count:
        yield first, count


@op(
    out="buffer_MKPC",
    card=Card(
        meaning="Reserves memory for groups of positions: their codes, or the ranges that the codes refer to.",
        formula="buffer = 0",
        source="none: an allocation",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 0,
    ),
)
def kv_allocate_groups(
    groups: int, kv_heads: int, rows: int, columns: int, *, dtype: str, prototype_Z: Array
) -> Array:
    """A zeroed buffer (M, K, P, C) in the array library of `prototype_Z`: one group behind the other."""
    return namespace(prototype_Z).zeros((groups, kv_heads, rows, columns), dtype=dtype)


@op(
    writes="buffer_MKPC",
    card=Card(
        meaning="The fork of a cache takes over whole groups as they are, without making them anew.",
        formula="buffer = old",
        source="none: a copy",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.M * n.K * n.P * n.C * itemsize,
    ),
)
def kv_move_groups(buffer_MKPC: Array, old_MKPC: Array) -> None:
    """Copies all groups of `old_MKPC`."""
    buffer_MKPC[...] = old_MKPC


@op(
    out="buffer_LKPC",
    card=Card(
        meaning="Reserves room for the keys and values of all layers in a file, outside main memory.",
        formula="buffer = 0",
        source="none: an allocation",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 0,
    ),
)
def kv_allocate_on_disk(parts: int, kv_heads: int, positions: int, head_dim: int, *, dtype: str) -> Array:
    """A buffer of zeros (L, K, P, C) that is a file: L parts, the keys and values of each layer.

    The file has no name and goes with the array; where it lies, `offload_files.in_folder` says.
    Errors: `CacheError` where the folder is gone or the disk is full.
    """
    return mapped_zeros((parts, kv_heads, positions, head_dim), dtype)


@op(
    out="buffer_LKPC",
    card=Card(
        meaning="Reserves room for the keys and values of all layers in the memory of the host.",
        formula="buffer = 0",
        source="none: an allocation",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 0,
    ),
)
def kv_allocate_on_host(parts: int, kv_heads: int, positions: int, head_dim: int, *, dtype: str) -> Array:
    """A NumPy buffer of zeros (L, K, P, C), whatever device the model lives on."""
    return np.zeros((parts, kv_heads, positions, head_dim), dtype=dtype)


@op(
    writes="stored_KPC",
    card=Card(
        meaning="The new tokens' keys (or values) are written out to the store of one layer.",
        formula="stored[k, start + t] = rows[t, k]",
        source="Sheng et al. 2023, arXiv:2303.06865, section 3.1",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.T * n.K * n.C * itemsize,
    ),
)
def kv_store(stored_KPC: Array, rows_TKC: Array, *, start: int) -> None:
    """Writes `rows_TKC`, which may live on a device, at the positions start … start + T - 1 of a store."""
    stored_KPC[:, start : start + rows_TKC.shape[0]] = _beside(rows_TKC, stored_KPC).transpose(1, 0, 2)


@op(
    writes="working_KPC",
    card=Card(
        meaning="Rows of one layer are brought in from the store to where attention reads them.",
        formula="working[k, start + s] = stored[k, s]",
        source="Sheng et al. 2023, arXiv:2303.06865, section 3.1",
        operations=nothing,
        bytes_moved=lambda n, itemsize: 2 * n.S * n.K * n.C * itemsize,
    ),
)
def kv_fetch(working_KPC: Array, stored_KSC: Array, *, start: int) -> None:
    """Copies S rows of a store to the positions start … start + S - 1 of a working buffer."""
    working_KPC[:, start : start + stored_KSC.shape[1]] = _beside(stored_KSC, working_KPC)


def _beside(x: Array, other: Array) -> Array:
    """`x` in the library, and so in the memory, of `other`."""
    if namespace(x) is namespace(other):
        return x
    return to_host(x) if namespace(other) is np else like(x, other)
