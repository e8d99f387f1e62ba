"""The operations of a step that were run and are not noted yet, in one list, so that remembering costs one call."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from haaw.arrays import owner
from haaw.ops.recorder import Operation

WIDTH = 9
OP, ARGS, NAMED, SCOPE, RESULT, START, END, CODE, INSTRUCTION = range(WIDTH)
"""Where the parts of an `Operation` stand."""


MOST_HELD_BYTES, OPERATION_BYTES = 16 << 20, 1024
"""So many bytes of results are held, and so many more counted for each operation, before all are noted together: a
whole decode step as a rule. Between two matrix products, which push everything else out of the processor's caches,
noting takes thrice as long."""

COUNT_EVERY_NS = 50_000_000
"""How long results come before their bytes are counted. On the host time bounds memory, since somebody had to fill it;
counting each operation's as it comes would take a tenth of what recording costs."""


class Batch:
    """Operations that are noted together, in one list of their parts.

    A tuple for each would be one more thing to fetch from memory.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts) // WIDTH

    def operations(self, first: int = 0) -> Iterator[Operation]:
        """The operations from `first` on, one by one."""
        rest = iter(self.parts[first * WIDTH :])
        return zip(*[rest] * WIDTH, strict=True)

    def column(self, part: int, count: int) -> list[Any]:
        """One part of each of the first `count` operations."""
        return self.parts[part : count * WIDTH : WIDTH]

    def clear(self) -> None:
        """Lets go of everything."""
        self.parts.clear()


class HeldOperations:
    """What was run and is not noted yet. All that an operation needs to know of its recorder lies side by side."""

    __slots__ = ("_count_every_ns", "_counted", "_nbytes", "due_ns", "extend")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins another batch; that of before gets no more."""
        self._counted = self._nbytes = 0
        self._count_every_ns = COUNT_EVERY_NS
        self.due_ns: float = 0
        parts: list[Any] = []
        self.extend: Callable[[Operation], None] = parts.extend

    @property
    def batch(self) -> Batch:
        """The operations that are held: those in the list that `extend` belongs to, which cannot be another's."""
        return Batch([] if self.is_closed else self.extend.__self__)  # type: ignore[attr-defined]

    def is_full(self, now_ns: int) -> bool:
        """Counts the memory of what has come; True if it must be noted. Moves `due_ns`."""
        parts = self.batch.parts
        results = parts[self._counted + RESULT :: WIDTH]
        self._counted = len(parts)
        self._nbytes += sum(map(_nbytes_of, results)) + OPERATION_BYTES * len(results)
        if not all(map(_is_on_host, results)):
            self._count_every_ns = 0  # a device works behind our back, so that time bounds nothing
        self.due_ns = now_ns + self._count_every_ns
        return self._nbytes > MOST_HELD_BYTES

    def close(self) -> None:
        """Lets go of everything, and takes no more."""
        batch = self.batch
        self.extend = _dropped
        self.due_ns = math.inf
        batch.clear()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is held any more."""
        return self.extend is _dropped

    def __len__(self) -> int:
        return len(self.batch)


def _dropped(operation: Operation) -> None:
    return


def _is_on_host(result: Any) -> bool:
    if type(result) is tuple:
        return all(map(_is_on_host, result))
    return result is None or type(result) is np.ndarray


def _nbytes_of(result: Any) -> int:
    """The memory that a result holds: that of its owner, or of several."""
    if type(result) is np.ndarray:
        return (result if result.base is None else owner(result)).nbytes
    if type(result) is tuple:
        return sum(map(_nbytes_of, result))
    return int(getattr(result, "nbytes", 0))  # nothing has none
