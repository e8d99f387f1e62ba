"""What was measured of the caches, as tables, a fitted line and limits. Knows no cache and no model."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.report import Spread, pair_ratios, spread, table

WITHIN = 1.05
COPYING = "concatenated"
REFERENCE = "static"


@dataclass
class Findings:
    """Each list has one entry a context; times are in milliseconds a token, step by step, by the kind's name."""

    contexts: list[int]
    bytes_a_position: int
    decode_ms: list[dict[str, list[float]]] = field(default_factory=list)
    alone_ms: list[dict[str, list[float]]] = field(default_factory=list)
    moved_bytes: list[dict[str, int]] = field(default_factory=list)
    growth_ms: dict[str, list[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Line:
    """y = first + slope · x, by least squares, and the share of the variance that it explains."""

    first: float
    slope: float
    explained: float


def fitted(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line through at least two points."""
    slope, first = statistics.linear_regression(xs, ys)
    constant = len(set(ys)) == 1
    return Line(first, slope, 1.0 if constant else statistics.correlation(xs, ys) ** 2)


def tables(found: Findings) -> str:
    """Everything that was measured."""
    relative = [_relative(each) for each in found.decode_ms]
    parts: list[tuple[str, Sequence[dict[str, Any]], Callable[[Any], str]]] = [
        ("decode, ms a token, the model included: median (least–most)", found.decode_ms, _in_ms(1)),
        (f"decode, times what {REFERENCE} takes, pair by pair: median (least–most)", relative, _ratio),
        ("append and view of all layers alone, ms a token: median (least–most)", found.alone_ms, _in_ms(3)),
        ("bytes that the cache reads and writes for a token, by the cards, KiB", found.moved_bytes, _kib),
    ]
    return "\n".join(
        f"\n{title}\n" + _by_context(found.contexts, figures, text) for title, figures, text in parts
    )


def _relative(times: dict[str, list[float]]) -> dict[str, Spread]:
    return {name: pair_ratios(times[REFERENCE], own) for name, own in times.items() if name != REFERENCE}


def _in_ms(digits: int) -> Callable[[Any], str]:
    return lambda times: spread(times).text(digits)


def _ratio(ratio: Spread) -> str:
    return ratio.text(2)


def _kib(amount: int) -> str:
    return f"{amount / 1024:,.0f}"


def _by_context(
    contexts: Sequence[int], figures: Sequence[dict[str, Any]], text: Callable[[Any], str]
) -> str:
    """A row a kind, a column a context; empty where a kind was not measured."""
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows = [[name, *(text(each[name]) if name in each else "" for each in figures)] for name in names]
    return table(["kind", *(f"{context:,}" for context in contexts)], rows)


def limits(found: Findings) -> tuple[str, bool]:
    """What must hold, whether it does, and the figures behind it."""
    verdicts = [_dynamic(found)]
    if len(found.contexts) > 1:
        verdicts.append(_quadratic(found))
    lines = [f"{'holds' if held else 'FAILS'} {text}" for text, held in verdicts]
    return "\n".join(["", *lines]), all(held for _, held in verdicts)


def _dynamic(found: Findings) -> tuple[str, bool]:
    """Steps seldom meet a doubling, so what all of them cost is added to a step's time."""
    longest = max(found.contexts)
    totals_ms = {name: statistics.median(times) for name, times in found.growth_ms.items()}
    doublings_ms = (totals_ms["dynamic"] - totals_ms[REFERENCE]) / longest
    pairs = [
        (own + doublings_ms) / other
        for each in found.decode_ms
        for own, other in zip(each["dynamic"], each[REFERENCE], strict=True)
    ]
    ratio = statistics.median(pairs)
    medians = [
        f"{_relative(each)['dynamic'].median:.3f} at {context:,}"
        for context, each in zip(found.contexts, found.decode_ms, strict=True)
    ]
    text = (
        f"dynamic decodes within {WITHIN - 1:.0%} of {REFERENCE}: {ratio:.3f} times its time over all contexts "
        f"({', '.join(medians)}), doublings included: appending {longest:,} tokens one by one takes "
        f"{totals_ms['dynamic']:,.0f} ms, into reserved memory {totals_ms[REFERENCE]:,.0f} ms, "
        f"{1e3 * doublings_ms:+.1f} µs a token"
    )
    return text, ratio <= WITHIN


def _quadratic(found: Findings) -> tuple[str, bool]:
    """The bytes are counted, so that they lie on a line exactly; the times are measured."""
    contexts = [float(each) for each in found.contexts]
    moved = fitted(contexts, [float(each[COPYING]) for each in found.moved_bytes])
    times = fitted(contexts, [statistics.median(each[COPYING]) for each in found.alone_ms])
    tokens = max(found.contexts)
    total_s = (times.first * tokens + times.slope * tokens**2 / 2) / 1e3
    text = (
        f"{COPYING} is quadratic in total: a token moves {moved.slope:,.0f} bytes for each position held "
        f"(counted; {2 * found.bytes_a_position:,} is each row read and written once; R² "
        f"{moved.explained:.6f}) and takes {1e3 * times.slope:.3f} µs · context {times.first:+.3f} ms "
        f"(R² {times.explained:.3f}); {tokens:,} tokens one by one so take {total_s:,.1f} s"
    )
    exact = moved.explained > 1 - 1e-9 and round(moved.slope) == 2 * found.bytes_a_position
    return text, exact and times.slope > 0 and times.explained > 0.9
