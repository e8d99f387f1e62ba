"""Random arguments for every operation, so that one test can hold for all of them.

`EXAMPLES[name](rng, scale)` gives (args, kwargs) in float32; `scale` is the magnitude of the values.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

import haaw.caches
import haaw.ops
from haaw.ops.op import OPS, Op
from haaw.ops.rope import rope_frequencies

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Example = Callable[[np.random.Generator, float], Arguments]


def all_ops() -> dict[str, Op]:
    """Every operation of the vocabulary, all modules imported."""
    for package in (haaw.ops, haaw.caches):
        for module in iter_modules(package.__path__, package.__name__ + "."):
            import_module(module.name)
    return OPS


def _normal(rng: np.random.Generator, scale: float, *shape: int) -> np.ndarray:
    return (rng.normal(0, 1, shape) * scale).astype(np.float32)


def _size(rng: np.random.Generator, most: int = 12) -> int:
    return int(rng.integers(1, most))


def _embed(rng: np.random.Generator, scale: float) -> Arguments:
    return (rng.integers(0, 9, _size(rng)), _normal(rng, scale, 9, 7)), {}


def _linear(rng: np.random.Generator, scale: float) -> Arguments:
    inner, outer = int(rng.choice([1, 7, 64, 208, 368, 576, 1536])), _size(rng, 34)
    bias_Z = [_normal(rng, scale, outer)] if rng.random() < 0.5 else []
    x_TA, weight_ZA = _normal(rng, scale, int(rng.choice([1, 5, 64])), inner), _normal(rng, 1, outer, inner)
    if (kind := rng.integers(4)) > 1:  # equal terms, the last of them perhaps behind an outlier
        x_TA[:], weight_ZA[:] = x_TA[0, 0], weight_ZA[0, 0]
        x_TA[:, 0] *= 1 if kind == 2 else rng.choice([1000, 1 - inner])
    return (x_TA, weight_ZA, *bias_Z), {}


def _add(rng: np.random.Generator, scale: float) -> Arguments:
    shape = _size(rng), _size(rng)
    return (_normal(rng, scale, *shape), _normal(rng, 1, *shape)), {}


def _norm(rng: np.random.Generator, scale: float) -> tuple[np.ndarray, int]:
    tokens, width = _size(rng), int(rng.choice([1, 2, 3, 64, 576, 4096]))
    x_TD = _normal(rng, scale, tokens, width)
    kind = rng.integers(5)
    if kind == 0:
        x_TD[:] = x_TD[:, :1]  # a constant row: the rounding of its sum has no luck to rely on
    elif kind == 1:
        x_TD[:, 0] *= 1000  # one channel that outweighs the others
    elif kind == 2:
        x_TD += np.float32(scale)
    elif kind == 3:
        x_TD[:] = np.sign(x_TD) * np.float32(scale)  # all squares alike, the mean near zero
    return x_TD, width


def _rms_norm(rng: np.random.Generator, scale: float) -> Arguments:
    x_TD, width = _norm(
        rng, min(scale, 1e14)
    )  # the square of 1e20 is beyond float32, in every implementation
    return (x_TD, _normal(rng, 1, width)), {"eps": float(rng.choice([1e-5, 1e-6]))}


def _layer_norm(rng: np.random.Generator, scale: float) -> Arguments:
    x_TD, width = _norm(rng, min(scale, 1e14))
    return (x_TD, _normal(rng, 1, width), _normal(rng, 1, width)), {"eps": 1e-5}


def _two_of(rng: np.random.Generator, scale: float) -> Arguments:
    shape = _size(rng), _size(rng, 40)
    return (_normal(rng, scale, *shape), _normal(rng, 1, *shape)), {}


def _one_of(rng: np.random.Generator, scale: float) -> Arguments:
    return (_normal(rng, scale, _size(rng), _size(rng, 40)),), {}


def _rope_angles(rng: np.random.Generator, scale: float) -> Arguments:
    positions_T = rng.integers(0, 10_000, _size(rng))
    return (positions_T, rope_frequencies(2 * _size(rng), 10_000.0)), {"dtype": "float32"}


def _rope(rng: np.random.Generator, scale: float) -> Arguments:
    tokens, half, more = _size(rng), _size(rng), int(rng.integers(0, 4))
    angle_TI = rng.uniform(-9, 9, (tokens, half))
    x_THC = _normal(rng, scale, tokens, _size(rng, 4), 2 * half + more)
    cosine_TI, sine_TI = np.cos(angle_TI).astype(np.float32), np.sin(angle_TI).astype(np.float32)
    return (x_THC, np.concatenate([cosine_TI] * 2, axis=1), np.concatenate([-sine_TI, sine_TI], axis=1)), {}


def _causal_mask(rng: np.random.Generator, scale: float) -> Arguments:
    positions = _size(rng)
    window = None if rng.random() < 0.5 else _size(rng)
    return (np.arange(positions - _size(rng, positions + 1), positions), np.arange(positions)), {
        "window": window,
        "sinks": int(rng.integers(0, 4)),
        "dtype": "float32",
    }


def _scores(rng: np.random.Generator, scale: float) -> Arguments:
    tokens, positions, kv_heads, group, channels = (_size(rng, 6) for _ in range(5))
    channels *= 20
    masked = int(rng.integers(1, positions + 1))
    mask_TP = np.where(rng.random((tokens, masked)) < 0.3, np.float32(-np.inf), np.float32(0))
    query_THC = _normal(rng, scale, tokens, kv_heads * group, channels)
    return (
        query_THC,
        _normal(rng, 1, kv_heads, positions, channels),
        mask_TP if rng.random() < 0.5 else None,
    ), {"scale": channels**-0.5}


def _softmax(rng: np.random.Generator, scale: float) -> Arguments:
    scores_HTS = _normal(rng, scale, _size(rng, 4), _size(rng, 4), int(rng.choice([1, 2, 50, 1000])))
    scores_HTS[rng.random(scores_HTS.shape) < 0.1] = -np.inf
    scores_HTS[0, 0] = -np.inf if rng.random() < 0.2 else scores_HTS[0, 0]
    return (scores_HTS,), {}


def _mix(rng: np.random.Generator, scale: float) -> Arguments:
    tokens, kv_heads, group, channels = (_size(rng, 6) for _ in range(4))
    positions = int(rng.integers(1, 400))
    weights_HTS = rng.dirichlet(np.ones(positions), (kv_heads * group, tokens)).astype(np.float32)
    values_KSC = _normal(rng, scale, kv_heads, positions, channels)
    if rng.random() < 0.3:
        values_KSC[:] = values_KSC[:, :1]  # equal terms: their roundings all go one way
        weights_HTS[:] = 1 / positions
    return (weights_HTS, values_KSC), {}


def _merge_heads(rng: np.random.Generator, scale: float) -> Arguments:
    heads, tokens, channels = (_size(rng) for _ in range(3))
    mixed_HTC = _normal(rng, scale, heads, tokens, channels)
    return (
        mixed_HTC if rng.random() < 0.5 else [mixed_HTC[:1], mixed_HTC[1:]] if heads > 1 else [mixed_HTC],
    ), {}


def _merge_tokens(rng: np.random.Generator, scale: float) -> Arguments:
    return ([_normal(rng, scale, _size(rng), 5) for _ in range(_size(rng))],), {}


def _take_rows(rng: np.random.Generator, scale: float) -> Arguments:
    return (_normal(rng, scale, 9, 4), rng.integers(0, 9, _size(rng)).tolist()), {}


def _kv_allocate(rng: np.random.Generator, scale: float) -> Arguments:
    return (_size(rng), _size(rng), _size(rng)), {"dtype": "float32", "prototype_Z": np.zeros(0, np.float32)}


def _kv_append(rng: np.random.Generator, scale: float) -> Arguments:
    return (_normal(rng, scale, 3, 20, 4), _normal(rng, scale, _size(rng), 3, 4)), {"start": _size(rng, 9)}


def _kv_move(rng: np.random.Generator, scale: float) -> Arguments:
    return (_normal(rng, scale, 3, 20, 4), _normal(rng, scale, 3, _size(rng), 4)), {}


def _vocabulary(rng: np.random.Generator, scale: float) -> Arguments:
    return (_normal(rng, min(scale, 1e30), int(rng.choice([1, 2, 50, 3000]))),), {}


def _some_ids(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.permutation(size)[: rng.integers(1, size + 1)]


def _repetition_penalty(rng: np.random.Generator, scale: float) -> Arguments:
    ((scores_V,), _) = _vocabulary(rng, scale)
    return (scores_V, _some_ids(rng, len(scores_V))), {"penalty": float(rng.uniform(0.5, 2))}


def _count_penalty(rng: np.random.Generator, scale: float) -> Arguments:
    ((scores_V,), _) = _vocabulary(rng, scale)
    ids_N = _some_ids(rng, len(scores_V))
    counts_N = rng.integers(1, 9, len(ids_N)).astype(np.float32)
    return (scores_V, ids_N, counts_N), {"presence": float(rng.normal()), "frequency": float(rng.normal())}


def _logit_bias(rng: np.random.Generator, scale: float) -> Arguments:
    ((scores_V,), _) = _vocabulary(rng, scale)
    ids_N = _some_ids(rng, len(scores_V))
    return (scores_V, ids_N, rng.choice([-np.inf, 0, 1.5, 40], len(ids_N)).astype(np.float32)), {}


def _temper(rng: np.random.Generator, scale: float) -> Arguments:
    return _vocabulary(rng, scale)[0], {"temperature": float(rng.uniform(0.01, 3))}


def _candidates(rng: np.random.Generator, scale: float) -> Arguments:
    ((scores_V,), _) = _vocabulary(rng, scale)
    scores_V[1:][rng.random(len(scores_V) - 1) < 0.3] = -np.inf
    return (scores_V,), {}


def _filter(**choices: Callable[[np.random.Generator], Any]) -> Example:
    def example(rng: np.random.Generator, scale: float) -> Arguments:
        ((scores_N,), _) = _vocabulary(rng, min(scale, 100))
        ids_N = np.sort(rng.permutation(5000)[: len(scores_N)])
        return (ids_N, scores_N), {name: choose(rng) for name, choose in choices.items()}

    return example


def _draw(rng: np.random.Generator, scale: float) -> Arguments:
    return (*_filter()(rng, scale)[0], rng.random(1)), {}


def _top_candidates(rng: np.random.Generator, scale: float) -> Arguments:
    ((scores_V,), _) = _vocabulary(rng, scale)
    return (scores_V,), {"n": int(rng.integers(1, len(scores_V) + 1))}


def _groups(rng: np.random.Generator, scale: float) -> dict[str, Any]:
    """Rows of whole groups, buffers for their tiles (whole groups of a channel, or channels of a row), and bits."""
    bits, groups, kv_heads = int(rng.choice([4, 8])), _size(rng, 4), _size(rng, 4)
    group, width, across = 2 * _size(rng, 5), _size(rng, 6), _size(rng, 4)
    channels = width * across
    down, across = (1, channels) if rng.random() < 0.5 else (group, across)
    rows_KSC = _normal(rng, scale, kv_heads, groups * group, channels)
    if rng.random() < 0.2:
        rows_KSC[:] = rows_KSC[:, :, :1]  # tiles of one value, or columns alike
    tiles = rows_KSC.reshape(kv_heads, groups, down, group // down, across, channels // across)
    lowest_MKAZ = tiles.min(axis=(3, 5)).transpose(1, 0, 2, 3)
    step_MKAZ = (tiles.max(axis=(3, 5)).transpose(1, 0, 2, 3) - lowest_MKAZ) / np.float32(2**bits - 1)
    codes_MKPC = rng.integers(0, 256, (groups, kv_heads, group * bits // 8, channels)).astype(np.uint8)
    return {"rows": rows_KSC, "lowest": lowest_MKAZ, "step": step_MKAZ, "codes": codes_MKPC, "bits": bits}


def _kv_quantise_lowest(rng: np.random.Generator, scale: float) -> Arguments:
    groups = _groups(rng, scale)
    return (np.zeros_like(groups["lowest"]), groups["rows"]), {}


def _kv_quantise_step(rng: np.random.Generator, scale: float) -> Arguments:
    groups = _groups(rng, scale)
    return (np.zeros_like(groups["step"]), groups["rows"], groups["lowest"]), {"bits": groups["bits"]}


def _kv_quantise_group(rng: np.random.Generator, scale: float) -> Arguments:
    groups = _groups(rng, scale)
    return (np.zeros_like(groups["codes"]), groups["rows"], groups["lowest"], groups["step"]), {
        "bits": groups["bits"]
    }


def _kv_dequantise(rng: np.random.Generator, scale: float) -> Arguments:
    groups = _groups(rng, scale)
    kv_heads, _, channels = groups["rows"].shape
    recent = [_normal(rng, scale, tokens, kv_heads, channels) for tokens in (_size(rng) - 1, _size(rng))]
    cut = _size(rng, len(groups["codes"]) + 1)
    segments = [
        [groups[part][:cut], groups[part][cut:]] if cut < len(groups[part]) else [groups[part]]
        for part in ("codes", "lowest", "step")
    ]
    return (*segments, recent[: _size(rng, 3)]), {"bits": groups["bits"]}


def _kv_allocate_groups(rng: np.random.Generator, scale: float) -> Arguments:
    sizes = tuple(_size(rng) for _ in range(4))
    return sizes, {"dtype": "float32", "prototype_Z": np.zeros(0, np.float32)}


def _kv_fetch(rng: np.random.Generator, scale: float) -> Arguments:
    return (_normal(rng, scale, 3, 20, 4), _normal(rng, scale, 3, _size(rng), 4)), {"start": _size(rng, 9)}


def _kv_move_groups(rng: np.random.Generator, scale: float) -> Arguments:
    shape = tuple(_size(rng) for _ in range(4))
    return (_normal(rng, scale, *shape), _normal(rng, scale, *shape)), {}


def _kv_allocate_outside(rng: np.random.Generator, scale: float) -> Arguments:
    return tuple(_size(rng) for _ in range(4)), {"dtype": "float32"}


def _kv_append_blocks(rng: np.random.Generator, scale: float) -> Arguments:
    blocks, size = _size(rng), _size(rng, 6)
    start = int(rng.integers(size))
    tokens = int(rng.integers(1, blocks * size - start + 1))
    chosen = tuple(int(block) for block in rng.permutation(blocks))
    buffer_KMPC = _normal(rng, scale, 3, blocks, size, 4)
    return (buffer_KMPC, _normal(rng, scale, tokens, 3, 4)), {"blocks": chosen, "start": start}


def _kv_copy_block(rng: np.random.Generator, scale: float) -> Arguments:
    source, target = (int(block) for block in rng.choice(9, 2, replace=False))
    return (_normal(rng, scale, 3, 9, _size(rng), 4),), {"source": source, "target": target}


def _kv_gather(rng: np.random.Generator, scale: float) -> Arguments:
    blocks, size = _size(rng), _size(rng, 6)
    chosen = tuple(int(block) for block in rng.permutation(blocks))
    length = int(rng.integers((blocks - 1) * size, blocks * size) + 1)
    return (_normal(rng, scale, 3, blocks, size, 4),), {"blocks": chosen, "length": length}


EXAMPLES: dict[str, Example] = {
    "add": _add,
    "attention_mix": _mix,
    "attention_scores": _scores,
    "candidates": _candidates,
    "causal_mask": _causal_mask,
    "count_penalty": _count_penalty,
    "draw": _draw,
    "embed": _embed,
    "gelu": _one_of,
    "gelu_tanh": _one_of,
    "greedy": _vocabulary,
    "keep_min_p": _filter(min_p=lambda rng: float(rng.uniform(0, 0.3))),
    "keep_top_k": _filter(k=lambda rng: int(rng.integers(1, 60))),
    "keep_top_p": _filter(p=lambda rng: float(rng.uniform(0, 1))),
    "kv_allocate": _kv_allocate,
    "kv_allocate_blocks": _kv_allocate_groups,
    "kv_allocate_groups": _kv_allocate_groups,
    "kv_allocate_on_disk": _kv_allocate_outside,
    "kv_allocate_on_host": _kv_allocate_outside,
    "kv_append": _kv_append,
    "kv_append_blocks": _kv_append_blocks,
    "kv_copy_block": _kv_copy_block,
    "kv_dequantise": _kv_dequantise,
    "kv_fetch": _kv_fetch,
    "kv_gather": _kv_gather,
    "kv_move": _kv_move,
    "kv_move_groups": _kv_move_groups,
    "kv_quantise_group": _kv_quantise_group,
    "kv_quantise_lowest": _kv_quantise_lowest,
    "kv_quantise_step": _kv_quantise_step,
    "kv_store": _kv_append,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "log_softmax": _vocabulary,
    "logit_bias": _logit_bias,
    "merge_heads": _merge_heads,
    "merge_tokens": _merge_tokens,
    "repetition_penalty": _repetition_penalty,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "rope_angles": _rope_angles,
    "softmax": _softmax,
    "swiglu": _two_of,
    "take_rows": _take_rows,
    "temper": _temper,
    "top_candidates": _top_candidates,
}


def converted(value: Any, change: Callable[[np.ndarray], Any]) -> Any:
    """`value` with every array in it, also in lists and dictionaries, put through `change`."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(converted(part, change) for part in value)
    if isinstance(value, dict):
        return {name: converted(part, change) for name, part in value.items()}
    return value


def in_float64(name: str, arguments: Arguments) -> Arguments:
    """The same values in float64; the frequencies of RoPE stay, since their float32 product is the definition."""
    args, kwargs = arguments
    if "dtype" in kwargs:
        kwargs = kwargs | {"dtype": "float64"}
    if name == "rope_angles":
        return args, kwargs
    return converted((args, kwargs), lambda x: x.astype(np.float64) if x.dtype == np.float32 else x)
