"""The reserved cache: room for every position is taken at the start, and no row ever moves."""

from haaw.arrays import Array
from haaw.caches.protocol import CacheError, CacheLayout, CacheMemory, CachePlan, check_rows, check_step
from haaw.caches.writes import kv_allocate, kv_append, kv_move


class StaticCache:
    """One buffer (K, P, C) of keys and one of values a layer, made once, P = `capacity`."""

    kind = "static"

    def __init__(
        self,
        layout: CacheLayout,
        prototype_Z: Array,
        *,
        context_length_tokens: int,
        capacity: int | None = None,
    ) -> None:
        """An empty cache with room for `capacity` positions, or for the whole context."""
        plan = self.plan(layout, context_length_tokens=context_length_tokens, capacity=capacity)
        assert plan.most_positions is not None
        self.layout = layout
        self._prototype_Z = prototype_Z
        self._capacity = plan.most_positions
        self._length = 0
        self._appended = [0] * layout.layers
        self._buffers: list[tuple[Array, Array]] = [
            (self._allocate(), self._allocate()) for _ in range(layout.layers)
        ]

    @classmethod
    def plan(
        cls, layout: CacheLayout, *, context_length_tokens: int, capacity: int | None = None
    ) -> CachePlan:
        """Errors: `CacheError` for a capacity below 1."""
        if capacity is not None and capacity < 1:
            raise CacheError(f"a capacity of {capacity} positions is too small; use 1 or more")
        return CachePlan(most_positions=context_length_tokens if capacity is None else capacity)

    def _allocate(self) -> Array:
        layout = self.layout
        return kv_allocate(
            layout.kv_heads,
            self._capacity,
            layout.head_dim,
            dtype=layout.dtype,
            prototype_Z=self._prototype_Z,
        )

    @property
    def length(self) -> int:
        """Positions held, complete in every layer."""
        return self._length

    @property
    def capacity(self) -> int:
        """Positions reserved; 0 once released."""
        return self._capacity if self._buffers else 0

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Writes rows behind those that the layer has. Errors: `CacheError` where the capacity ends."""
        self._check_usable()
        tokens = check_rows(self.layout, key_TKC, value_TKC)
        start = self._length + self._appended[layer]
        if start + tokens > self._capacity:
            raise CacheError(
                f"{tokens} more positions do not fit behind {start}; this cache has room for {self._capacity}"
            )
        keys_KPC, values_KPC = self._buffers[layer]
        kv_append(keys_KPC, key_TKC, start=start)
        kv_append(values_KPC, value_TKC, start=start)
        self._appended[layer] += tokens

    def _check_usable(self) -> None:
        if not self._buffers:
            raise CacheError("this cache was released; make a new one")

    def view(self, layer: int) -> tuple[Array, Array]:
        """Windows (K, S, C) on the keys and values of one layer, the rows under way included."""
        self._check_usable()
        end = self._length + self._appended[layer]
        keys_KPC, values_KPC = self._buffers[layer]
        return keys_KPC[:, :end], values_KPC[:, :end]

    def commit(self, tokens: int) -> None:
        """Ends a step: `length` grows by `tokens`, which every layer must have been given."""
        check_step(self._appended, tokens)
        self._length += tokens
        self._appended = [0] * self.layout.layers

    def crop_to(self, length: int) -> None:
        """Forgets the positions from `length` on, and rows of an unfinished step; memory stays reserved."""
        if not 0 <= length <= self._length:
            raise CacheError(f"cannot crop to {length} positions; this cache holds {self._length}")
        self._length = length
        self._appended = [0] * self.layout.layers

    def fork(self) -> "StaticCache":
        """An independent copy of the committed rows, with as much room."""
        self._check_usable()
        twin = StaticCache(
            self.layout, self._prototype_Z, context_length_tokens=self._capacity, capacity=self._capacity
        )
        if self._length:
            for own, new in zip(self._buffers, twin._buffers, strict=True):
                kv_move(new[0], own[0][:, : self._length])
                kv_move(new[1], own[1][:, : self._length])
        twin._length = self._length
        return twin

    def release(self) -> None:
        """Drops the buffers."""
        self._buffers = []
        self._appended = [0] * self.layout.layers
        self._length = 0

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Useful bytes are those of the committed positions; allocated are capacity · bytes of a position."""
        a_position = self.layout.position_bytes(layer)
        buffers = self._buffers if layer is None or not self._buffers else [self._buffers[layer]]
        allocated = sum(int(part.nbytes) for pair in buffers for part in pair)
        return CacheMemory(self._length * a_position, allocated, 0, 0)
