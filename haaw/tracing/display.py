"""How reading shows itself: tables in plain text and small HTML, numbers for a person. Strangers' text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_LEFT, _RIGHT = "text-align:left", "text-align:right"
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A captioned table; numbers stand at the right."""
    head = "".join(f'<th style="{_LEFT}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    style = _RIGHT if isinstance(value, int | float) else _LEFT
    return f'<td style="{style}">{escape(shown(value))}</td>'


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they must be; numbers stand at the right."""
    whole = [list(row) for row in rows]
    cells = [[printable(shown(value)) for value in row] for row in whole]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numeric = [
        bool(whole) and all(isinstance(row[place], int | float) for row in whole)
        for place in range(len(columns))
    ]

    def line(row: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([line(columns), *map(line, cells)])


def shown(value: object) -> str:
    """A value of a table; None is a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def printable(text: str) -> str:
    """Text with its control characters spelled out, so that it stays on its line and moves no cursor."""
    return text.translate(_CONTROLS)


def counted(number: int, noun: str) -> str:
    """`1 event`, `2,915 events`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def token_text(token_bytes: bytes | None) -> str:
    """The bytes of a token as a quoted text; bytes that are no characters are spelled out."""
    return "?" if token_bytes is None else repr(token_bytes.decode("utf-8", "backslashreplace"))


def duration(nanoseconds: float) -> str:
    """A time for a person: "1.4 ms"."""
    for unit in ("ns", "µs", "ms"):
        if abs(nanoseconds) < 1000:
            return f"{nanoseconds:.3g} {unit}"
        nanoseconds /= 1000
    return f"{nanoseconds:,.4g} s"


def count(number: float) -> str:
    """A count for a person: "270 million"."""
    for unit in ("", " thousand", " million", " billion"):
        if abs(number) < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.3g} trillion"
