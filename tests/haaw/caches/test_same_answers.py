"""Whole models over every kind of cache give what attention in float64 without any cache gives.

Lengths go from 1 to 2B + 1 where B is the size of every block, window and group, in several chunkings. A kind
that forgets is compared under the mask of its windows. A twentieth runs by default, everything under `long`.

FAULTS: S53 (a window of W or W + 1 keys), S54 (the algebra of masks), S71 and S72 (rings), S73 (ageing by the call).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.plain_attention import oracle_logits
from support.tiny_models import tiny_gpt2, tiny_llama

import haaw.models.attention
from haaw.arrays import to_host
from haaw.caches.kinds import make_cache
from haaw.caches.protocol import Window, windows_of
from haaw.generation.engine import advance, advance_without_cache
from haaw.models.llama import Llama

B = 4
IDS = np.random.default_rng(8).integers(0, 64, 2 * B + 1).tolist()
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


class WindowedLlama(Llama):
    """A toy of a model whose first layer sees B keys and whose second one sees all."""

    @property
    def cache_layout(self):
        return dataclasses.replace(super().cache_layout, windows=(B, None))


def windowed_llama(seed: int, *, dtype: str) -> Llama:
    plain = tiny_llama(seed, dtype=dtype)
    return WindowedLlama(plain.config, plain.weights)


FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": tiny_llama, "gpt2": tiny_gpt2, "llama with windows": windowed_llama,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind with its options; `loss` is how far its logits may be from the oracle's, relative to their scale."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    loss: float = 0.0


KINDS: dict[str, Kind] = {
    "dynamic": Kind("dynamic"),
    "dynamic from B": Kind("dynamic", {"first_capacity": B}),
    "dynamic from one": Kind("dynamic", {"first_capacity": 1}),
    "concatenated": Kind("concatenated"),
    "offloaded": Kind("offloaded"),
    "paged in blocks of B": Kind("paged", {"block_size": B}),
    "paged in blocks of three": Kind("paged", {"block_size": 3}),
    "quantised, but nothing old enough": Kind("quantised", {"residual": 100}),
    "static": Kind("static"),
    "static, just enough": Kind("static", {"capacity": 2 * B + 1}),
    "sliding, model's own or wide": Kind("sliding"),
    "sliding over B": Kind("sliding", {"window": B}),
    "sliding over B and 2 sinks": Kind("sliding", {"window": B, "sinks": 2}),
    "sliding over one": Kind("sliding", {"window": 1}),
}


def chunkings(length: int) -> list[list[int]]:
    """One by one, in one piece, in halves, in pieces of three, and all but the last two and then one by one."""
    halves = [part for part in (length // 2, length - length // 2) if part]
    threes = [min(3, length - start) for start in range(0, length, 3)]
    tail = [length - 2, 1, 1] if length > 2 else [1] * length
    return [[1] * length, [length], halves, threes, tail]


def combinations() -> list[tuple[str, str, int, tuple[int, ...], int]]:
    """Family, dtype, length, chunks, and how many queries attention takes at a time."""
    return [
        (family, dtype, length, chunks, block)
        for family, dtype, length, block in itertools.product(
            FAMILIES, TOLERANCE, range(1, 2 * B + 2), (128, 3)
        )
        for chunks in sorted({tuple(each) for each in chunkings(length)})
    ]


@cache
def model_of(family: str, dtype: str) -> Any:
    return FAMILIES[family](5, dtype=dtype)


@cache
def oracle(family: str, windows: tuple[Window | None, ...] | None) -> np.ndarray:
    return oracle_logits(model_of(family, "float64"), IDS, windows)


def check(kind: Kind, family: str, dtype: str, length: int, chunks: Sequence[int]) -> None:
    model = model_of(family, dtype)
    held = make_cache(
        kind.name, model.cache_layout, model.prototype_Z,
        context_length_tokens=model.context_length_tokens, **kind.options,
    )  # fmt: skip
    windows = windows_of(held)
    expected_TV = oracle(family, None if windows is None else tuple(windows))[:length]
    done, pieces = 0, []
    for tokens in chunks:
        pieces.append(to_host(advance(model, held, IDS[done : done + tokens], rows="all")))
        done += tokens
    logits_TV = np.concatenate(pieces)
    assert str(logits_TV.dtype) == dtype
    tolerance = kind.loss or TOLERANCE[dtype]
    worst = np.abs(logits_TV - expected_TV).max() / np.abs(expected_TV).max()
    assert worst < tolerance, f"{kind} {family} {dtype} {length} in {list(chunks)}: {worst:.2g}"
    held.release()


def sampled(share: int, rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    every = combinations()
    assert len(every) * len(KINDS) > 500
    for number in rng.choice(len(every), len(every) // share, replace=False):
        yield every[number]


@pytest.mark.parametrize("share", [20, pytest.param(1, marks=pytest.mark.long)], ids=["a twentieth", "all"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_gives_the_logits_of_attention_without_a_cache(kind, share, rng, monkeypatch):
    for family, dtype, length, chunks, block in sampled(share, rng):
        monkeypatch.setattr(haaw.models.attention, "BLOCK_TOKENS", block)
        check(kind, family, dtype, length, chunks)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_mode_none_gives_them_too(family, dtype, chunk):
    model = model_of(family, dtype)

    def make() -> Any:
        return make_cache("none", model.cache_layout, model.prototype_Z, context_length_tokens=128)

    windows = windows_of(make())
    expected_TV = oracle(family, None if windows is None else tuple(windows))
    for length in range(1, len(IDS) + 1):
        logits_BV = advance_without_cache(model, make, IDS[:length], chunk_tokens=chunk)
        worst = np.abs(logits_BV[0] - expected_TV[length - 1]).max() / np.abs(expected_TV).max()
        assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize("wrong", [Window(B - 1), Window(B + 1), Window(B, 1), None])
def test_the_oracle_tells_windows_apart(wrong):
    """Otherwise the comparison above would show nothing."""
    right, other = (oracle("llama", None if each is None else (each, each)) for each in (Window(B), wrong))
    assert np.abs(right - other).max() / np.abs(right).max() > 1e-2
