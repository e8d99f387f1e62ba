"""The pool that paged caches take their blocks from: buffers, free blocks, reference counts, and what can be found.

A block is in use (its count says by how many caches), *kept* (count 0, but its rows can still be found by their
tokens, until the block is needed: the one unused for longest goes first), or free. Tables, counts and the index change
under a lock, one change at a time, so that requests in several threads may share a pool. Knows nothing of requests.
"""

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from haaw.arrays import Array
from haaw.caches.pool_facts import PoolFullError, PoolMemory
from haaw.caches.prefix_sharing import PrefixMatch
from haaw.caches.prefixes import Identity, PrefixIndex
from haaw.caches.protocol import CacheError, CacheLayout
from haaw.caches.writes import kv_allocate_blocks, kv_copy_block, runs
from haaw.ops.recorder import LISTENING, Recorder, declare, emit, scope

NUMBER_BYTES = 8
"""A count or an entry of a table, as the integers of 8 bytes that it would take in an array."""


class Holder(Protocol):
    """What a pool asks of its caches."""

    @property
    def length(self) -> int:
        """Committed positions."""

    def held_blocks(self) -> set[int]:
        """The blocks that the cache has counted itself in."""

    @property
    def table(self) -> tuple[int, ...]:
        """The blocks of its positions, in order."""


class PagePool:
    """`blocks` blocks of `block_size` positions, for keys and values of all layers."""

    def __init__(
        self,
        layout: CacheLayout,
        prototype_Z: Array,
        *,
        blocks: int,
        block_size: int = 16,
        identity: Identity | None = None,
    ) -> None:
        """An empty pool, whose memory is taken when the first cache joins it.

        `prototype_Z` is any array of the library and device to live on. `identity` says what rows depend on beside the
        tokens: model, dtype, positions, adapters; caches may bring their own. Errors: `CacheError` for sizes below 1.
        """
        if blocks < 1 or block_size < 1:
            raise CacheError(
                f"a pool of {blocks} blocks of {block_size} positions holds nothing; both must be 1 or more"
            )
        self.layout = layout
        self.blocks = blocks
        self.block_size = block_size
        self.block_bytes = block_size * layout.bytes_per_position
        self.identity: Identity = dict(identity or {})
        self.buffers: list[tuple[Array, Array]] = []
        self._prototype_Z = prototype_Z
        self._counts = [0] * blocks
        self._free = set(range(blocks))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._index = PrefixIndex(block_size, blocks)
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._joined = 0
        self.lock = threading.RLock()
        self.torn = False
        self.taken_back = 0
        self._knows_contents: weakref.ref[Recorder] | None = None

    @property
    def free_blocks(self) -> int:
        """Blocks that can be had: free ones, and kept ones that would be forgotten."""
        return len(self._free) + len(self._kept)

    @property
    def kept_blocks(self) -> int:
        """Blocks that nobody uses but that can be found again."""
        return len(self._kept)

    @property
    def used_blocks(self) -> int:
        """Blocks that some cache holds."""
        return self.blocks - self.free_blocks

    @property
    def counts(self) -> tuple[int, ...]:
        """How many caches hold each block."""
        return tuple(self._counts)

    def __repr__(self) -> str:
        return (
            f"<PagePool {self.blocks:,} blocks of {self.block_size} positions: {self.used_blocks:,} used, "
            f"{self.kept_blocks:,} kept, {len(self._free):,} free>"
        )

    def mend(self) -> None:
        """Puts right what an interruption left half done; at the beginning of each change, under `lock`.

        Counts anew from the tables of the caches that are alive, and forgets what could be found.
        """
        if not self.torn:
            return
        counts = self._counted()
        self._counts = [counts[block] for block in range(self.blocks)]
        self._index = PrefixIndex(self.block_size, self.blocks)
        self._kept = OrderedDict()
        self._free = {block for block in range(self.blocks) if not counts[block]}
        self.torn = False

    def _counted(self) -> Counter[int]:
        return Counter(block for holder in self._holders for block in holder.held_blocks())

    def join(self, holder: Holder) -> int:
        """Lets a cache take blocks, and numbers it; the first one brings the buffers about."""
        with self.lock:
            if not self.buffers:
                self.buffers = [self._pair(layer) for layer in range(self.layout.layers)]
                listening = LISTENING.get()
                self._knows_contents = None if listening is None else weakref.ref(listening.recorder)
            self._holders.add(holder)
            self._joined += 1
            return self._joined

    def _pair(self, layer: int) -> tuple[Array, Array]:
        with scope(layer=layer):
            return self._buffer(), self._buffer()

    def _buffer(self) -> Array:
        layout = self.layout
        return kv_allocate_blocks(
            layout.kv_heads,
            self.blocks,
            self.block_size,
            layout.head_dim,
            dtype=layout.dtype,
            prototype_Z=self._prototype_Z,
        )

    def leave(self, holder: Holder) -> None:
        """A cache that holds no blocks any more goes."""
        self._holders.discard(holder)

    def blocks_for(self, positions: int) -> int:
        """How many blocks so many positions take."""
        return -(-positions // self.block_size)

    def check_fits_now(self, needed: int) -> None:
        """Errors: `PoolFullError` (not `never`) where fewer than `needed` blocks can be had at the moment."""
        if needed > self.free_blocks:
            self._take_back_dropped()
        if needed > self.free_blocks:
            raise PoolFullError(
                f"{needed:,} more blocks of {self.block_size} positions are needed, and {self.free_blocks:,} of "
                f"{self.blocks:,} are free; release other caches first, or make the pool larger",
                needed_blocks=needed,
                free_blocks=self.free_blocks,
                never=needed > self.blocks,
            )

    def _take_back_dropped(self) -> None:
        """Takes back the blocks of caches that were dropped without being released."""
        counts = self._counted()
        lost = [block for block, count in enumerate(self._counts) for _ in range(count - counts[block])]
        self.taken_back += len(lost)
        self.torn = bool(lost)
        self._give_back(lost)
        self.torn = False

    def take(self, number: int, *, behind: int | None, room: int) -> list[int]:
        """So many blocks with the count 1, which `check_fits_now` has judged; ascending where they can be.

        They follow the block `behind`, or begin where `room` blocks may come to lie behind one another.
        """
        forgotten: list[int] = []
        while len(self._free) < number:
            forgotten.append(self._evict())
        taken: list[int] = []
        while len(taken) < number:
            follows = behind is not None and behind + 1 in self._free
            block = behind + 1 if follows and behind is not None else self._best_start(room - len(taken))
            self._free.remove(block)
            self._counts[block] = 1
            taken.append(block)
            behind = block
        emit("blocks_taken", blocks=taken, evicted=forgotten, free_blocks=self.free_blocks)
        return taken

    def _evict(self) -> int:
        oldest = next(iter(self._kept))
        for block in self._index.remove(oldest, evicted=True):
            if block in self._kept:
                del self._kept[block]
                self._free.add(block)
        return oldest

    def _best_start(self, room: int) -> int:
        """A place in the largest gap that leaves as much of it to the cache before as to this one."""
        start, length = max(runs(sorted(self._free)), key=lambda run: run[1])
        return start if start == 0 else start + max(0, length - room) // 2

    def hold(self, blocks: Iterable[int]) -> None:
        """Counts one more cache for each block."""
        for block in blocks:
            if not self._counts[block]:
                del self._kept[block]
            self._counts[block] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """Counts one cache less for each block; those of nobody are kept if they can be found, or free."""
        self._give_back(list(reversed(blocks)))  # the end of a chain is forgotten before its beginning

    def _give_back(self, blocks: Sequence[int]) -> None:
        freed = []
        for block in blocks:
            self._counts[block] -= 1
            if self._counts[block]:
                continue
            freed.append(block)
            if block in self._index:
                self._kept[block] = None
            else:
                self._free.add(block)
        if freed:
            emit("blocks_freed", blocks=sorted(freed), free_blocks=self.free_blocks)

    def writable(self, block: int) -> bool:
        """Whether a block has one holder and nobody can find it."""
        return self._counts[block] == 1 and block not in self._index

    def copy_block(self, source: int, target: int) -> None:
        """Copy-on-write: the rows of all layers."""
        emit("copy_on_write", source=source, target=target, bytes=self.block_bytes)
        for layer, (keys_KMPC, values_KMPC) in enumerate(self.buffers):
            with scope(layer=layer):
                kv_copy_block(keys_KMPC, source=source, target=target)
                kv_copy_block(values_KMPC, source=source, target=target)

    def find(self, identity: Identity, ids: Sequence[int]) -> tuple[list[int], PrefixMatch]:
        """The blocks that hold the rows of a prompt's beginning, and what is to be said of the look-up."""
        return self._index.look_up(identity, ids)

    def publish(self, identity: Identity, ids: Sequence[int], table: Sequence[int]) -> list[int]:
        """Makes the full blocks of these ids findable; returns the new ones."""
        return self._index.publish(identity, ids, table)

    def withdraw(self, blocks: Iterable[int]) -> None:
        """Makes blocks unfindable, with everything that follows them."""
        for block in blocks:
            if block not in self._index:
                continue
            for each in self._index.remove(block):
                if each in self._kept:
                    del self._kept[each]
                    self._free.add(each)

    def tell_contents(self) -> None:
        """Declares the buffers to whoever listens and does not know what is in them; before they are used."""
        listening = LISTENING.get()
        if listening is None:
            return
        if self._knows_contents is None or self._knows_contents() is not listening.recorder:
            for layer, (keys_KMPC, values_KMPC) in enumerate(self.buffers):
                with scope(layer=layer):
                    declare(f"kv_pool keys of layer {layer}", keys_KMPC)
                    declare(f"kv_pool values of layer {layer}", values_KMPC)
            self._knows_contents = weakref.ref(listening.recorder)

    def note_write(self) -> None:
        """What is written while nobody listens is known to nobody."""
        if LISTENING.get() is None:
            self._knows_contents = None

    def memory(self) -> PoolMemory:
        """Where the bytes are, over all caches."""
        rows: dict[int, int] = {}
        with self.lock:
            tables = [(holder.table, holder.length) for holder in self._holders]
            shared = sum(count > 1 for count in self._counts)
        for table, length in tables:
            for number, block in enumerate(table):
                filled = min(self.block_size, max(0, length - number * self.block_size))
                rows[block] = max(rows.get(block, 0), filled)
        entries = sum(len(table) for table, _ in tables) + self.blocks
        return PoolMemory(
            useful_bytes=sum(rows.values()) * self.layout.bytes_per_position,
            used_bytes=self.used_blocks * self.block_bytes,
            kept_bytes=self.kept_blocks * self.block_bytes,
            allocated_bytes=sum(int(part.nbytes) for pair in self.buffers for part in pair),
            metadata_bytes=entries * NUMBER_BYTES + self._index.metadata_bytes,
            shared_bytes=shared * self.block_bytes,
        )
