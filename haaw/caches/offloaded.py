"""The cache that lives elsewhere: on the host while the model is on a device, else in a file on the disk.

Two working buffers hold the layer that computes and the one that comes next, which is brought in meanwhile.
After Sheng et al. 2023 (FlexGen), arXiv:2303.06865.
"""

from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns

from haaw.arrays import Array, namespace
from haaw.caches.movers import Mover, mover_for
from haaw.caches.offload_store import Store
from haaw.caches.protocol import CacheError, CacheLayout, CacheMemory, CachePlan, check_rows, check_step
from haaw.caches.writes import kv_allocate, kv_append, kv_fetch
from haaw.ops.recorder import emit

NOBODY = -1


@dataclass
class _Slot:
    """Working buffers for one layer at a time; the first `valid` positions of `layer` are in them."""

    layer: int = NOBODY
    valid: int = 0
    keys_KPC: Array | None = None
    values_KPC: Array | None = None

    @property
    def positions(self) -> int:
        return 0 if self.keys_KPC is None else int(self.keys_KPC.shape[1])


@dataclass
class _Coming:
    """A layer on its way into a slot."""

    slot: _Slot
    layer: int
    first: int
    stop: int
    took_ns: int = 0


class OffloadedCache:
    """All rows in a store outside; resident are two layers at most, however many the model has.

    A step writes out its own rows only, and brings in the rows in use of every layer: what is saved in memory
    is paid for in time. The system may keep pages of the file in memory while nothing else needs the room.

    A view is good until rows of another layer are appended or looked at.
    """

    kind = "offloaded"

    def __init__(
        self,
        layout: CacheLayout,
        prototype_Z: Array,
        *,
        first_capacity: int = 64,
        folder: str | None = None,
        mover: Mover | None = None,
    ) -> None:
        """An empty cache. `folder`: where its file is to lie (None: where the system keeps temporary files).

        A folder that is itself kept in memory (tmpfs) saves none.
        """
        self.plan(layout, context_length_tokens=0, first_capacity=first_capacity)
        self.layout = layout
        self._prototype_Z = prototype_Z
        self._first_capacity = first_capacity
        self._folder = folder
        self._mover = mover or mover_for(namespace(prototype_Z))
        self._length = 0
        self._appended = [0] * layout.layers
        self._store = Store(layout, prototype_Z, first_capacity=first_capacity, folder=folder)
        self._slots = (_Slot(), _Slot())
        self._latest = 0
        self._coming: _Coming | None = None
        self._released = False

    @classmethod
    def plan(
        cls,
        layout: CacheLayout,
        *,
        context_length_tokens: int,
        first_capacity: int = 64,
        folder: str | None = None,
        mover: Mover | None = None,
    ) -> CachePlan:
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
        """Positions that the store has room for."""
        return self._store.capacity

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of the store, which are on the disk or on the host."""
        return self._store.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the working buffers, which are where the model computes."""
        buffers = [part for slot in self._slots for part in (slot.keys_KPC, slot.values_KPC)]
        return sum(int(part.nbytes) for part in buffers if part is not None)

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Writes rows behind those that the layer has, into its working buffers and into the store.

        Then the next layer is sent for. Errors: `CacheError` where the store cannot grow.
        """
        self._check_usable()
        tokens = check_rows(self.layout, key_TKC, value_TKC)
        start = self._length + self._appended[layer]
        self._settle()
        self._store.reserve(start + tokens)
        slot = self._brought(layer, start)
        kv_append(slot.keys_KPC, key_TKC, start=start)
        kv_append(slot.values_KPC, value_TKC, start=start)
        began_ns = perf_counter_ns()
        self._store.write(layer, key_TKC, value_TKC, start)
        emit(
            "cache_stored",
            layer=layer,
            positions=tokens,
            bytes=self._bytes(tokens),
            took_ms=_milliseconds(perf_counter_ns() - began_ns),
        )
        slot.valid = start + tokens
        self._appended[layer] += tokens
        self._send_for((layer + 1) % self.layout.layers)

    def _check_usable(self) -> None:
        if self._released:
            raise CacheError("this cache was released; make a new one")

    def view(self, layer: int) -> tuple[Array, Array]:
        """Windows (K, S, C) on the working buffers of one layer, the rows under way included."""
        self._check_usable()
        if not self._store.segments:
            raise CacheError(f"layer {layer} of this cache is empty; append to it first")
        end = self._length + self._appended[layer]
        slot = self._slots[self._latest]
        if slot.layer != layer or slot.valid < end:  # else what comes next may go on coming
            self._settle()
            slot = self._brought(layer, end)
        assert slot.keys_KPC is not None
        assert slot.values_KPC is not None
        return slot.keys_KPC[:, :end], slot.values_KPC[:, :end]

    def _brought(self, layer: int, stop: int) -> _Slot:
        """The slot with the first `stop` positions of a layer in it; they are fetched now if they are not there."""
        self._latest = next((n for n in (0, 1) if self._slots[n].layer == layer), 1 - self._latest)
        slot = self._slots[self._latest]
        coming = self._prepare(slot, layer, stop)
        if coming is not None:
            self._copy(coming)
            slot.valid = stop
            self._tell(coming, coming.took_ns, "when needed")
        return slot

    def _send_for(self, layer: int) -> None:
        """Begins to bring in all rows of a layer that there are, into the slot that nobody reads."""
        spare = self._slots[1 - self._latest]
        if self._slots[self._latest].layer == layer:  # the only layer
            return
        coming = self._prepare(spare, layer, self._length + self._appended[layer])
        if coming is None:
            return
        self._coming = coming
        read = self._store.windows(layer, coming.first, coming.stop)
        windows = [part for _, _, keys_KSC, values_KSC in read for part in (keys_KSC, values_KSC)]
        try:
            self._mover.begin(partial(self._copy, coming), windows)
        except BaseException:
            self._forget_coming()
            raise

    def _prepare(self, slot: _Slot, layer: int, stop: int) -> _Coming | None:
        """Gives a slot to a layer; what must be fetched then, if anything."""
        if slot.layer != layer or slot.positions < self.capacity:
            slot.valid = 0
        slot.layer = layer
        if slot.positions < self.capacity:
            slot.keys_KPC, slot.values_KPC = self._allocate(), self._allocate()
        return _Coming(slot, layer, slot.valid, stop) if slot.valid < stop else None

    def _allocate(self) -> Array:
        layout = self.layout
        return kv_allocate(
            layout.kv_heads, self.capacity, layout.head_dim, dtype=layout.dtype, prototype_Z=self._prototype_Z
        )

    def _copy(self, coming: _Coming) -> None:
        began_ns = perf_counter_ns()
        windows = self._store.windows(coming.layer, coming.first, coming.stop)
        for first, _, keys_KSC, values_KSC in windows:
            kv_fetch(coming.slot.keys_KPC, keys_KSC, start=first)
            kv_fetch(coming.slot.values_KPC, values_KSC, start=first)
        coming.took_ns = perf_counter_ns() - began_ns

    def _settle(self) -> None:
        """Waits for the layer that was sent for. Nobody may read its slot, or write to the store, before."""
        coming = self._coming
        if coming is None:
            return
        began_ns = perf_counter_ns()
        try:
            self._mover.settle()
        except Exception:
            self._coming, coming.slot.layer = None, NOBODY
            raise
        coming.slot.valid = coming.stop
        self._coming = None
        self._tell(coming, perf_counter_ns() - began_ns, "one layer ahead")

    def _tell(self, coming: _Coming, waited_ns: int, when: str) -> None:
        positions = coming.stop - coming.first
        emit(
            "cache_fetched",
            layer=coming.layer,
            positions=positions,
            bytes=self._bytes(positions),
            took_ms=_milliseconds(coming.took_ns),
            waited_ms=_milliseconds(waited_ns),
            when=when,
        )

    def _bytes(self, positions: int) -> int:
        return positions * self.layout.bytes_per_position // self.layout.layers

    def commit(self, tokens: int) -> None:
        """Ends a step: `length` grows by `tokens`, which every layer must have been given."""
        check_step(self._appended, tokens)
        self._length += tokens
        self._appended = [0] * self.layout.layers

    def crop_to(self, length: int) -> None:
        """Forgets the positions from `length` on, and rows of an unfinished step; memory stays allocated."""
        if not 0 <= length <= self._length:
            raise CacheError(f"cannot crop to {length} positions; this cache holds {self._length}")
        self._forget_coming()
        for slot in self._slots:
            slot.valid = min(slot.valid, length)
        self._length = length
        self._appended = [0] * self.layout.layers

    def _forget_coming(self) -> None:
        self._mover.drop()
        if self._coming is not None:
            self._coming.slot.layer = NOBODY
            self._coming = None

    def fork(self) -> "OffloadedCache":
        """A copy of the committed rows with a store of its own."""
        self._check_usable()
        twin = OffloadedCache(
            self.layout, self._prototype_Z, first_capacity=self._first_capacity, folder=self._folder
        )
        self._store.copy_to(twin._store, self._length)
        twin._length = self._length
        return twin

    def release(self) -> None:
        """Drops the working buffers and the store; the file goes with it."""
        self._forget_coming()
        self._slots = (_Slot(), _Slot())
        self._store.segments = []
        self._appended = [0] * self.layout.layers
        self._length = 0
        self._released = True

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Useful bytes are those of the committed positions, counted once: in the store.

        Allocated are store and working buffers together: `offloaded_bytes` + `resident_bytes`.
        """
        useful = self._length * self.layout.position_bytes(layer)
        if layer is not None:  # the working buffers serve all layers in turn
            return CacheMemory(useful, self.offloaded_bytes // self.layout.layers, 0, 0)
        return CacheMemory(useful, self.offloaded_bytes + self.resident_bytes, 0, 0)


def _milliseconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
