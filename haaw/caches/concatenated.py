"""The naive cache: for each new token all rows are copied into an array that is one row longer.

Many a first implementation does this with `concatenate`. It is here to be measured against: n decoded tokens
copy about n² / 2 rows, where the doubling of `dynamic` copies fewer than 2 n.
"""

from haaw.arrays import Array
from haaw.caches.dynamic import DynamicCache
from haaw.caches.protocol import CacheLayout


class ConcatenatedCache(DynamicCache):
    """A dynamic cache that never has room to spare, nor uses any."""

    kind = "concatenated"

    def __init__(self, layout: CacheLayout, prototype_Z: Array) -> None:
        """An empty cache; `prototype_Z` is any array of the library and device to live on."""
        super().__init__(layout, prototype_Z, first_capacity=1)

    def _with_room(self, layer: int, used: int, needed: int) -> tuple[Array, Array]:
        return self._moved(layer, used, needed)

    def _empty_twin(self) -> "ConcatenatedCache":
        return ConcatenatedCache(self.layout, self._prototype_Z)
