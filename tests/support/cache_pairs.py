"""A cache and a reference made of plain lists, given the same and compared: the tools of the cache contract."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.fake_array import FakeLibrary

from haaw.arrays import namespace, owner, to_host
from haaw.caches.protocol import CacheError, CacheLayout, Window, positions_of
from haaw.ops.recorder import Recorder, recording

LAYOUT = CacheLayout(layers=3, kv_heads=2, head_dim=4, dtype="float32")
LIBRARIES: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.zeros(1, np.float32),
    "fake device": lambda: FakeLibrary().zeros(1, dtype="float32"),
}


@dataclass(frozen=True)
class Case:
    """One kind of cache with its options, and what may be expected of it.

    `make(prototype)` gives an empty one over `layout`. `reserves`: memory is allocated before the first row.
    `keeps_memory`: a crop allocates and frees nothing. `most`: the most positions it can hold. `windows`: how far
    each layer sees, where rows are evicted. `atol`: how far a row of the view may be from what was appended.
    `useful(length)` and `allocated(cache)`: bytes, where they are not those of the positions held and of the
    arrays that operations called kv_allocate… made; `useful_of(cache)` where the length alone does not say.
    `refuses`: what the error says where the kind cannot crop exactly.
    """

    make: Callable[[Any], Any]
    layout: CacheLayout = LAYOUT
    reserves: bool = False
    keeps_memory: bool = True
    most: int | None = None
    windows: Sequence[Window | None] | None = None
    atol: float = 0.0
    useful: Callable[[int], int] | None = None
    allocated: Callable[[Any], int] | None = None
    useful_of: Callable[[Any], int] | None = None
    refuses: str | None = None


class Allocations(Recorder):
    """Knows the memory that caches were given and still hold; `fail_at(n)` makes the n-th operation from now fail."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []
        self.operations = 0
        self._fails: int | None = None

    def fail_at(self, number: int | None) -> None:
        self.operations, self._fails = 0, number

    def run(self, op, args, kwargs, scope):
        self.operations += 1
        if self.operations == self._fails:
            raise PlantedError(op.name)
        result = op.plain(*args, **kwargs)
        if op.name.startswith("kv_allocate"):
            self.made.append(weakref.ref(owner(result)))
        return result

    def declare(self, name, array, scope):
        pass

    def know_weights(self, weights):
        pass

    def emit(self, kind, facts, scope):
        pass

    def held_bytes(self) -> int:
        return sum(int(array.nbytes) for made in self.made if (array := made()) is not None)


class PlantedError(Exception):
    """A failure that a test brought about."""


class Reference:
    """The contract with lists: keys and values of each layer, a row a position; evicted ones are merely counted."""

    def __init__(self, case: Case) -> None:
        layers = case.layout.layers
        self.case = case
        self.windows = case.windows or [None] * layers
        self.rows: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []) for _ in range(layers)]
        self.oldest = [0 if window is None else window.sinks for window in self.windows]
        self.length = 0

    def append(self, layer: int, key_TKC: np.ndarray, value_TKC: np.ndarray) -> None:
        for held, new in zip(self.rows[layer], (key_TKC, value_TKC), strict=True):
            held.extend(np.copy(row) for row in new)

    def held(self, layer: int) -> set[int]:
        """Committed positions that are not evicted."""
        sinks = range(min(self.length, 0 if self.windows[layer] is None else self.windows[layer].sinks))
        return {*sinks, *range(self.oldest[layer], self.length)}

    def visible(self, layer: int) -> set[int]:
        """The positions that a view must have: all that some row under way sees, or all that are held."""
        end, window, held = len(self.rows[layer][0]), self.windows[layer], self.held(layer)
        if window is not None and end > self.length:
            held = {p for p in held if p < window.sinks or self.length - p < window.tokens}
        return held | set(range(self.length, end))

    def commit(self, tokens: int) -> None:
        self.length += tokens
        for layer, window in enumerate(self.windows):
            if window is not None:
                self.oldest[layer] = max(self.oldest[layer], self.length - window.tokens)

    def can_crop(self, length: int) -> bool:
        """Whether every position that a token at `length` sees is held in every layer."""
        return length == self.length or all(
            {p for p in range(length) if p < window.sinks or length - p < window.tokens} <= self.held(layer)
            for layer, window in enumerate(self.windows)
            if window is not None
        )

    def crop_to(self, length: int) -> None:
        self.length = length
        for layer, (window, pair) in enumerate(zip(self.windows, self.rows, strict=True)):
            for held in pair:
                del held[length:]
            if window is not None:
                self.oldest[layer] = max(window.sinks, min(self.oldest[layer], length))

    def fork(self) -> "Reference":
        twin = Reference(self.case)
        twin.rows = [(list(keys[: self.length]), list(values[: self.length])) for keys, values in self.rows]
        twin.length, twin.oldest = self.length, list(self.oldest)
        return twin

    def useful_bytes(self) -> int:
        if self.case.useful is not None:
            return self.case.useful(self.length)
        layout = self.case.layout
        held = sum(len(self.held(layer)) for layer in range(layout.layers))
        return held * layout.bytes_per_position // layout.layers


class Pair:
    """A cache and its reference, given the same."""

    def __init__(self, case: Case, prototype: Any, rng: np.random.Generator) -> None:
        self.case, self.prototype, self.rng = case, prototype, rng
        self.allocations = Allocations()
        with recording(self.allocations):
            self.cache = case.make(prototype)
        self.reference = Reference(case)

    def rows(self, tokens: int) -> np.ndarray:
        layout = self.case.layout
        return self.rng.normal(size=(tokens, layout.kv_heads, layout.head_dim)).astype(layout.dtype)

    def append(self, layer: int, tokens: int) -> None:
        key_TKC, value_TKC = self.rows(tokens), self.rows(tokens)
        xp = namespace(self.prototype)
        with recording(self.allocations):
            self.cache.append(layer, xp.asarray(key_TKC), xp.asarray(value_TKC))
        self.reference.append(layer, key_TKC, value_TKC)

    def commit(self, tokens: int) -> None:
        with recording(self.allocations):
            self.cache.commit(tokens)
        self.reference.commit(tokens)

    def step(self, tokens: int) -> None:
        for layer in range(self.case.layout.layers):
            self.append(layer, tokens)
            self.check_layer(layer)
        self.commit(tokens)

    def crop_to(self, length: int) -> bool:
        """Crops both, or makes sure that the cache refuses what the reference says cannot be exact."""
        if not self.reference.can_crop(length):
            with pytest.raises(CacheError, match="evicted"):
                self.cache.crop_to(length)
            self.check()
            return False
        try:
            with recording(self.allocations):
                self.cache.crop_to(length)
        except CacheError as error:
            if self.case.refuses is None or self.case.refuses not in str(error):
                raise
            self.check()
            return False
        self.reference.crop_to(length)
        return True

    def fork(self) -> "Pair":
        twin = Pair.__new__(Pair)
        twin.case, twin.prototype, twin.rng, twin.allocations = (
            self.case, self.prototype, self.rng, Allocations(),
        )  # fmt: skip
        with recording(twin.allocations):
            twin.cache = self.cache.fork()
        twin.reference = self.reference.fork()
        return twin

    def check_layer(self, layer: int) -> None:
        """The view's rows are those of the positions that it names, and it names what it must."""
        under_way = len(self.reference.rows[layer][0]) - self.reference.length
        positions = list(positions_of(self.cache, layer, more=under_way))
        assert sorted(positions) == sorted(self.reference.visible(layer))
        with recording(self.allocations):
            view = self.cache.view(layer)
        for held_KSC, rows in zip(view, self.reference.rows[layer], strict=True):
            wanted = np.array([rows[position] for position in positions], self.case.layout.dtype)
            assert held_KSC.dtype == wanted.dtype or not positions
            np.testing.assert_allclose(
                to_host(held_KSC).transpose(1, 0, 2), wanted.reshape(-1, *held_KSC.shape[::2]),
                rtol=0, atol=self.case.atol,
            )  # fmt: skip

    def check(self) -> None:
        assert self.cache.length == self.reference.length
        for layer in range(self.case.layout.layers):
            if self.reference.length:
                self.check_layer(layer)
        self.check_memory()

    def check_memory(self) -> None:
        memory = self.cache.memory()
        useful_of = self.case.useful_of
        assert memory.useful_bytes == (useful_of(self.cache) if useful_of else self.reference.useful_bytes())
        allocated = self.case.allocated
        expected = self.allocations.held_bytes() if allocated is None else allocated(self.cache)
        assert memory.allocated_bytes == expected
        assert memory.allocated_bytes >= memory.useful_bytes
        if self.case.windows is None:
            assert self.cache.capacity >= self.cache.length
