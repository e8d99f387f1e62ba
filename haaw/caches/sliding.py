"""The sliding cache: each layer with a window keeps a ring of its last positions, the others keep everything.

What falls out of the window is gone. That is exact for a model which looks no further, layer by layer, and an
approximation for any other (Beltagy et al. 2020, arXiv:2004.05150; sinks: Xiao et al. 2023, arXiv:2309.17453).
"""

from collections.abc import Callable, Sequence

from haaw.arrays import Array
from haaw.caches.dynamic import DynamicCache
from haaw.caches.protocol import (
    CacheError,
    CacheLayout,
    CacheMemory,
    CachePlan,
    Window,
    check_rows,
    check_step,
)
from haaw.caches.ring import Ring
from haaw.ops.recorder import emit

DEFAULT_WINDOW = 256
"""Positions kept of a model that has no window of its own, where no other number is asked for."""


class SlidingCache:
    """Rings of `window` positions, and as many `sinks` at the front that stay; full layers grow beside them.

    A view's rows are in order of position, except in a full ring, where they lie as they were written.
    """

    kind = "sliding"

    def __init__(
        self,
        layout: CacheLayout,
        prototype_Z: Array,
        *,
        context_length_tokens: int,
        window: int | None = None,
        sinks: int = 0,
    ) -> None:
        """An empty cache. Without `window` each layer has the model's own; a model without any gets 256."""
        self.layout = layout
        self.windows = windows_for(layout, context_length_tokens, window, sinks)
        self._remake: Callable[[], SlidingCache] = lambda: SlidingCache(
            layout, prototype_Z, context_length_tokens=context_length_tokens, window=window, sinks=sinks
        )
        self._length = 0
        self._released = self._broken = False
        self._rings = {
            layer: Ring(own, layout, prototype_Z) for layer, own in enumerate(self.windows) if own is not None
        }
        full = [layer for layer, own in enumerate(self.windows) if own is None]
        self._full: DynamicCache | None = None
        self._full_numbers = {layer: number for number, layer in enumerate(full)}
        if full:
            inner = CacheLayout(len(full), layout.kv_heads, layout.head_dim, layout.dtype)
            self._full = DynamicCache(inner, prototype_Z)
            self._full.layer_names = full

    @classmethod
    def plan(
        cls, layout: CacheLayout, *, context_length_tokens: int, window: int | None = None, sinks: int = 0
    ) -> CachePlan:
        """Says where the result is an approximation. Errors: `CacheError` for a window below 1, sinks below 0."""
        windows = windows_for(layout, context_length_tokens, window, sinks)
        short = [
            own
            for own, true in zip(windows, layout.windows or [None] * layout.layers, strict=True)
            if own is not None
            and own.tokens + own.sinks < context_length_tokens
            and (own.sinks or true is None or own.tokens < true)
        ]
        if not short:
            return CachePlan()
        tokens, first = min(own.tokens for own in short), short[0].sinks
        kept = f"the last {tokens:,} positions" + (f" and the first {first:,}" if first else "")
        return CachePlan(
            notes=(
                f"this cache keeps {kept}, and the model was made to see further: "
                "from there on the answer is an approximation",
            )
        )

    @property
    def length(self) -> int:
        """Positions seen, complete in every layer; not all of them are held."""
        return self._length

    @property
    def capacity(self) -> int:
        """Positions allocated in the layer that has the fewest."""
        rooms = [ring.room for ring in self._rings.values()]
        return min([*rooms, *([] if self._full is None else [self._full.capacity])], default=0)

    def append(self, layer: int, key_TKC: Array, value_TKC: Array) -> None:
        """Takes rows behind those that the layer has."""
        self._check_usable()
        check_rows(self.layout, key_TKC, value_TKC)
        if (ring := self._rings.get(layer)) is not None:
            ring.append(key_TKC, value_TKC)
        else:
            assert self._full is not None
            self._full.append(self._full_numbers[layer], key_TKC, value_TKC)

    def _check_usable(self) -> None:
        if self._released:
            raise CacheError("this cache was released; make a new one")

    def view(self, layer: int) -> tuple[Array, Array]:
        """Keys and values (K, S, C) that the rows under way may look at, these included."""
        self._check_usable()
        ring = self._rings.get(layer)
        if ring is None:
            assert self._full is not None
            return self._full.view(self._full_numbers[layer])
        if ring.length + ring.under_way == 0:
            raise CacheError(f"layer {layer} of this cache is empty; append to it first")
        return ring.view()

    def positions(self, layer: int, more: int | None = None) -> Sequence[int]:
        """The position of each row of the view: as it is, or with `more` rows under way."""
        if (ring := self._rings.get(layer)) is not None:
            return ring.positions(more)
        return range(self._length + (self._under_way(layer) if more is None else more))

    def _under_way(self, layer: int) -> int:
        if (ring := self._rings.get(layer)) is not None:
            return ring.under_way
        return 0 if self._full is None else self._full.under_way(self._full_numbers[layer])

    def commit(self, tokens: int) -> None:
        """Ends a step: `length` grows by `tokens`, which every layer must have been given."""
        check_step([self._under_way(layer) for layer in range(self.layout.layers)], tokens)
        evicted: dict[tuple[int, int], list[int]] = {}
        try:
            for layer, ring in self._rings.items():
                evicted.setdefault(ring.commit(), []).append(layer)
            if self._full is not None:
                self._full.commit(tokens)
            self._length += tokens
            for (first, stop), layers in evicted.items():
                if first < stop:
                    emit("cache_evicted", first=first, last=stop - 1, layers=layers)
        except BaseException:
            self.release()  # some rings are a step ahead and cannot go back: better no cache than a wrong one
            self._broken = True
            raise

    def crop_to(self, length: int) -> None:
        """Forgets the positions from `length` on, and rows of an unfinished step; nothing once broken by an interrupt.

        Errors: `CacheError` where a token at `length` would look at positions that are gone.
        """
        if self._broken:
            return
        if not 0 <= length <= self._length:
            raise CacheError(f"cannot crop to {length} positions; this cache holds {self._length}")
        for layer, ring in self._rings.items():
            if not ring.can_crop(length):
                least = ring.oldest + ring.window.tokens - 1
                raise CacheError(
                    f"cannot crop to {length} positions: layer {layer} has evicted those before {ring.oldest}, "
                    f"which a window of {ring.window.tokens} still needs; crop to {least} or more, or start anew"
                )
        for ring in self._rings.values():
            ring.crop(length)
        if self._full is not None:
            self._full.crop_to(length)
        self._length = length

    def fork(self) -> "SlidingCache":
        """An independent copy of what is held."""
        self._check_usable()
        twin = self._remake()
        for layer, ring in self._rings.items():
            twin._rings[layer].copy_from(ring)
        if self._full is not None:
            twin._full = self._full.fork()
        twin._length = self._length
        return twin

    def release(self) -> None:
        """Drops the rings and what grows beside them."""
        if self._full is not None:
            self._full.release()
        self._rings, self._full, self._length, self._released = {}, None, 0, True

    def memory(self, layer: int | None = None) -> CacheMemory:
        """Useful bytes are those of the positions that are held."""
        a_layer = self.layout.position_bytes(0 if layer is None else layer)
        if layer is not None and layer in self._full_numbers:
            number = self._full_numbers[layer]
            return CacheMemory(0, 0, 0, 0) if self._full is None else self._full.memory(number)
        rings = [ring for number, ring in self._rings.items() if layer in (None, number)]
        full = self._full.memory() if self._full is not None and layer is None else None
        useful = sum(ring.held for ring in rings) * a_layer
        allocated = sum(int(part.nbytes) for ring in rings for part in ring.arrays)
        if full is None:
            return CacheMemory(useful, allocated, 0, 0)
        return CacheMemory(useful + full.useful_bytes, allocated + full.allocated_bytes, 0, 0)


def windows_for(
    layout: CacheLayout, context_length_tokens: int, window: int | None, sinks: int
) -> tuple[Window | None, ...]:
    """The window of each layer: the one asked for, but no more than the model's own, nor than its context.

    Errors: `CacheError` for a window below 1, or sinks that leave no room for one.
    """
    if window is not None and window < 1:
        raise CacheError(f"a window of {window} positions sees nothing; use 1 or more")
    if not 0 <= sinks < context_length_tokens:
        raise CacheError(
            f"{sinks} sinks leave no window in a context of {context_length_tokens}; "
            f"use 0 to {context_length_tokens - 1}"
        )
    if layout.windows is None:
        wanted: list[int | None] = [DEFAULT_WINDOW if window is None else window] * layout.layers
    else:
        wanted = [min((each for each in (own, window) if each), default=None) for own in layout.windows]
    most = context_length_tokens - sinks
    return tuple(None if tokens is None else Window(min(tokens, most), sinks) for tokens in wanted)
