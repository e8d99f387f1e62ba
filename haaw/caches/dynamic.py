"""The growing cache: one buffer of keys and one of values a layer, doubled when they are full.

A buffer is (K, P, C): the rows of one head lie together, so that attention reads them in one go.
"""

from collections.abc import Sequence

from haaw.arrays import Array
from haaw.caches.protocol import CacheError, CacheLayout, CacheMemory, CachePlan, check_rows, check_step
from haaw.caches.writes import kv_allocate, kv_append, kv_move
from haaw.ops.recorder import emit


class DynamicCache:
    """Grows by doubling; every doubling moves the rows once, so that an append costs O(1) on average."""

    kind = "dynamic"

    def __init__(self, layout: CacheLayout, prototype_Z: Array, *, first_capacity: int = 64) -> None:
        """An empty cache; `prototype_Z` is any array of the library and device to live on."""
        self.plan(layout, context_length_tokens=0, first_capacity=first_capacity)
        self.layout = layout
        self.layer_names: Sequence[int] = range(layout.layers)  # others for one that holds some layers only
        self.moves = 0
        self._prototype_Z = prototype_Z
        self._first_capacity = first_capacity
        self._length = 0
        self._appended = [0] * layout.layers
        self._buffers: list[tuple[Array, Array] | None] = [None] * layout.layers
        self._released = False

    @classmethod
    def plan(cls, layout: CacheLayout, *, context_length_tokens: int, first_capacity: int = 64) -> CachePlan:
        """Errors: `CacheError` for a first capacity below 1."""
        if first_capacity < 1:
            raise CacheError(f"a first capacity of {first_capacity} positions is too small; use 1 or more")
        return CachePlan()

    @property
    def length(self) -> int:
        """Positions held, complete in every layer."""
        return self._length

    @property
    def capacity(self) -> int:
        """Positions allocated in the layer that has the fewest."""
        return min(0 if pair is None else pair[0].shape[1] for pair in self._buffers)

    def under_way(self, layer: int) -> int:
        """Rows that a layer was given in the step that is not complete."""
        return self._appended[layer]

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Writes rows behind those that the layer has; grows it first where they do not fit."""
        self._check_usable()
        tokens = check_rows(self.layout, key_TKC, value_TKC)
        start = self._length + self._appended[layer]
        keys_KPC, values_KPC = self._with_room(layer, start, start + tokens)
        kv_append(keys_KPC, key_TKC, start=start)
        kv_append(values_KPC, value_TKC, start=start)
        self._appended[layer] += tokens

    def _check_usable(self) -> None:
        if self._released:
            raise CacheError("this cache was released; make a new one")

    def _with_room(self, layer: int, used: int, needed: int) -> tuple[Array, Array]:
        pair = self._buffers[layer]
        if pair is not None and needed <= pair[0].shape[1]:
            return pair
        capacity = self._first_capacity if pair is None else pair[0].shape[1]
        while capacity < needed:
            capacity *= 2
        return self._moved(layer, used, capacity)

    def _moved(self, layer: int, used: int, capacity: int) -> tuple[Array, Array]:
        """New buffers for a layer, with the rows that are in use."""
        pair = self._buffers[layer]
        keys_KPC, values_KPC = self._allocate(capacity), self._allocate(capacity)
        if pair is not None and used:
            kv_move(keys_KPC, pair[0][:, :used])
            kv_move(values_KPC, pair[1][:, :used])
            self.moves += 1
            emit("cache_grown", layer=self.layer_names[layer], capacity=capacity, moved_positions=used)
        self._buffers[layer] = keys_KPC, values_KPC
        return keys_KPC, values_KPC

    def _allocate(self, positions: int) -> Array:
        layout = self.layout
        return kv_allocate(
            layout.kv_heads, positions, layout.head_dim, dtype=layout.dtype, prototype_Z=self._prototype_Z
        )

    def view(self, layer: int) -> tuple[Array, Array]:
        """Windows (K, S, C) on the keys and values of one layer, the rows under way included."""
        pair = self._buffers[layer]
        if pair is None:
            raise CacheError(f"layer {layer} of this cache is empty or released; append to it first")
        end = self._length + self._appended[layer]
        return pair[0][:, :end], pair[1][:, :end]

    def commit(self, tokens: int) -> None:
        """Ends a step: `length` grows by `tokens`, which every layer must have been given."""
        check_step(self._appended, tokens)
        self._length += tokens
        self._appended = [0] * self.layout.layers

    def crop_to(self, length: int) -> None:
        """Forgets the positions from `length` on, and rows of an unfinished step; memory stays allocated."""
        if not 0 <= length <= self._length:
            raise CacheError(f"cannot crop to {length} positions; this cache holds {self._length}")
        self._length = length
        self._appended = [0] * self.layout.layers

    def fork(self) -> "DynamicCache":
        """An independent copy of the committed rows."""
        self._check_usable()
        twin = self._empty_twin()
        if self._length:
            for layer, pair in enumerate(self._buffers):
                assert pair is not None
                keys_KPC, values_KPC = twin._with_room(layer, 0, self._length)
                kv_move(keys_KPC, pair[0][:, : self._length])
                kv_move(values_KPC, pair[1][:, : self._length])
        twin._length = self._length
        return twin

    def _empty_twin(self) -> "DynamicCache":
        twin = DynamicCache(
            self.layout, self._prototype_Z, first_capacity=self.capacity or self._first_capacity
        )
        twin.layer_names = self.layer_names
        return twin

    def release(self) -> None:
        """Drops the buffers."""
        self._buffers = [None] * self.layout.layers
        self._appended = [0] * self.layout.layers
        self._length = 0
        self._released = True

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Useful bytes are those of the committed positions; a dynamic cache shares nothing."""
        a_position = self.layout.position_bytes(layer)
        buffers = self._buffers if layer is None else [self._buffers[layer]]
        allocated = sum(int(part.nbytes) for pair in buffers if pair is not None for part in pair)
        return CacheMemory(self._length * a_position, allocated, 0, 0)
