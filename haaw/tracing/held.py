"""The operations of a step that were run and are not noted yet, in one list, so that remembering costs one call."""

from collections.abc import Iterator
from types import CodeType
from typing import Any

from haaw.ops.op import Op
from haaw.ops.recorder import Scope

WIDTH = 9
OP, ARGS, NAMED, SCOPE, RESULT, START, END, CODE, INSTRUCTION = range(WIDTH)

Operation = tuple[Op, tuple[Any, ...], dict[str, Any] | None, Scope, Any, int, int, CodeType, int]
"""What ran, its arguments (named ones, or None), where, its result, start and end (ns), code and instruction of the
call."""


class HeldOperations:
    """`extend` takes the parts of an operation. A tuple for each would be one more thing to fetch from memory.

    `nbytes` counts what they take, results included, and `is_closed` says that there will be no more: all that an
    operation needs to know of its recorder lies side by side.
    """

    __slots__ = ("extend", "is_closed", "nbytes", "parts")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.extend = self.parts.extend
        self.nbytes = 0
        self.is_closed = False

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
