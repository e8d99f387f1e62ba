"""The card of an operation: what it means, its formula and source, its cost, and how exact it can be."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from haaw.arrays import Array


class Lengths(dict[str, int]):
    """The length of each axis letter within one call; `n.T` reads `n["T"]`."""

    def __getattr__(self, letter: str) -> int:
        try:
            return self[letter]
        except KeyError:
            raise AttributeError(f"no axis {letter!r} in this call; known: {', '.join(self)}") from None


@dataclass(frozen=True)
class Card:
    """What a reader, a cost table and a grader need to know of an operation.

    `operations(n)` counts floating-point operations (a multiply-add is two), from the lengths of
    the axes. `bytes_moved(n, itemsize)` counts bytes read and written once each; None means all array
    arguments and all results. `budget(*same arguments)` bounds the absolute error of each element of
    the result when it is computed in the dtype of the arguments; None means the result is exact.
    """

    meaning: str
    formula: str
    source: str
    operations: Callable[[Lengths], int]
    bytes_moved: Callable[[Lengths, int], int] | None = None
    budget: Callable[..., Array] | None = None


def nothing(n: Lengths) -> int:
    """The count of an operation that computes nothing: it moves, chooses or compares."""
    return 0


def product_error(x: Array, terms: int, size: Array, product: Array) -> Array:
    """Error budget of sums of `terms` products in the dtype of `x`; `size` is the sum of |a||b|, `product` of a·b.

    A kernel of a BLAS adds up to some 500 terms one after another. The roundings of terms that differ grow like
    a random walk; those of terms that are alike all go one way, in proportion to the sum (an outlier in
    front makes that worst). Source: Higham 2002, section 3.1; the factors hold with room in the tests.
    """
    return eps_of(x) * ((8 + 1.5 * terms**0.5) * size + min(terms, 512) / 3 * abs(product))


def eps_of(x: Array) -> float:
    """The distance from 1.0 to the next number in the dtype of `x` (2**-23 for float32)."""
    return float(np.finfo(x.dtype).eps)
