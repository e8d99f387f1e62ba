"""Sizes as people write them, `24GiB`, and as they read them."""

import re
from fractions import Fraction

from haaw.errors import BadInputError

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{binary}B": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("KMGTP", start=1)
    for binary in ("i", "")
}
LARGEST_BYTES = 2**48
"""256 TiB: 32nds of a byte up to here are exact in a double, which the page calculates with."""
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str, what: str) -> int:
    """Bytes of `24GiB`, `1.5 GB`, `800MB` or a plain count of bytes; `what` names the option in errors.

    KiB to PiB are powers of 1,024, KB to PB powers of 1,000. Errors: `BadInputError` for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else {name.lower(): name for name in UNITS}.get(match[2].lower())
    if match is None or unit is None or len(text) > 40:
        raise BadInputError(f"{what} is {text!r:.60}; write a size such as 24GiB, 800MB or a number of bytes")
    value = Fraction(match[1]) * UNITS[unit]
    if not 1 <= value <= LARGEST_BYTES:
        raise BadInputError(f"{what} is {text!r:.60}; a size from 1 byte to 256 TiB is needed")
    return int(value)


def size_text(size_bytes: int) -> str:
    """A size for people: `1.00 GiB`, `938 bytes`; powers of 1,024."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:,} bytes"
    value, units = float(size_bytes) / 1024, ["PiB", "TiB", "GiB", "MiB", "KiB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop()
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f} {units[-1]}"


def number_text(value: int | Fraction) -> str:
    """A whole number with thousands separators; a broken one exactly, as its decimals end."""
    if isinstance(value, int) or value.denominator == 1:
        return f"{int(value):,}"
    return f"{float(value):,}"
