"""What every kind of KV cache offers. Knows layers, rows and bytes; nothing of tokens, models or requests.

Three lengths are kept apart: `length` (positions that are complete in every layer), the rows already
appended in the step that is under way, and `capacity` (positions that memory is allocated for).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from haaw.arrays import Array
from haaw.errors import HaawError


class CacheError(HaawError):
    """A cache cannot do what was asked; nothing was changed."""


@dataclass(frozen=True)
class CacheLayout:
    """What a model's cache must hold for each position.

    `windows`: for each layer, how many keys a token sees, itself included (None: all); None for a model whose
    layers all see everything.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    windows: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        windows = self.windows
        if windows is not None and (
            len(windows) != self.layers or any(window is not None and window < 1 for window in windows)
        ):
            raise CacheError(
                f"the windows {windows} do not fit {self.layers} layers; each layer needs one of 1 or more, or None"
            )

    @property
    def bytes_per_position(self) -> int:
        """Keys and values of all layers: 2 · layers · kv_heads · head_dim · bytes of one element."""
        return 2 * self.layers * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize

    def position_bytes(self, layer: int | None) -> int:
        """Bytes of a position in one layer, or in all (None). Errors: `CacheError` for a layer that is not there."""
        if layer is None:
            return self.bytes_per_position
        if not 0 <= layer < self.layers:
            raise CacheError(f"there is no layer {layer}; this cache has the layers 0 to {self.layers - 1}")
        return self.bytes_per_position // self.layers


@dataclass(frozen=True)
class CacheMemory:
    """Where the bytes of a cache are. `allocated_bytes` equals the arrays' own `nbytes`."""

    useful_bytes: int
    allocated_bytes: int
    metadata_bytes: int
    shared_bytes: int

    @property
    def waste_bytes(self) -> int:
        """Allocated bytes that hold neither rows nor what describes them."""
        return max(self.allocated_bytes - self.useful_bytes - self.metadata_bytes, 0)

    @property
    def utilisation(self) -> float:
        """The useful share of the allocated bytes, 0 to 1; 1 where nothing is allocated."""
        return self.useful_bytes / self.allocated_bytes if self.allocated_bytes else 1.0


@dataclass(frozen=True)
class Window:
    """A token sees the last `tokens` keys, itself included, and always the first `sinks` positions."""

    tokens: int
    sinks: int = 0


@dataclass(frozen=True)
class CachePlan:
    """What is known of a cache before it is made: the most positions it can hold (None: as many as come), remarks."""

    most_positions: int | None = None
    notes: tuple[str, ...] = ()


class KVCache(Protocol):
    """Keys and values of the tokens that one sequence has seen."""

    kind: str
    layout: CacheLayout

    @property
    def length(self) -> int:
        """Positions held, complete in every layer; the next token's position."""

    @property
    def capacity(self) -> int:
        """Positions that memory is allocated for."""

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Writes the rows of the step that is under way into one layer, behind `length`."""

    def view(self, layer: int) -> tuple[Array, Array]:
        """Keys and values (K, S, C) of one layer for attention, the rows under way included."""

    def commit(self, tokens: int) -> None:
        """Makes the step that is under way part of the cache: `length` grows by `tokens`.

        Errors: `CacheError` when some layer has not had exactly that many rows appended.
        """

    def crop_to(self, length: int) -> None:
        """Forgets every position from `length` on, and rows of an unfinished step."""

    def fork(self) -> "KVCache":
        """A cache with the same contents that can go its own way."""

    def release(self) -> None:
        """Gives the memory back; the cache cannot be used any more."""

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Useful, allocated, metadata and shared bytes, of all layers or of one.

        What serves all layers at once (a block table, working buffers) is in the whole and in no single layer.
        """


def check_step(appended: Sequence[int], tokens: int) -> None:
    """Errors: `CacheError` where a step of `tokens` tokens ends and some layer was not given exactly that many rows."""
    if any(rows != tokens for rows in appended):
        raise CacheError(f"a step of {tokens} tokens ends, but the layers were given {list(appended)} rows")


def check_rows(layout: CacheLayout, key_TKC: Array, value_TKC: Array) -> int:
    """How many positions these rows are. Errors: `CacheError` for shapes that would be spread over others."""
    rows = (key_TKC.shape[0], layout.kv_heads, layout.head_dim)
    if key_TKC.shape != rows or value_TKC.shape != rows:  # one head would be spread over all of them
        raise CacheError(f"rows of the shapes {key_TKC.shape} and {value_TKC.shape} do not fit; {rows} would")
    return int(rows[0])


def forgets(cache: KVCache) -> bool:
    """Whether a cache evicts positions; its members `windows` and `positions(layer, more)` then say which it has."""
    return hasattr(cache, "windows")


def windows_of(cache: KVCache) -> Sequence[Window | None] | None:
    """How far the tokens of each layer see; None where all of them see everything.

    A cache that forgets has windows of its own; for any other those of the model count.
    """
    if forgets(cache):
        own: Sequence[Window | None] = cache.windows  # type: ignore[attr-defined]
        return own
    if cache.layout.windows is None:
        return None
    return [None if tokens is None else Window(tokens) for tokens in cache.layout.windows]


def positions_of(cache: KVCache, layer: int, *, more: int = 0) -> Sequence[int]:
    """The position of each row of a layer's view, once `more` rows are appended: row s holds position s,
    but in a cache that forgets; ascending but in a full ring.
    """
    if forgets(cache):
        positions: Sequence[int] = cache.positions(layer, more)  # type: ignore[attr-defined]
        return positions
    return range(cache.length + more)
