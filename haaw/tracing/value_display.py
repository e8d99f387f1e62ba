"""A value as a person sees it: a corner of its numbers, its range, where it is from."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.display import html_table, text_table
from haaw.tracing.values import SAID

if TYPE_CHECKING:
    from haaw.tracing.values import Value

ROWS, COLUMNS = 8, 8
MOST_IN_JSON = 100_000


def statistics(array: np.ndarray) -> dict[str, Any]:
    """Shape, dtype, bytes; of the finite numbers least, greatest, mean and deviation; what is odd, counted."""
    found: dict[str, Any] = {"shape": array.shape, "dtype": str(array.dtype), "bytes": int(array.nbytes)}
    if not array.size or array.dtype.kind not in "fiub":
        return found
    finite = array[np.isfinite(array)]
    wide = finite.astype(np.float64)
    if finite.size:
        found |= {
            "least": finite.min().item(),
            "greatest": finite.max().item(),
            "mean": float(wide.mean()),
            "deviation": float(wide.std()),
        }
    found["zeros"] = int(np.count_nonzero(array == 0))
    if array.dtype.kind == "f":
        found |= {"nan": int(np.isnan(array).sum()), "infinite": int(np.isinf(array).sum())}
    return found


def corner(value: "Value") -> tuple[str, list[str], list[list[object]]]:
    """The first numbers of the last two axes: what is shown of the others, column names, rows."""
    array, axes = value.array, value.axes if len(value.axes) == value.array.ndim else "?" * value.array.ndim
    fixed = ", ".join(
        f"{letter} = 0 of {length}"
        for letter, length in zip(axes[:-2], array.shape[:-2], strict=True)
        if length > 1
    )
    table = array[(0,) * max(array.ndim - 2, 0)] if array.ndim > 2 else array
    table = table.reshape(1, -1) if table.ndim < 2 else table
    more = table.shape[1] > COLUMNS
    columns = ["", *map(str, range(min(table.shape[1], COLUMNS))), *(["…"] if more else [])]
    rows: list[list[object]] = [
        [str(number), *row[:COLUMNS].tolist(), *(["…"] if more else [])]
        for number, row in enumerate(table[:ROWS])
    ]
    if len(table) > ROWS:
        rows.append(["…", *[""] * (len(columns) - 1)])
    return fixed, columns, rows


def heading(value: "Value") -> str:
    """Path, axes with their lengths, source and verdict, in one line."""
    lengths = " ".join(f"{letter}={length}" for letter, length in zip(value.axes, value.shape, strict=False))
    head = "" if value.head is None else f", head {value.head}"
    shape = f"{lengths or value.shape} {value.array.dtype}"
    return f"{value.path}{head}: {shape}, {value.source}; {SAID[value.hash_verdict]}"


def value_text(value: "Value") -> str:
    """A value in plain text."""
    if not value.array.size:
        return f"{heading(value)}\n(empty)"
    fixed, columns, rows = corner(value)
    said = statistics(value.array)
    ranges = ", ".join(
        f"{name} {_short(said[name])}" for name in said if name not in ("shape", "dtype", "bytes")
    )
    return "\n".join(
        filter(None, [heading(value), f"({fixed})" if fixed else "", text_table(columns, rows), ranges])
    )


def value_json(value: "Value") -> dict[str, Any]:
    """A value as JSON: what is not finite as a word, of a large one the first numbers only (`truncated`)."""
    flat = value.array.reshape(-1)[:MOST_IN_JSON].tolist()
    said = {name: _finite(each) for name, each in statistics(value.array).items()}
    return {
        "path": value.path,
        "head": value.head,
        "axes": value.axes,
        **said,
        "shape": list(value.shape),
        "source": value.source,
        "hash": value.hash_verdict,
        "event": value.event.number,
        "values": [_finite(each) for each in flat],
        "truncated": value.array.size > MOST_IN_JSON,
    }


def _finite(number: Any) -> Any:
    return str(number) if isinstance(number, float) and not math.isfinite(number) else number


def value_html(value: "Value") -> str:
    """A value in a notebook."""
    if not value.array.size:
        return html_table(heading(value), ["empty"], [])
    fixed, columns, rows = corner(value)
    least, greatest = value.array.min(), value.array.max()
    footer = (
        f"from {_short(least.item())} to {_short(greatest.item())}{f' · shown: {fixed}' if fixed else ''}"
    )
    return f"{html_table(heading(value), columns, rows)}<small>{footer}</small>"


def _short(number: Any) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)
