"""A sliding cache followed through a trace: which positions its rings hold, and where they lie in them."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from haaw.view.cache_followers import Follower, Told
from haaw.view.source_rows import CacheLine


class Sliding(Follower):
    """A ring in each layer with a window, made before the first step; the other layers grow by doubling."""

    def __init__(self, cache: Mapping[str, Any]) -> None:
        super().__init__(cache)
        self.rings: list[tuple[set[int], int, int]] = []  # buffers, rows without the spare one, bytes
        self.ring_of: dict[int, int] = {}
        self.sinks = int(self.options.get("sinks") or 0)
        self.oldest: dict[int, int] = {}
        self.before = self.length = 0
        self.before_oldest: dict[int, int] = {}
        self.grown: dict[int, deque[int]] = {}  # bytes of the two latest buffers of a layer

    def _prepare(self, lines: Sequence[CacheLine], told: Told) -> None:
        made = [line for line in lines if line.op == "kv_allocate"]
        for keys, values in zip(made[::2], made[1::2], strict=False):
            self.rings.append(({keys.buffer, values.buffer}, keys.shape[1] - 1, keys.bytes + values.bytes))
        if len(self.rings) == self.layers:
            self.ring_of = {layer: layer for layer in range(self.layers)}

    def _take(self, lines: Sequence[CacheLine], told: Told) -> None:
        evicting = [layer for kind, fact in told if kind == "cache_evicted" for layer in fact["layers"]]
        self._find_rings({*evicting, *(line.layer for line in lines if self._is_in_a_ring(line))})
        self.before_oldest = dict(self.oldest)
        for kind, fact in told:
            if kind == "cache_evicted":
                self.oldest |= dict.fromkeys(fact["layers"], fact["last"] + 1)
        self.moved = 0
        for line in lines:
            if line.layer is not None and line.layer not in self.ring_of:
                if line.op == "kv_allocate":
                    self.grown.setdefault(line.layer, deque(maxlen=2)).append(line.bytes)
                    self.rows[line.layer] = line.shape[1]
                self.moved += line.op == "kv_move"

    def _is_in_a_ring(self, line: CacheLine) -> bool:
        return line.op == "kv_append" and any(line.buffer in buffers for buffers, _, _ in self.rings)

    def _find_rings(self, layers: set[int | None]) -> None:
        """Rings were made in the order of their layers, as many as there are layers with a window."""
        if not self.ring_of:
            known = sorted(layer for layer in layers if layer is not None)
            if len(known) == len(self.rings):
                self.ring_of = {layer: number for number, layer in enumerate(known)}

    def _size(self, length: int) -> dict[str, Any]:
        self.before, self.length = self.length, length
        full = self.layers - len(self.rings)
        held = sum(self._held(layer, length) for layer in self.ring_of) + full * length
        allocated = sum(size for _, _, size in self.rings) + sum(map(sum, self.grown.values()))
        rooms = [*(rows for _, rows, _ in self.rings), *(self.rows[layer] for layer in self.grown)]
        return self._made(
            length,
            min(rooms, default=0),
            held * self.row // self.layers,
            allocated,
            oldest=[
                self.oldest.get(layer, self.sinks) if layer in self.ring_of else None
                for layer in range(self.layers)
            ],
            held=[
                self._held(layer, length) if layer in self.ring_of else length for layer in range(self.layers)
            ],
        )

    def _held(self, layer: int, length: int) -> int:
        """The sinks, and what was not evicted behind them."""
        return min(length, self.sinks) + max(length - self.oldest.get(layer, self.sinks), 0)

    def seen(self, layer: int) -> list[int] | None:
        """The position of each row that attention looked at in the step that was taken last; None: all, in order."""
        if layer not in self.ring_of:
            return None
        room = self.rings[self.ring_of[layer]][1]
        tokens, sinks = room - self.sinks, self.sinks
        oldest = self.before_oldest.get(layer, sinks)
        before, end = self.before, self.length
        if end <= room and oldest == sinks:
            return list(range(end))
        if end - before == 1:  # the ring itself, whose rows lie as they were written
            turn = sinks + (end - sinks) % tokens
            return [*range(sinks), *range(end - turn + sinks, end), *range(end - tokens, end - turn + sinks)]
        first = min(max(oldest, before - tokens + 1), max(before, sinks))
        return [*range(min(before, sinks)), *range(first, end)]

    def _same(self) -> dict[str, Any]:
        rooms = [self.rings[self.ring_of[n]][1] if n in self.ring_of else None for n in range(self.layers)]
        return {"rings": rooms, "sinks": self.sinks}
