"""Taking many elements out of a sequence by one call."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any


def picker(indexes: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Gives a function that takes the elements at `indexes` of a sequence, always as a tuple."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple(values[index] for index in indexes)
