"""One class for each kind of cache: follows what a trace says of it, step by step, and adds up its bytes.

Each knows what its cache allocates and when it lets go, and nothing else; the bytes themselves are those of the
recorded allocations. Held against `memory()` of the caches in tests/haaw/view/test_story_cache.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from haaw.view.source_rows import CacheLine

Told = Sequence[tuple[str, Mapping[str, Any]]]
"""Facts of a step: kind, and what it says."""


class Follower:
    """Rows in order, every position once, all in the dtype of the model: dynamic, static, concatenated."""

    def __init__(self, cache: Mapping[str, Any]) -> None:
        self.cache = cache
        self.options: Mapping[str, Any] = cache["options"]
        self.layers: int = cache["layers"]
        self.row: int = cache["bytes_per_position"]
        self.rows: dict[int, int] = {}  # positions that a layer's latest buffers have room for
        self.moved = 0

    def prepare(self, lines: Sequence[CacheLine], told: Told) -> None:
        """What was done before the first step."""
        self._prepare(lines, told)

    def take(self, lines: Sequence[CacheLine], told: Told) -> None:
        """What was done in a step."""
        self._take(lines, told)

    def size(self, length: int) -> dict[str, Any]:
        """The cache after `length` positions were seen, as a `CacheSize` without its step."""
        return self._size(length)

    def same(self) -> dict[str, Any]:
        """What is the same in every step."""
        return self._same()

    def _prepare(self, lines: Sequence[CacheLine], told: Told) -> None:
        pass

    def _take(self, lines: Sequence[CacheLine], told: Told) -> None:
        for line in lines:
            if line.op == "kv_append" and line.layer is not None:
                self.rows[line.layer] = line.shape[1]
        self.moved = sum(line.op == "kv_move" for line in lines)

    def _size(self, length: int) -> dict[str, Any]:
        capacity = min(self.rows.values(), default=0)
        allocated = sum(self.rows.values()) * self.row // self.layers
        return self._made(length, capacity, length * self.row, allocated)

    def _made(self, length: int, capacity: int, useful: int, allocated: int, **more: Any) -> dict[str, Any]:
        return {
            "length": length,
            "capacity": capacity,
            "useful_bytes": useful,
            "allocated_bytes": allocated,
            "metadata_bytes": 0,
            "moved": self.moved,
            **more,
        }

    def _same(self) -> dict[str, Any]:
        return {}


class NoCache(Follower):
    """Every step fills a cache of its own and drops it: what is said is what it had before that."""

    def _take(self, lines: Sequence[CacheLine], told: Told) -> None:
        self.rows = {}
        super()._take(lines, told)


class Paged(Follower):
    """A table of blocks out of a pool."""

    NUMBER_BYTES = 8

    def __init__(self, cache: Mapping[str, Any]) -> None:
        super().__init__(cache)
        self.blocks: list[int] = []
        self.pool = self.block_size = 0

    def _prepare(self, lines: Sequence[CacheLine], told: Told) -> None:
        self._take(lines, told)

    def _take(self, lines: Sequence[CacheLine], told: Told) -> None:
        for line in lines:
            if line.op in ("kv_allocate_blocks", "kv_append_blocks"):
                _, self.pool, self.block_size, _ = line.shape
        for kind, fact in told:
            if kind == "block_table":
                self.blocks = list(fact["blocks"])
        self.moved = sum(line.op == "kv_copy_block" for line in lines)

    def _size(self, length: int) -> dict[str, Any]:
        capacity = len(self.blocks) * self.block_size
        made = self._made(length, capacity, length * self.row, capacity * self.row, blocks=list(self.blocks))
        return made | {"metadata_bytes": len(self.blocks) * self.NUMBER_BYTES}

    def _same(self) -> dict[str, Any]:
        pool_bytes = self.pool * self.block_size * self.row
        return {"block_size": self.block_size, "pool_blocks": self.pool, "pool_bytes": pool_bytes}
