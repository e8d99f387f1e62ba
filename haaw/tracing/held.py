"""The operations of a step that were run and are not noted yet, in one list, so that remembering costs one call."""

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np

from haaw.arrays import owner
from haaw.ops.op import Op
from haaw.ops.recorder import Scope

WIDTH = 9
OP, ARGS, NAMED, SCOPE, RESULT, START, END, CODE, INSTRUCTION = range(WIDTH)

Operation = tuple[Op, tuple[Any, ...], dict[str, Any] | None, Scope, Any, int, int, CodeType, int]
"""What ran, its arguments (named ones, or None), where, its result, start and end (ns), code and instruction of the
call."""


MOST_HELD_BYTES, OPERATION_BYTES = 16 << 20, 1024
"""So many bytes of results are held, and so many more counted for each operation, before all are noted together: a
whole decode step as a rule. Between two matrix products, which push everything else out of the processor's caches,
noting takes thrice as long."""
COUNTED_TOGETHER = 16
"""At most so many operations come together before their bytes are counted."""

SURPRISE = 4
"""Each of them is taken to be that many times as large as the largest so far; fewer come together if that would be too
much."""


class HeldOperations:
    """`extend` takes the parts of an operation. A tuple for each would be one more thing to fetch from memory.

    Once there are more than `limit` parts, they are to be counted. All that an operation needs to know of its
    recorder lies side by side.
    """

    __slots__ = ("_counted", "_largest", "_nbytes", "extend", "limit", "parts")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.extend: Callable[[Operation], None] = self.parts.extend
        self.limit = 0
        self._counted = self._largest = self._nbytes = 0

    def count(self) -> bool:
        """Counts the memory of what has come; True if it must be noted. Moves `limit`."""
        sizes = list(map(_nbytes_of, self.parts[self._counted + RESULT :: WIDTH]))
        self._counted = len(self.parts)
        self._nbytes += sum(sizes) + OPERATION_BYTES * len(sizes)
        self._largest = max(self._largest, *sizes, OPERATION_BYTES)
        more = (MOST_HELD_BYTES - self._nbytes) // (SURPRISE * self._largest)
        self.limit = self._counted + WIDTH * (min(max(more, 1), COUNTED_TOGETHER) - 1)
        return self._nbytes > MOST_HELD_BYTES

    def close(self) -> None:
        """Lets go of everything, and takes no more."""
        self.extend = _dropped
        self.parts.clear()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is held any more."""
        return self.extend is _dropped

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


def _dropped(operation: Operation) -> None:
    return


def _nbytes_of(result: Any) -> int:
    """The memory that a result holds: that of its owner, or of several."""
    if type(result) is np.ndarray:
        return (result if result.base is None else owner(result)).nbytes
    if type(result) is tuple:
        return sum(map(_nbytes_of, result))
    return int(getattr(result, "nbytes", 0))  # nothing has none
