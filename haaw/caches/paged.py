"""The paged cache: a table of blocks out of a pool that many sequences share.

A block is shared by forks and by requests with the same beginning, and copied before one of them writes to it. Rows
are never moved otherwise. Source: Kwon et al. 2023, arXiv:2309.06180, section 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from haaw.arrays import Array
from haaw.caches.page_pool import NUMBER_BYTES, PagePool
from haaw.caches.pool_facts import check_ever_fits
from haaw.caches.prefix_sharing import PrefixMatch
from haaw.caches.protocol import CacheError, CacheLayout, CacheMemory, CachePlan, check_rows, check_step
from haaw.caches.writes import kv_append_blocks, kv_gather
from haaw.ops.recorder import emit

BLOCK_SIZE = 16


class PagedCache:
    """Positions 16·i … 16·i + 15 lie in the block `table[i]` of the pool (with blocks of 16).

    Attention reads a window on the pool where the table is one ascending run, as it is for a sequence that has a
    pool to itself; otherwise the rows are gathered, which copies them in every step.
    """

    kind = "paged"

    def __init__(
        self,
        layout: CacheLayout,
        prototype_Z: Array,
        *,
        context_length_tokens: int | None = None,
        pool: PagePool | None = None,
        block_size: int | None = None,
        blocks: int | None = None,
        most_tokens: int | None = None,
        identity: Mapping[str, str] | None = None,
        salt: str | None = None,
    ) -> None:
        """An empty cache on `pool`, or on a pool of its own.

        A pool of its own has `blocks` blocks of `block_size` positions (16), by default enough for `most_tokens`, the
        most that the request can need, or else for the context. `identity` and `salt` say, beside the tokens, what must
        be the same for rows to be reused. Errors: `CacheError` for sizes that cannot be, `PoolFullError`
        where the whole pool is too small for `most_tokens`.
        """
        self.plan(
            layout,
            context_length_tokens=context_length_tokens,
            pool=pool,
            block_size=block_size,
            blocks=blocks,
            most_tokens=most_tokens,
        )
        if pool is None:
            size = block_size or BLOCK_SIZE
            count = blocks or _blocks_of_its_own(most_tokens, context_length_tokens, size)
            pool = PagePool(layout, prototype_Z, blocks=count, block_size=size)
        self.layout = layout
        self.pool = pool
        self.identity = dict(pool.identity if identity is None else identity)
        if salt is not None:
            self.identity["salt"] = salt
        self.prefix_match: PrefixMatch | None = None
        self._prototype_Z = prototype_Z
        self._most_blocks = pool.blocks_for(most_tokens or 0)
        self._length = 0
        self._appended = [0] * layout.layers
        self._table: list[int] = []
        self._before: tuple[int, ...] | None = None  # the table before the step under way, if that changed it
        self._replaced: list[int] = []  # shared blocks that were copied in it, held until it is committed
        self._published: list[int] = []
        self._released = False
        self.number = pool.join(self)

    @classmethod
    def plan(
        cls,
        layout: CacheLayout,
        *,
        context_length_tokens: int | None = None,
        pool: PagePool | None = None,
        block_size: int | None = None,
        blocks: int | None = None,
        most_tokens: int | None = None,
        identity: Mapping[str, str] | None = None,
        salt: str | None = None,
    ) -> CachePlan:
        """Errors: as for the constructor."""
        for name, value in (("block_size", block_size), ("blocks", blocks), ("most_tokens", most_tokens)):
            if value is not None and value < 1:
                raise CacheError(f"{name} is {value}; it must be 1 or more")
        if pool is None:
            size = block_size or BLOCK_SIZE
            count = blocks or _blocks_of_its_own(most_tokens, context_length_tokens, size)
            check_ever_fits(most_tokens or 1, blocks=count, block_size=size)
            return CachePlan(most_positions=count * size)
        if block_size is not None or blocks is not None:
            raise CacheError(
                "block_size and blocks are the pool's own; give them to the pool, or give no pool"
            )
        if pool.layout != layout:
            raise CacheError(
                f"the pool is made for {pool.layout}, and the model needs {layout}; make another pool"
            )
        check_ever_fits(most_tokens or 1, blocks=pool.blocks, block_size=pool.block_size)
        return CachePlan(most_positions=pool.blocks * pool.block_size)

    @property
    def length(self) -> int:
        """Positions held, complete in every layer."""
        return self._length

    @property
    def capacity(self) -> int:
        """Positions that the blocks of the table have room for."""
        return len(self._table) * self.pool.block_size

    @property
    def table(self) -> tuple[int, ...]:
        """The blocks of the positions, in order."""
        return tuple(self._table)

    def held_blocks(self) -> set[int]:
        """The blocks that this cache is counted in: those of its table, and those that the step under way replaced."""
        return {*self._table, *self._replaced}

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Writes rows behind those that the layer has; takes blocks, and copies shared ones, where needed.

        Errors: `PoolFullError` where the pool has too few blocks at the moment.
        """
        self._check_usable()
        tokens = check_rows(self.layout, key_TKC, value_TKC)
        start = self._length + self._appended[layer]
        first, behind = start // self.pool.block_size, self.pool.blocks_for(start + tokens)
        self.pool.tell_contents()
        self.pool.note_write()
        self._make_room(first, behind)
        blocks, slot = tuple(self._table[first:behind]), start % self.pool.block_size
        keys_KMPC, values_KMPC = self.pool.buffers[layer]
        kv_append_blocks(keys_KMPC, key_TKC, blocks=blocks, start=slot)
        kv_append_blocks(values_KMPC, value_TKC, blocks=blocks, start=slot)
        self._appended[layer] += tokens

    def _check_usable(self) -> None:
        if self._released:
            raise CacheError("this cache was released; make a new one")

    def _make_room(self, first: int, behind: int) -> None:
        """Sees to it that the table has the entries first … behind - 1, and that their blocks may be written to."""
        pool, table = self.pool, self._table
        if behind <= len(table) and all(map(pool.writable, table[first:behind])):
            return
        with pool.lock:
            pool.mend()
            more = max(0, behind - len(table))
            shared = self._to_copy(first, behind, more)
            pool.check_fits_now(more + len(shared))
            pool.torn = True
            if self._before is None:
                self._before = tuple(table)
            last = table[-1] if table and not shared else None
            new = pool.take(
                more + len(shared), behind=last, room=max(more + len(shared), self._most_blocks - len(table))
            )
            for number, copy in zip(shared, new, strict=False):
                pool.copy_block(table[number], copy)
                self._replaced.append(table[number])
                table[number] = copy
            table.extend(new[len(shared) :])
            pool.torn = False
        self._tell_table()

    def _to_copy(self, first: int, behind: int, more: int) -> list[int]:
        """Which entries of the table have blocks that must be copied before they are written to.

        Where the pool has no room for that, blocks of this cache alone can be found no longer, and are written to.
        """
        pool, table = self.pool, self._table
        shared = [
            number for number in range(first, min(behind, len(table))) if not pool.writable(table[number])
        ]
        with_others = [number for number in shared if pool.counts[table[number]] > 1]
        if more + len(with_others) <= pool.free_blocks < more + len(shared):
            pool.withdraw(table[number] for number in shared if number not in with_others)
            return with_others
        return shared

    def _tell_table(self) -> None:
        emit("block_table", cache=self.number, blocks=list(self._table))

    def view(self, layer: int) -> tuple[Array, Array]:
        """Keys and values (K, S, C) of one layer, the rows under way included: windows where they can be."""
        end = self._length + self._appended[layer]
        if self._released or not end:
            raise CacheError(f"layer {layer} of this cache is empty or released; append to it first")
        self.pool.tell_contents()
        blocks = tuple(self._table[: self.pool.blocks_for(end)])
        keys_KMPC, values_KMPC = self.pool.buffers[layer]
        if blocks != tuple(range(blocks[0], blocks[0] + len(blocks))):  # in pieces
            keys_KSC = kv_gather(keys_KMPC, blocks=blocks, length=end)
            values_KSC = kv_gather(values_KMPC, blocks=blocks, length=end)
            return keys_KSC, values_KSC
        slot = blocks[0] * self.pool.block_size
        rows = self.layout.kv_heads, -1, self.layout.head_dim  # blocks lie behind one another
        return (
            keys_KMPC.reshape(rows)[:, slot : slot + end],
            values_KMPC.reshape(rows)[:, slot : slot + end],
        )

    def commit(self, tokens: int) -> None:
        """Ends a step: `length` grows by `tokens`, which every layer must have been given."""
        check_step(self._appended, tokens)
        self._length += tokens
        self._appended = [0] * self.layout.layers
        self._settle(self._table)

    def crop_to(self, length: int) -> None:
        """Forgets the positions from `length` on, and rows of an unfinished step; blocks go back to the pool."""
        if not 0 <= length <= self._length:
            raise CacheError(f"cannot crop to {length} positions; this cache holds {self._length}")
        self._length = length
        self._appended = [0] * self.layout.layers
        self._settle(self._committed_table()[: self.pool.blocks_for(length)])

    def _committed_table(self) -> Sequence[int]:
        return self._table if self._before is None else self._before

    def _settle(self, table: Sequence[int]) -> None:
        """Ends a step with `table`; every other block that is held goes back to the pool."""
        kept = set(table)
        if self._before is None and len(kept) == len(self._table):
            return
        with self.pool.lock:
            self.pool.mend()
            self.pool.torn = True
            given_back = [block for block in (*self._replaced, *self._table) if block not in kept]
            changed = list(table) != self._table
            self._table, self._replaced, self._before = list(table), [], None
            self.pool.drop(given_back)
            self.pool.torn = False
        if changed:
            self._tell_table()

    def fork(self) -> "PagedCache":
        """A cache with the same committed blocks; whichever writes to a shared one first copies it."""
        self._check_usable()
        twin = PagedCache(self.layout, self._prototype_Z, pool=self.pool, identity=self.identity)
        with self.pool.lock:
            self.pool.mend()
            self.pool.torn = True
            twin._table = list(self._committed_table()[: self.pool.blocks_for(self._length)])
            self.pool.hold(twin._table)
            self.pool.torn = False
        twin._length = self._length
        twin._tell_table()
        return twin

    def release(self) -> None:
        """Gives all blocks back to the pool; those that were published can be found until they are needed."""
        self._length = 0
        self._appended = [0] * self.layout.layers
        self._settle(())
        self._released = True
        self.pool.leave(self)

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Of this cache: `allocated_bytes` are its blocks, `shared_bytes` those of them that others hold too.

        The buffers belong to the pool; see `PagePool.memory`.
        """
        counts, size = self.pool.counts, self.pool.block_bytes
        shared = sum(counts[block] > 1 for block in self._table)
        useful = self._length * self.layout.position_bytes(layer)
        if layer is not None:  # the table serves all layers
            a_layer = size // self.layout.layers
            return CacheMemory(useful, len(self._table) * a_layer, 0, shared * a_layer)
        return CacheMemory(
            useful_bytes=useful,
            allocated_bytes=len(self._table) * size,
            metadata_bytes=len(self._table) * NUMBER_BYTES,
            shared_bytes=shared * size,
        )

    def reuse_prefix(self, ids: Sequence[int]) -> int:
        """Takes over blocks that hold the first of these ids, and says how many ids: never all of them.

        What was found, and why not more, is in `prefix_match` and told as an event. Errors: `CacheError` for a
        cache that holds something, `PoolFullError` where the pool cannot hold the rest of the prompt.
        """
        self._check_usable()
        if self._length or self._table:
            raise CacheError(
                f"a prefix is looked for at the start; this cache holds {self._length} positions"
            )
        pool = self.pool
        check_ever_fits(len(ids), blocks=pool.blocks, block_size=pool.block_size)
        with pool.lock:
            pool.mend()
            blocks, match = pool.find(self.identity, ids)
            pool.check_fits_now(pool.blocks_for(len(ids)) - sum(pool.counts[block] > 0 for block in blocks))
            pool.torn = True
            self._table = blocks
            pool.hold(blocks)
            self._length = match.reused_tokens
            pool.torn = False
        self.prefix_match = match
        emit("prefix_lookup", cache=self.number, **{**asdict(match), "differs": list(match.differs)})
        if blocks:
            self._tell_table()
        return match.reused_tokens

    def publish_prefix(self, ids: Sequence[int]) -> None:
        """Lets others find the full blocks of the rows of `ids`, which this cache was given from its start on.

        For rows that are known to be sound, after a step: rows of damaged scores must not be found.
        """
        self._check_usable()
        with self.pool.lock:
            self.pool.mend()
            self.pool.torn = True
            new = self.pool.publish(self.identity, ids[: self._length], self._committed_table())
            self._published.extend(new)
            self.pool.torn = False
        if new:
            emit("prefix_published", cache=self.number, blocks=new)

    def withdraw_prefix(self) -> None:
        """Takes back what this cache has published, with everything that follows it."""
        with self.pool.lock:
            self.pool.mend()
            self.pool.torn = True
            self.pool.withdraw(self._published)
            self._published = []
            self.pool.torn = False


def _blocks_of_its_own(most_tokens: int | None, context_length_tokens: int | None, size: int) -> int:
    positions = most_tokens or context_length_tokens
    if positions is None:
        raise CacheError("a pool of its own needs a size: give blocks, most_tokens or context_length_tokens")
    return -(-positions // size)
