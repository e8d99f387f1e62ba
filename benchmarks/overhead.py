"""What `@op` costs with nobody listening: decode steps as they are, and with every operation's plain function instead.

Only this benchmark replaces anything; it puts everything back.
"""

import argparse
import json
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.clocks import CLOCKS, took_ms
from benchmarks.machine import blas_libraries, description
from benchmarks.profiling import Stopwatch
from benchmarks.steps import steps_of_file
from haaw.ops.card import Card, nothing
from haaw.ops.op import OPS, op
from haaw.ops.recorder import recording, scope

MOST_PERCENT = 2.0


@contextmanager
def without_decorator() -> Iterator[int]:
    """In the block, every module calls the plain functions; yields how many names were changed."""
    changed: list[tuple[Any, str, Any]] = []
    for module in [each for name, each in sys.modules.items() if name.startswith(("haaw.", "benchmarks."))]:
        for name, value in list(vars(module).items()):
            operation = getattr(value, "op", None)
            if getattr(operation, "name", None) in OPS and callable(value):
                changed.append((module, name, value))
    try:
        for module, name, value in changed:
            setattr(module, name, value.op.plain)
        yield len(changed)
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def pairs_ms(
    step: Callable[[], None], pairs: int, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Milliseconds of the same step with and without the decorator, in turns; who is first changes each time."""
    with_ms: list[float] = []
    without_ms: list[float] = []

    def bypassed() -> None:
        with without_decorator():
            without_ms.append(took_ms(clock, step))

    for number in range(pairs):
        if number % 2:
            bypassed()
        with_ms.append(took_ms(clock, step))
        if not number % 2:
            bypassed()
    return with_ms, without_ms


def call_ns() -> dict[str, float]:
    """Nanoseconds of one call that does nothing: plain, as an operation, and of an empty scope."""

    def empty(x: int, *, scale: float) -> None:
        pass

    card = Card(meaning="", formula="", source="", operations=nothing)
    wrapped = op(card=card)(empty)
    try:
        names: dict[str, Any] = {"plain": empty, "wrapped": wrapped, "scope": scope}
        statements = {
            "plain call": "plain(1, scale=2.0)",
            "call of an operation": "wrapped(1, scale=2.0)",
            "scope block": "with scope(layer=1, part='mlp'): pass",
        }
        return {
            name: min(timeit.repeat(code, globals=names, number=100_000, repeat=7)) * 1e4
            for name, code in statements.items()
        }
    finally:
        del OPS["empty"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks overhead`."""
    parser.add_argument("--behind", type=int, default=16, help="tokens behind the decode step (default 16)")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of steps (default 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")


def run(options: argparse.Namespace, gguf: Path) -> int:
    """Measures the cost of `@op` in two ways, and says whether it is within its limit."""
    steps = steps_of_file(gguf)
    print("; ".join(f"{name} {value}" for name, value in description().items()))
    print("; ".join(blas_libraries()))
    steps.prefill(options.behind)
    clock = CLOCKS[options.clock]
    watch = Stopwatch(clock)
    with recording(watch):
        steps.decode()
    calls = sum(watch.calls.values())
    with_ms, without_ms = pairs_ms(steps.decode, options.pairs, clock)
    figures = summary(with_ms, without_ms, calls, call_ns())
    print("\n".join(f"{name}: {value:.4g}" for name, value in figures.items()))
    held = (
        figures["by calls, % of a step"] <= MOST_PERCENT and figures["by pairs, % of a step"] <= MOST_PERCENT
    )
    print(f"{'holds' if held else 'FAILS'} `@op` off costs at most {MOST_PERCENT:g} % of a decode step")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if held else 1


def summary(
    with_ms: list[float], without_ms: list[float], calls: int, one_ns: dict[str, float]
) -> dict[str, float]:
    """The cost from differences pair by pair, and from single calls times their number."""
    differences_us = [1e3 * (own - plain) for own, plain in zip(with_ms, without_ms, strict=True)]
    quartiles_us = statistics.quantiles(differences_us, n=4)
    step_ms, pair_us = statistics.median(without_ms), quartiles_us[1]
    call_cost_ns = one_ns["call of an operation"] - one_ns["plain call"]
    return {
        "step without the decorator, ms": step_ms,
        "step with it, ms": statistics.median(with_ms),
        "operations in a step": calls,
        "difference of pairs, µs (median)": pair_us,
        "difference of pairs, µs (lower quartile)": quartiles_us[0],
        "difference of pairs, µs (upper quartile)": quartiles_us[2],
        "by pairs, % of a step": 100 * pair_us / (1e3 * step_ms),
        "by pairs, µs an operation": pair_us / calls,
        **{f"{name}, ns": ns for name, ns in one_ns.items()},
        "by calls, µs an operation": call_cost_ns / 1e3,
        "by calls, % of a step": 100 * call_cost_ns * calls / (1e6 * step_ms),
    }
