"""Rows of random numbers for a quantised cache, and how far off they may come back: an oracle in float64."""

from typing import Any

import numpy as np

from haaw.caches.protocol import CacheLayout
from haaw.caches.quantised import QuantisedCache

LAYOUT = CacheLayout(layers=2, kv_heads=2, head_dim=12, dtype="float32")


class Source:
    """Rows of random numbers, given to a cache and kept: float64 copies by layer, keys and values."""

    def __init__(self, rng: np.random.Generator, layout: CacheLayout = LAYOUT, *, xp: Any = np) -> None:
        self.rng, self.layout, self.xp = rng, layout, xp
        self.rows: list[list[np.ndarray]] = [[], []]
        self.scale = rng.uniform(0.2, 5, (2, layout.kv_heads, layout.head_dim))  # channels differ in size

    def step(self, cache: Any, tokens: int) -> None:
        shape = (2, self.layout.layers, tokens, self.layout.kv_heads, self.layout.head_dim)
        new = (self.rng.normal(size=shape) * self.scale[:, None, None]).astype(self.layout.dtype)
        for layer in range(self.layout.layers):
            cache.append(layer, self.xp.asarray(new[0, layer]), self.xp.asarray(new[1, layer]))
        cache.commit(tokens)
        for kept, part in zip(self.rows, new, strict=True):
            kept.extend(part.transpose(1, 0, 2, 3))  # a position: (layer, K, C)

    def given(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        keys, values = (np.array([row[layer] for row in kept]).transpose(1, 0, 2) for kept in self.rows)
        return keys, values


def filled(rng: np.random.Generator, *steps: int, **options: Any) -> tuple[QuantisedCache, Source]:
    cache, source = QuantisedCache(LAYOUT, np.zeros(1, np.float32), **options), Source(rng)
    for tokens in steps:
        source.step(cache, tokens)
    return cache, source


def half_steps(rows_KSC: np.ndarray, bits: int, group: int, width: int | None) -> np.ndarray:
    """Half a step for each element, tile by tile in float64: a channel of a group, or `width` channels of a row."""
    exact = rows_KSC.astype(np.float64)
    bound = np.zeros_like(exact)
    kv_heads, positions, channels = exact.shape
    for head in range(kv_heads):
        for start in range(0, positions, group):
            for tile in (
                [(slice(start, start + group), slice(c, c + 1)) for c in range(channels)]
                if width is None
                else [
                    (slice(p, p + 1), slice(c, c + width))
                    for p in range(start, start + group)
                    for c in range(0, channels, width)
                ]
            ):
                part = exact[head][tile]
                bound[head][tile] = (part.max() - part.min()) / (2 * (2**bits - 1))
    return bound


def rounding(rows_KSC: np.ndarray) -> np.ndarray:
    """What float32 or float64 may add: a few roundings of the largest number that occurs in the calculation."""
    largest = abs(rows_KSC.astype(np.float64)).max()
    return np.full(rows_KSC.shape, 6 * np.finfo(rows_KSC.dtype).eps * largest)
