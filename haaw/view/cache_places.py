"""Caches that keep positions in several places, followed through a trace: codes and floats, store and buffers."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haaw.view.cache_followers import Follower, Told
from haaw.view.source_rows import CacheLine


class Quantised(Follower):
    """Codes and their ranges for whole groups, and a ring of floats for the latest positions."""

    def __init__(self, cache: Mapping[str, Any]) -> None:
        super().__init__(cache)
        self.bits = int(self.options.get("bits") or 8)
        self.group = int(self.options.get("group") or 32)
        self.quantised = 0
        self.codes = self.ranges = self.code_positions = 0
        self.range_bytes_of_a_group = 0
        self.floats: dict[int | None, deque[tuple[int, int]]] = {}  # rows and bytes of each layer's two rings

    def _take(self, lines: Sequence[CacheLine], told: Told) -> None:
        self.moved = sum(line.op == "kv_move" for line in lines)
        new: dict[int | None, int] = {}
        for line in lines:
            if line.op == "kv_allocate":
                self.floats.setdefault(line.layer, deque(maxlen=2)).append((line.shape[1], line.bytes))
            elif line.op == "kv_allocate_groups" and line.dtype == "|u1":
                self.codes += line.bytes
                new[line.layer] = line.shape[0]
            elif line.op == "kv_allocate_groups":
                self.ranges += line.bytes
                new.setdefault(line.layer, 0)
        self.code_positions += min(new.values(), default=0) * self.group
        for kind, fact in told:
            if kind == "groups_quantised":
                self.quantised = int(fact["stop"])

    def _size(self, length: int) -> dict[str, Any]:
        groups = self.code_positions // self.group
        used = self.quantised // self.group
        elements = self.row // np.dtype(self.cache["dtype"]).itemsize
        in_codes = self.quantised * elements * self.bits // 8
        in_floats = (length - self.quantised) * self.row
        in_ranges = self.ranges // groups * used if groups else 0
        rings = [ring for pair in self.floats.values() for ring in pair]
        floats = sum(size for _, size in rings)
        capacity = self.code_positions + min((rows for rows, _ in rings), default=0)
        parts = [
            {"name": f"codes of {self.bits} bits", "useful": in_codes, "allocated": self.codes},
            {"name": "lowest values and steps", "useful": in_ranges, "allocated": self.ranges},
            {"name": "latest positions, as floats", "useful": in_floats, "allocated": floats},
        ]
        made = self._made(
            length, capacity, in_codes + in_floats, self.codes + self.ranges + floats,
            quantised=self.quantised, parts=parts,
        )  # fmt: skip
        return made | {"metadata_bytes": in_ranges}

    def _same(self) -> dict[str, Any]:
        return {"bits": self.bits, "group": self.group}


class Offloaded(Follower):
    """All rows in a store outside; working buffers for two layers."""

    def __init__(self, cache: Mapping[str, Any]) -> None:
        super().__init__(cache)
        self.store = self.store_positions = 0
        self.place = "file"
        slots = min(2, self.layers)
        self.slots: deque[dict[str, int]] = deque(maxlen=slots)  # buffer of the keys, layer, positions, bytes
        self._keys: CacheLine | None = None
        self.traffic: dict[str, Any] = {}

    def _take(self, lines: Sequence[CacheLine], told: Told) -> None:
        for line in lines:
            if line.op in ("kv_allocate_on_disk", "kv_allocate_on_host"):
                self.store += line.bytes
                self.store_positions += line.shape[2]
                self.place = "file" if line.op == "kv_allocate_on_disk" else "host"
            elif line.op == "kv_allocate":
                self._allocated(line)
            elif line.op == "kv_append" and line.layer is not None:
                for slot in self.slots:
                    if slot["buffer"] == line.buffer:
                        slot["layer"] = line.layer
        stored = [fact for kind, fact in told if kind == "cache_stored"]
        fetched = [fact for kind, fact in told if kind == "cache_fetched"]
        self.traffic = {
            "stored_bytes": sum(fact["bytes"] for fact in stored),
            "fetched_bytes": sum(fact["bytes"] for fact in fetched),
            "waited_ms": round(sum(fact["waited_ms"] for fact in fetched), 3),
        }

    def _allocated(self, line: CacheLine) -> None:
        """Keys, then values of a working buffer; the one that was there longest makes room for it."""
        if self._keys is None:
            self._keys = line
            return
        keys, self._keys = self._keys, None
        size = keys.bytes + line.bytes
        self.slots.append({"buffer": keys.buffer, "layer": -1, "positions": keys.shape[1], "bytes": size})

    def _size(self, length: int) -> dict[str, Any]:
        resident = sum(slot["bytes"] for slot in self.slots)
        useful = length * self.row
        parts = [
            {"name": "store", "useful": useful, "allocated": self.store},
            {
                "name": "working buffers",
                "useful": length * self.row // self.layers * len(self.slots),
                "allocated": resident,
            },
        ]
        working = [
            {name: slot[name] for name in ("layer", "positions", "bytes")}
            for slot in sorted(self.slots, key=lambda slot: slot["buffer"])
        ]
        return self._made(
            length, self.store_positions, useful, self.store + resident,
            parts=parts, working=working, **self.traffic,
        )  # fmt: skip

    def _same(self) -> dict[str, Any]:
        return {"place": self.place}
