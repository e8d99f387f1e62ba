"""Holding one array against another: the error that an operation may make, and the first element that differs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from haaw.arrays import Array, to_host
from haaw.ops.op import Op
from haaw.ops.shapes import suffix


def budget_of(op: Op, arguments: Mapping[str, Any], number: int = 0) -> np.ndarray | None:
    """The error that each element of a result may have; None where the operation is exact."""
    if op.card.budget is None:
        return None
    with np.errstate(all="ignore"):
        budget = op.card.budget(**arguments)
    if isinstance(budget, tuple):
        budget = budget[number]
    return None if budget is None else np.asarray(to_host(budget))


def within_budget(
    op: Op, arguments: Mapping[str, Any], expected: Array, value: Array, number: int = 0
) -> bool:
    """Whether two results may be of the same inputs: each may err by the budget, so they differ by twice as much."""
    if expected.shape != value.shape or expected.dtype != value.dtype:
        return False
    budget = budget_of(op, arguments, number)
    return not bool(exceeding(expected, value, budget).any())


def exceeding(expected: Array, value: Array, budget: np.ndarray | None) -> np.ndarray:
    """Where two arrays of one shape differ by more than twice the budget (by anything at all, if it is None)."""
    one, other = np.asarray(to_host(expected)), np.asarray(to_host(value))
    same = (one == other) | ((one != one) & (other != other))
    if budget is None or one.dtype.kind not in "fc":
        return np.asarray(~same)
    with np.errstate(all="ignore"):
        distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
        return np.asarray(~same & ~(distance <= 2 * np.broadcast_to(budget, one.shape)))


def first_difference(expected: Array, value: Array, name: str, where: np.ndarray | None = None) -> str:
    """The first element that differs, by its axes: `weights at H 2, T 0, S 5 is 0.25 and was 0.125`."""
    one, other = np.asarray(to_host(expected)), np.asarray(to_host(value))
    if one.shape != other.shape:
        return f"{name} has the shape {other.shape}, and had {one.shape}"
    if one.dtype != other.dtype:
        return f"{name} has the dtype {other.dtype}, and had {one.dtype}"
    differs = exceeding(one, other, None) if where is None else where
    if not differs.any():
        return f"{name} differs in the sign of a zero or in the bits of a NaN"
    index = tuple(int(each) for each in np.argwhere(differs)[0])
    letters = suffix(name) or ""
    axes = letters if len(letters) == len(index) else ["axis " + str(axis) for axis in range(len(index))]
    place = ", ".join(f"{axis} {at}" for axis, at in zip(axes, index, strict=True)) or "the only element"
    count = int(differs.sum())
    return f"{name} at {place} is {other[index]!s} and was {one[index]!s} ({count:,} of {one.size:,} elements differ)"
