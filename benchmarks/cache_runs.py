"""One kind of cache on a model, filled without a prefill and then taken on token by token; and what its copies come to.

Rows are made at random: small keys, so that no weight of attention becomes a denormal number, which some processors
are slow with.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from haaw.arrays import Array, is_array, like, to_host
from haaw.caches.kinds import KINDS, NO_CACHE, make_cache
from haaw.caches.protocol import KVCache
from haaw.generation.engine import advance, advance_without_cache
from haaw.models.protocol import Transformer
from haaw.ops.choosing import greedy
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope, recording
from haaw.ops.shapes import lengths_of
from haaw.tracing.costs import itemsize

CHUNK_TOKENS = 512
TOKEN_ID = 1
MORE = {"quantised to 4 bits": ("quantised", {"bits": 4})}
"""Beside every kind with its own defaults."""


class Contestant:
    """One sequence in one kind of cache; the mode "none" has no cache, and computes everything anew.

    `length` is how many tokens there are.
    """

    def __init__(self, name: str, model: Transformer, make: Callable[[], KVCache]) -> None:
        self.name = name
        self.cache = None if name == NO_CACHE else make()
        self._make = make
        self._model = model
        self.length = 0
        layout, rng = model.cache_layout, np.random.default_rng(1)
        rows_TKC = rng.standard_normal((CHUNK_TOKENS, layout.kv_heads, layout.head_dim)).astype(layout.dtype)
        self._key_TKC = like(0.05 * rows_TKC, model.prototype_Z)
        self._value_TKC = like(rows_TKC, model.prototype_Z)

    def fill(self, length: int) -> None:
        """Rows for so many positions, in chunks as a prefill would bring them, but without the model."""
        while self.length < length:
            self._append(min(CHUNK_TOKENS, length - self.length))

    def _append(self, tokens: int, *, look: bool = False) -> None:
        self.length += tokens
        if self.cache is None:
            return
        key_TKC, value_TKC = self._key_TKC[:tokens], self._value_TKC[:tokens]
        for layer in range(self.cache.layout.layers):
            self.cache.append(layer, key_TKC, value_TKC)
            if look:
                self.cache.view(layer)
        self.cache.commit(tokens)

    def append_and_view(self) -> None:
        """What a cache does for one token, without the model."""
        self._append(1, look=True)

    def append(self) -> None:
        """One token without being looked at."""
        self._append(1)

    def decode(self) -> None:
        """One decode step, until the next id is chosen."""
        if self.cache is None:
            ids = [TOKEN_ID] * (self.length + 1)
            logits_BV = advance_without_cache(self._model, self._make, ids, chunk_tokens=CHUNK_TOKENS)
        else:
            logits_BV = advance(self._model, self.cache, [TOKEN_ID])
        int(to_host(greedy(logits_BV[-1]))[0])
        self.length += 1

    def release(self) -> None:
        """Gives the memory back."""
        if self.cache is not None:
            self.cache.release()


def contestants(model: Transformer, *, without_cache: bool) -> list[Contestant]:
    """Every kind that there is, empty, each with its defaults; the mode "none" where it is asked for."""
    wanted: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, {}) for kind in KINDS}
    wanted |= MORE | ({NO_CACHE: (NO_CACHE, {})} if without_cache else {})
    return [Contestant(name, model, maker(model, kind, options)) for name, (kind, options) in wanted.items()]


def maker(model: Transformer, kind: str, options: Mapping[str, Any]) -> Callable[[], KVCache]:
    """What makes an empty cache of a kind for a model."""
    return lambda: make_cache(
        kind,
        model.cache_layout,
        model.prototype_Z,
        context_length_tokens=model.context_length_tokens,
        **options,
    )


class Copies(Recorder):
    """Adds up what the operations of a cache read and write, by name, as their cards say; allocations are free."""

    def __init__(self) -> None:
        self.bytes_by_op: dict[str, int] = {}

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        """Runs one operation and counts it."""
        result = op.plain(*args, **kwargs)
        if op.name.startswith("kv_") and op.card.bytes_moved is not None:
            results = [] if op.writes is not None else [result]
            lengths = lengths_of(op.name, op.parameters, args, kwargs, zip(op.out, results, strict=True))
            size = itemsize([*results, *_arrays([*args, *kwargs.values()])])
            moved = op.card.bytes_moved(lengths, size)
            self.bytes_by_op[op.name] = self.bytes_by_op.get(op.name, 0) + moved
        return result

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        """Inputs are not counted."""

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        """Weights are not counted."""

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        """Events are not counted."""


def _arrays(values: list[Any]) -> list[Any]:
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [each for each in flat if is_array(each)]


def moved_bytes(contestant: Contestant) -> int:
    """Bytes that operations of the cache read and write for one more token, its view included."""
    copies = Copies()
    with recording(copies):
        contestant.append_and_view()
    return sum(copies.bytes_by_op.values())
