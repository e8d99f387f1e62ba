"""Where the rows of an offloaded cache lie: on the host while the model is on a device, else in files on the disk."""

from collections.abc import Iterator

import numpy as np

from haaw.arrays import Array, namespace
from haaw.caches.offload_files import in_folder
from haaw.caches.protocol import CacheLayout
from haaw.caches.writes import kv_allocate_on_disk, kv_allocate_on_host, kv_move, kv_store
from haaw.ops.recorder import emit


class Store:
    """Rows of all layers in segments, each as large as all before it together, so that nothing is ever moved.

    A segment is (L, K, P, C): part 2·l has the keys of layer l, part 2·l + 1 the values.
    """

    def __init__(
        self, layout: CacheLayout, prototype_Z: Array, *, first_capacity: int, folder: str | None
    ) -> None:
        """Nothing yet."""
        self.segments: list[Array] = []
        self._layout = layout
        self._on_disk = namespace(prototype_Z) is np
        self._first_capacity = first_capacity
        self._folder = folder

    @property
    def capacity(self) -> int:
        """Positions that there is room for."""
        return sum(int(segment_LKPC.shape[2]) for segment_LKPC in self.segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(int(segment_LKPC.nbytes) for segment_LKPC in self.segments)

    def reserve(self, positions: int) -> None:
        """Makes room for so many positions. Errors: `CacheError` where the disk has none, and nothing is changed."""
        capacity, layout = self.capacity, self._layout
        if positions <= capacity:
            return
        more = max(positions - capacity, capacity, self._first_capacity)
        sizes = (2 * layout.layers, layout.kv_heads, more, layout.head_dim)
        if self._on_disk:
            with in_folder(self._folder):
                segment_LKPC = kv_allocate_on_disk(*sizes, dtype=layout.dtype)
        else:
            segment_LKPC = kv_allocate_on_host(*sizes, dtype=layout.dtype)
        self.segments.append(segment_LKPC)
        emit("store_grown", capacity=capacity + more, bytes=self.nbytes)

    def windows(self, layer: int, start: int, stop: int) -> Iterator[tuple[int, int, Array, Array]]:
        """The positions start … stop - 1 of a layer, segment by segment.

        Each time: the first position, the one behind the last, keys (K, S, C) and values.
        """
        begin = 0
        for segment_LKPC in self.segments:
            end = begin + int(segment_LKPC.shape[2])
            first, last = max(start, begin), min(stop, end)
            if first < last:
                own = slice(first - begin, last - begin)
                yield first, last, segment_LKPC[2 * layer][:, own], segment_LKPC[2 * layer + 1][:, own]
            begin = end

    def write(self, layer: int, key_TKC: Array, value_TKC: Array, start: int) -> None:
        """Writes out rows, which there must be room for."""
        for first, last, keys_KPC, values_KPC in self.windows(layer, start, start + key_TKC.shape[0]):
            kv_store(keys_KPC, key_TKC[first - start : last - start], start=0)
            kv_store(values_KPC, value_TKC[first - start : last - start], start=0)

    def copy_to(self, twin: "Store", length: int) -> None:
        """Gives an empty store the first `length` positions."""
        twin.reserve(length)
        for layer in range(self._layout.layers):
            for first, last, keys_KSC, values_KSC in self.windows(layer, 0, length):
                kv_move(twin.segments[0][2 * layer][:, first:last], keys_KSC)
                kv_move(twin.segments[0][2 * layer + 1][:, first:last], values_KSC)
