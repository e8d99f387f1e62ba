"""Shape suffixes: the capitals after the last underscore of a name say its axes, one letter one length.

| letter | axis | letter | axis |
|---|---|---|---|
| `B` | sequences | `T` | tokens in this call |
| `S` | positions held in the cache | `D` | model width |
| `H` | query heads | `K` | key/value heads |
| `G` | query heads per key/value head | `C` | channels of a head |
| `I` | half of R | `E` | H·C |
| `U` | K·C | `F` | MLP width |
| `V` | vocabulary | `N` | candidates left |
| `L` | layers | `X` | experts |
| `R` | rotated channels, or latent width | `M` | blocks |
| `P` | positions in a block, allocated, or masked | `A`, `Z` | any width, into and out of a product |

A name without such a suffix is not an array. N alone may be smaller in a result than in the arguments.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from haaw.arrays import is_array
from haaw.ops.card import Lengths

AXES = "BTSDHKGCIEUFVNLXRMPAZ"
_SUFFIX = re.compile(rf"_([{AXES}]+)$")


def suffix(name: str) -> str | None:
    """The axis letters of `name`, or None: `suffix("query_THC") == "THC"`."""
    found = _SUFFIX.search(name)
    return found.group(1) if found else None


class ShapeError(TypeError):
    """An array does not have the axes that its name promises. A fault of the code, not of the input."""


def bind(lengths: Lengths, op: str, name: str, value: Any) -> None:
    """Adds the axes of `value`, an array called `name`, to `lengths`.

    A tuple or list stands for arrays joined along the first axis, whose lengths add up.
    Errors: `ShapeError` where the count of axes or a length already bound disagrees.
    """
    letters = suffix(name)
    if letters is None:
        if is_array(value):
            raise ShapeError(f"{op}: {name} is an array, but its name has no shape suffix")
        return
    if value is None:
        return
    if isinstance(value, tuple | list):
        shapes = [part.shape for part in value]
        if any(len(shape) != len(letters) or shape[1:] != shapes[0][1:] for shape in shapes):
            raise ShapeError(f"{op}: the parts of {name} have the shapes {shapes}")
        shape = (sum(part[0] for part in shapes), *shapes[0][1:])
    elif not is_array(value):
        raise ShapeError(f"{op}: {name} should be an array, not {type(value).__name__}")
    else:
        shape = value.shape
    if len(shape) != len(letters):
        raise ShapeError(f"{op}: {name} has the shape {shape}, its name says {len(letters)} axes")
    for letter, length in zip(letters, shape, strict=True):
        if lengths.setdefault(letter, length) != length:
            raise ShapeError(f"{op}: {name} has {letter} = {length}, but {letter} = {lengths[letter]} before")


def check_products(lengths: Lengths, op: str) -> None:
    """Checks E = H·C, U = K·C and R = 2·I where all of them are known."""
    for whole, left, right in (("E", "H", "C"), ("U", "K", "C")):
        if {whole, left, right} <= lengths.keys() and lengths[whole] != lengths[left] * lengths[right]:
            raise ShapeError(f"{op}: {whole} is not {left} times {right} in {dict(lengths)}")
    if {"R", "I"} <= lengths.keys() and lengths["R"] != 2 * lengths["I"]:
        raise ShapeError(f"{op}: R is not twice I in {dict(lengths)}")


def lengths_of(
    op: str,
    parameters: Sequence[str],
    args: Iterable[Any],
    kwargs: dict[str, Any],
    outputs: Iterable[tuple[str, Any]],
) -> Lengths:
    """The lengths of all axes of one call, checked for agreement."""
    lengths = Lengths()
    for name, value in [*zip(parameters, args, strict=False), *kwargs.items()]:
        bind(lengths, op, name, value)
    results = Lengths(lengths)
    candidates = results.pop("N", None)  # filters leave fewer candidates than they were given
    for name, value in outputs:
        bind(results, op, name, value)
    left = results.get("N")
    if candidates is not None and left is not None and left > candidates:
        raise ShapeError(f"{op}: {candidates} candidates went in and {left} came out")
    lengths = Lengths(results | lengths)
    check_products(lengths, op)
    return lengths


def checked(
    op: str, parameters: Sequence[str], out: tuple[str, ...], plain: Callable[..., Any]
) -> Callable[..., Any]:
    """`plain` with every suffix held against the real shapes; used while tests run."""

    @functools.wraps(plain)
    def check(*args: Any, **kwargs: Any) -> Any:
        __debuggerskip__ = False  # see `haaw.ops.op`
        result = plain(*args, **kwargs)
        results = result if len(out) > 1 else (result,)
        if not out:
            results = ()
        for value in results:
            if not is_array(value):
                raise ShapeError(f"{op} returned {type(value).__name__}; an operation returns arrays")
        lengths_of(op, parameters, args, kwargs, zip(out, results, strict=True))
        return result

    return check
