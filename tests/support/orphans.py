"""A recorder that stores nothing but knows everything: it fails where the log would not be a closed program.

Every array that an operation reads must be a window on a weight, on a declared input, or on the result of an
earlier operation. Holds its buffers strongly, so that an address is never used twice.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from haaw.arrays import Array, is_array, owner, to_host
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope


class LogError(AssertionError):
    """The log of a run could not be run again."""


class OrphanRecorder(Recorder):
    """Runs operations and checks them. `counts` says how often each ran, `scopes` where, `events` the rest.

    With `hash_weights="end"`, weights are hashed once and compared by `check_weights`; everything else that
    an operation must not change is hashed before and after it.
    """

    def __init__(self, *, hash_weights: str = "each") -> None:
        self.counts: Counter[str] = Counter()
        self.scopes: list[tuple[str, Scope]] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.declared: list[str] = []
        self.result_dtypes: set[tuple[str, str]] = set()
        self.buffers: list[Array] = []
        self._numbers: dict[int, int] = {}
        self._kinds: list[str] = []
        self._hash_weights = hash_weights
        self._weight_hashes: list[int] = []

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        for name, array in weights.items():
            if self._number(array) is None:
                self._learn(array, f"weight {name}")
        self._weight_hashes = [_hash(buffer) for buffer in self._weights()]

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        if not is_array(array):
            raise LogError(f"the declared input {name} is {type(array).__name__}, not an array")
        self.declared.append(name)
        if self._number(array) is None:
            self._learn(array, f"input {name}")

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        if any(is_array(fact) for fact in facts.values()):
            raise LogError(f"the event {kind} holds an array")
        self.events.append((kind, facts))

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        named = [*zip(op.parameters, args, strict=False), *kwargs.items()]
        inputs = [(name, array) for name, value in named for array in _arrays_in(op, name, value)]
        for name, array in inputs:
            self._check_input(op, name, array, scope)
        written = self._written(op, inputs)
        before = [self._hash(array, written) for _, array in inputs]
        result = op.plain(*args, **kwargs)
        for (name, array), old in zip(inputs, before, strict=True):
            if self._hash(array, written) != old:
                raise LogError(
                    f"{op.name} changed its input {name}, which it does not name as written ({scope})"
                )
        self._take_results(op, result, scope)
        self.counts[op.name] += 1
        self.scopes.append((op.name, scope))
        return result

    def check_weights(self) -> None:
        """Fails if any weight has changed since the recorder came to know them."""
        if [_hash(buffer) for buffer in self._weights()] != self._weight_hashes:
            raise LogError("a weight was changed")

    def _check_input(self, op: Op, name: str, array: Array, scope: Scope) -> None:
        if self._number(array) is None:
            raise LogError(
                f"{op.name} reads an orphan: {name} {array.shape} is no window on a weight, a declared input "
                f"or an earlier result ({scope})"
            )

    def _written(self, op: Op, inputs: list[tuple[str, Array]]) -> int | None:
        if op.writes is None:
            return None
        for name, array in inputs:
            if name == op.writes:
                number = self._number(array)
                assert number is not None
                if not self._kinds[number].startswith(("result of kv_", "input kv_pool")):
                    raise LogError(
                        f"{op.name} writes to a {self._kinds[number]}, which is no buffer of a cache"
                    )
                return number
        raise LogError(f"{op.name} was not given {op.writes}, which it writes to")

    def _take_results(self, op: Op, result: Any, scope: Scope) -> None:
        results = result if len(op.out) > 1 else (result,)
        if not op.out:
            if result is not None:
                raise LogError(f"{op.name} names no result and returned {type(result).__name__}")
            return
        if not isinstance(results, tuple) or len(results) != len(op.out):
            raise LogError(f"{op.name} returned {type(result).__name__} where it names the results {op.out}")
        for name, array in zip(op.out, results, strict=True):
            if not is_array(array):
                raise LogError(f"{op.name} returned {type(array).__name__} as {name}, not an array ({scope})")
            if self._number(array) is not None:
                kind = self._kinds[self._number(array) or 0]
                raise LogError(
                    f"{op.name} returned as {name} a window on the {kind}, not memory of its own ({scope})"
                )
            self.result_dtypes.add((op.name, str(array.dtype)))
            self._learn(array, f"result of {op.name}")

    def _hash(self, array: Array, written: int | None) -> int | None:
        number = self._number(array)
        assert number is not None
        is_weight = self._kinds[number].startswith("weight")
        if number == written or (is_weight and self._hash_weights == "end"):
            return None
        return _hash(array)

    def _weights(self) -> list[Array]:
        return [
            buffer
            for buffer, kind in zip(self.buffers, self._kinds, strict=True)
            if kind.startswith("weight")
        ]

    def _number(self, array: Array) -> int | None:
        return self._numbers.get(id(owner(array)))

    def _learn(self, array: Array, kind: str) -> None:
        buffer = owner(array)
        self._numbers[id(buffer)] = len(self.buffers)
        self.buffers.append(buffer)
        self._kinds.append(kind)


def _arrays_in(op: Op, name: str, value: Any) -> Iterator[Array]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _arrays_in(op, name, part)
    elif is_array(value):
        yield value
    elif isinstance(value, np.generic):
        raise LogError(
            f"{op.name} was given {name} as a NumPy scalar ({value!r}); it would not be linked to its source"
        )


def _hash(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(to_host(array)).tobytes())
