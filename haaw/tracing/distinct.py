"""Values, each once, and which of them stands where."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T", bound=Hashable)


class Distinct(Generic[T]):
    """`values` in the order in which they were first met; `which` says which of them each of the first ones was."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}
        self.which = self.numbers(values)

    def number(self, value: T) -> int:
        """Where a value stands; a new one behind the others."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def numbers(self, values: Iterable[T]) -> np.ndarray:
        """Where each of several stands."""
        return np.array([self.number(value) for value in values], dtype=np.intp)

    def find(self, value: T) -> int:
        """Where a value stands; -1 if it was not met."""
        return self._numbers.get(value, -1)

    def at(self, numbers: np.ndarray) -> list[T]:
        """Those that stand at some places, each once, in order."""
        return [self.values[number] for number in np.unique(numbers)]
