"""The arithmetic equals what the real caches report, byte for byte, at any length and for any shape."""

import numpy as np
import pytest

from haaw.caches.kinds import KINDS, make_cache
from haaw.caches.protocol import CacheLayout
from haaw.memory import KINDS as ARITHMETIC
from haaw.memory import CacheShape, kind_memory

CONTEXT = 400
OPTIONS = {"int8": ("quantised", {"bits": 8}), "int4": ("quantised", {"bits": 4})}


def real(kind: str, shape: CacheShape, dtype: str):
    """The real cache of a shape, empty."""
    name, options = OPTIONS.get(kind, (kind, {}))
    if name not in KINDS:
        pytest.skip(f"there is no cache of the kind {name} yet")
    if name == "paged":
        options = {"block_size": shape.block_size}
    if name == "sliding":
        options = {"sinks": shape.sinks}
    letters = ((shape.pattern or ("w" if shape.window else "f")) * shape.layers)[: shape.layers]
    windows = tuple(shape.window if letter == "w" else None for letter in letters) if shape.window else None
    layout = CacheLayout(shape.layers, shape.kv_heads, shape.head_dim, dtype, windows)
    return make_cache(name, layout, np.zeros(1, dtype), context_length_tokens=CONTEXT, **options)


def fill(cache, tokens: int) -> None:
    layout = cache.layout
    rows_TKC = np.zeros((tokens, layout.kv_heads, layout.head_dim), layout.dtype)
    for layer in range(layout.layers):
        cache.append(layer, rows_TKC, rows_TKC)
    cache.commit(tokens)


SHAPES = [
    CacheShape(2, 3, 8, 4, block_size=16),
    CacheShape(3, 1, 48, 4, block_size=7),
    CacheShape(5, 2, 4, 4, window=20, pattern="wf"),
    CacheShape(2, 2, 6, 4, window=33, sinks=3),
    CacheShape(2, 2, 64, 8),
]
LENGTHS = {
    *range(1, 9),
    *range(15, 39),
    *range(62, 67),
    *range(94, 99),
    *range(126, 131),
    *range(190, 400, 13),
    400,
}


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("kind", ARITHMETIC)
def test_the_figures_are_those_of_the_real_cache_grown_token_by_token(kind, shape):
    cache = real(kind, shape, {4: "float32", 8: "float64"}[shape.bytes_per_element])
    for length in range(1, CONTEXT + 1):
        fill(cache, 1)
        if length not in LENGTHS:
            continue
        memory, figured = cache.memory(), kind_memory(shape, kind, length, capacity=CONTEXT)
        assert (figured.useful_bytes, figured.allocated_bytes, figured.metadata_bytes) == (
            memory.useful_bytes,
            memory.allocated_bytes,
            memory.metadata_bytes,
        ), f"at {length} positions"
        assert figured.outside_bytes == getattr(cache, "offloaded_bytes", 0)


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
@pytest.mark.parametrize("chunk", [5, 64, 100, 400])
def test_the_figures_hold_for_a_prompt_in_chunks_too(kind, chunk):
    cache = real(kind, SHAPES[0], "float32")
    for start in range(0, CONTEXT, chunk):
        fill(cache, min(chunk, CONTEXT - start))
        memory = cache.memory()
        figured = kind_memory(SHAPES[0], kind, cache.length, capacity=CONTEXT)
        assert (figured.useful_bytes, figured.allocated_bytes) == (
            memory.useful_bytes,
            memory.allocated_bytes,
        )
