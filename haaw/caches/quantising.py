"""The operations of the quantised cache: rows in few bits, group by group, and back.

A group is G positions of all channels. One scale serves a *tile* of it: for keys G positions of one channel, for
values some channels of one position. Ranges are (M, K, A, Z): A tiles along the positions of a group, Z along the
channels. Codes are bytes (M, K, P, C): P = G with 8 bits; with 4 bits P = G/2, and position p shares its byte
(low half) with position p + G/2 (high half).
"""

from collections.abc import Sequence

from haaw.arrays import Array, namespace
from haaw.ops.card import Card, eps_of
from haaw.ops.op import op

SOURCE = "Liu et al. 2024, arXiv:2402.02750, equation 1 and section 3.2"


def _tiles(rows_KSC: Array, ranges: tuple[int, ...]) -> Array:
    """Rows as (M, K, A, positions of a tile, Z, channels of a tile): no copy."""
    kv_heads, positions, channels = rows_KSC.shape
    groups, _, down, across = ranges
    group = positions // groups
    parts = rows_KSC.reshape(kv_heads, groups, down, group // down, across, channels // across)
    return parts.transpose(1, 0, 2, 3, 4, 5)


@op(
    writes="lowest_MKAZ",
    card=Card(
        meaning="The lowest value of each tile of a group, which the code 0 will stand for.",
        formula="lowest[m, k, a, z] = min over the tile of rows",
        source=SOURCE,
        operations=lambda n: n.K * n.S * n.C,
        bytes_moved=lambda n, itemsize: (n.K * n.S * n.C + n.M * n.K * n.A * n.Z) * itemsize,
    ),
)
def kv_quantise_lowest(lowest_MKAZ: Array, rows_KSC: Array) -> None:
    """Notes the minima of M whole groups, S = M·G positions; NaN where a tile holds one."""
    lowest_MKAZ[...] = _tiles(rows_KSC, lowest_MKAZ.shape).min(axis=(3, 5))


def _step_budget(step_MKAZ: Array, rows_KSC: Array, lowest_MKAZ: Array, *, bits: int) -> Array:
    highest_MKAZ = _tiles(rows_KSC, step_MKAZ.shape).max(axis=(3, 5))
    return 2 * eps_of(rows_KSC) * (highest_MKAZ - lowest_MKAZ) / (2**bits - 1)


@op(
    writes="step_MKAZ",
    card=Card(
        meaning="How far apart two neighbouring codes of a tile lie, so that the highest code is its highest value.",
        formula="step = (max over the tile of rows − lowest) / (2^bits − 1)",
        source=SOURCE,
        operations=lambda n: n.K * n.S * n.C + 2 * n.M * n.K * n.A * n.Z,
        bytes_moved=lambda n, itemsize: (n.K * n.S * n.C + 2 * n.M * n.K * n.A * n.Z) * itemsize,
        budget=_step_budget,
    ),
)
def kv_quantise_step(step_MKAZ: Array, rows_KSC: Array, lowest_MKAZ: Array, *, bits: int) -> None:
    """Notes the steps of M whole groups; 0 where all values of a tile are the same."""
    step_MKAZ[...] = (_tiles(rows_KSC, step_MKAZ.shape).max(axis=(3, 5)) - lowest_MKAZ) / (2**bits - 1)


@op(
    writes="codes_MKPC",
    card=Card(
        meaning="Each value of a group becomes a whole number of steps above the lowest of its tile.",
        formula="codes = round((rows − lowest) / step), ties to even; two 4-bit codes share a byte",
        source=SOURCE,
        operations=lambda n: 3 * n.K * n.S * n.C,
        bytes_moved=lambda n, itemsize: (
            (n.K * n.S * n.C + 2 * n.M * n.K * n.A * n.Z) * itemsize + n.M * n.K * n.P * n.C
        ),
    ),
)
def kv_quantise_group(
    codes_MKPC: Array, rows_KSC: Array, lowest_MKAZ: Array, step_MKAZ: Array, *, bits: int
) -> None:
    """Writes the codes of M whole groups, one behind the other in `rows_KSC`.

    A tile with a NaN or an infinity in it has a range that is none; its codes are 0, and it comes back as NaN.
    """
    xp = namespace(rows_KSC)
    groups, kv_heads, _, channels = codes_MKPC.shape
    tiles = _tiles(rows_KSC, lowest_MKAZ.shape)
    codes = tiles - lowest_MKAZ[:, :, :, None, :, None]
    codes /= xp.where(step_MKAZ > 0, step_MKAZ, 1)[:, :, :, None, :, None]
    xp.rint(codes, out=codes)
    codes = xp.minimum(xp.where(codes > 0, codes, 0), 2**bits - 1)  # NaN becomes 0
    whole = codes.astype("uint8").reshape(groups, kv_heads, -1, channels)
    if bits == 4:
        half = whole.shape[2] // 2
        whole = whole[:, :, :half] | (whole[:, :, half:] << 4)
    codes_MKPC[...] = whole


def _restored(
    codes_MKPC: Sequence[Array],
    lowest_MKAZ: Sequence[Array],
    step_MKAZ: Sequence[Array],
    recent_TKC: Sequence[Array],
    *,
    bits: int,
) -> Array:
    xp = namespace(recent_TKC[0])
    _, kv_heads, packed, channels = codes_MKPC[0].shape
    group = packed * 8 // bits
    quantised = group * sum(len(part) for part in codes_MKPC)
    length = quantised + sum(len(part) for part in recent_TKC)
    rows_KSC = xp.empty((kv_heads, length, channels), dtype=recent_TKC[0].dtype)
    start = 0
    for codes, lowest, step in zip(codes_MKPC, lowest_MKAZ, step_MKAZ, strict=True):
        stop = start + len(codes) * group
        tiles = _tiles(rows_KSC[:, start:stop], lowest.shape)
        target = rows_KSC[:, start:stop].reshape(kv_heads, len(codes), group, channels).transpose(1, 0, 2, 3)
        if bits == 4:
            target[:, :, :packed] = codes & 15
            target[:, :, packed:] = codes >> 4
        else:
            target[...] = codes
        tiles *= step[:, :, :, None, :, None]
        tiles += lowest[:, :, :, None, :, None]
        start = stop
    for rows_TKC in recent_TKC:
        stop = start + len(rows_TKC)
        rows_KSC[:, start:stop] = rows_TKC.transpose(1, 0, 2)
        start = stop
    return rows_KSC


def _dequantise_budget(
    codes_MKPC: Sequence[Array],
    lowest_MKAZ: Sequence[Array],
    step_MKAZ: Sequence[Array],
    recent_TKC: Sequence[Array],
    *,
    bits: int,
) -> Array:
    lowest = [abs(part) for part in lowest_MKAZ]
    exact_TKC = [part * 0 for part in recent_TKC]  # copied, so without an error
    return eps_of(recent_TKC[0]) * _restored(codes_MKPC, lowest, step_MKAZ, exact_TKC, bits=bits)


@op(
    out="rows_KSC",
    card=Card(
        meaning="Codes become numbers again, and the latest rows, which are kept as they were, stand behind them.",
        formula="rows = lowest + step · codes",
        source=SOURCE,
        operations=lambda n: 2 * n.K * (n.S - n.T) * n.C,
        bytes_moved=lambda n, itemsize: (
            n.M * n.K * n.P * n.C + (2 * n.M * n.K * n.A * n.Z + n.T * n.K * n.C + n.K * n.S * n.C) * itemsize
        ),
        budget=_dequantise_budget,
    ),
)
def kv_dequantise(
    codes_MKPC: Sequence[Array],
    lowest_MKAZ: Sequence[Array],
    step_MKAZ: Sequence[Array],
    recent_TKC: Sequence[Array],
    *,
    bits: int,
) -> Array:
    """All rows (K, S, C) in the dtype of the latest ones: those of M groups, then T that were never quantised.

    The sequences hold windows on one buffer each, in the order of positions.
    """
    return _restored(codes_MKPC, lowest_MKAZ, step_MKAZ, recent_TKC, bits=bits)
