"""Medians, spread, ratios pair by pair, and the tables made of them. Knows no engine."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of some figures, the least and the greatest."""

    median: float
    least: float
    most: float

    def text(self, digits: int = 1) -> str:
        """Median and range, as in `31.2 (30.9–33.0)`."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}–{self.most:,.{digits}f})"


def spread(figures: Sequence[float]) -> Spread:
    """The spread of at least one figure."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def pair_ratios(own: Sequence[float], other: Sequence[float]) -> Spread:
    """How many times more the other needed, turn by turn: above 1 means that the own one needs less."""
    return spread([theirs / ours for ours, theirs in zip(own, other, strict=True)])


def told(checks: Mapping[str, bool]) -> str:
    """Which limits hold, a line each."""
    return "\n".join(f"{'holds' if holds else 'MISSES'} {sentence}" for sentence, holds in checks.items())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns in Markdown, the first one left-aligned and the others right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])
