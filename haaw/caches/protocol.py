"""What every kind of KV cache offers. Knows layers, rows and bytes; nothing of tokens, models or requests.

Three lengths are kept apart: `length` (positions that are complete in every layer), the rows already
appended in the step that is under way, and `capacity` (positions that memory is allocated for).
"""

from dataclasses import dataclass
from typing import Protocol

from haaw.arrays import Array
from haaw.errors import HaawError


class CacheError(HaawError):
    """A cache cannot do what was asked; nothing was changed."""


@dataclass(frozen=True)
class CacheLayout:
    """What a model's cache must hold for each position."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def bytes_per_position(self) -> int:
        """Keys and values of all layers: 2 · layers · kv_heads · head_dim · bytes of one element."""
        import numpy as np

        return 2 * self.layers * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class CacheMemory:
    """Where the bytes of a cache are. `allocated_bytes` equals the arrays' own `nbytes`."""

    useful_bytes: int
    allocated_bytes: int
    metadata_bytes: int
    shared_bytes: int


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

    def memory(self) -> CacheMemory:
        """Useful, allocated, metadata and shared bytes."""
