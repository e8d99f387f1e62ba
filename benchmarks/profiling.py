"""Where HAAW's time goes: every operation of a decode step and of a prefill, and the bare matrix products beside them.

Times come from a recorder that does nothing but look at the clock. NumPy is not imported here: HAAW, which comes
first, has a say in how its BLAS waits.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.clocks import CLOCKS, took_ms
from benchmarks.machine import blas_libraries, description
from benchmarks.report import table
from benchmarks.steps import steps_of_file
from haaw.arrays import Array
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope, recording

PRODUCTS = ("linear", "attention_scores", "attention_mix")


class Stopwatch(Recorder):
    """A recorder that adds up seconds and calls by operation; `linear` is told apart by the shape of its weight."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.products: list[tuple[Op, tuple[Any, ...]]] | None = None

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        """Runs and times one operation."""
        start_s = self._clock()
        result = op.plain(*args, **kwargs)
        took_s = self._clock() - start_s
        name = op.name if op.name != "linear" else f"linear {args[1].shape[1]} → {args[1].shape[0]}"
        self.seconds[name] = self.seconds.get(name, 0.0) + took_s
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.products is not None and op.name in PRODUCTS:
            self.products.append((op, args))
        return result

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        """Inputs cost nothing here."""

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        """Weights cost nothing here."""

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        """Events cost nothing here."""


@dataclass(frozen=True)
class Profile:
    """One kind of step: medians in milliseconds, by operation and as a whole."""

    name: str
    whole_ms: float
    timed_ms: float
    bare_ms: float
    operations_ms: dict[str, float]
    calls: dict[str, int]

    @property
    def rest_ms(self) -> float:
        """What lies outside operations: Python between them, windows, the pack. The stopwatch is not in it."""
        return self.whole_ms - sum(self.operations_ms.values())


def profile(name: str, step: Callable[[], None], repeats: int, clock: Callable[[], float]) -> Profile:
    """Runs `step` without a recorder, with the stopwatch, and its matrix products alone, by turns."""
    whole_ms, timed_ms, bare_ms, watches = [], [], [], []
    keeper = Stopwatch(clock)
    keeper.products = []
    with recording(keeper):
        step()
    products = [bare(op, args) for op, args in keeper.products]
    for _ in range(repeats):
        whole_ms.append(took_ms(clock, step))
        watch = Stopwatch(clock)
        with recording(watch):
            timed_ms.append(took_ms(clock, step))
        watches.append(watch)
        bare_ms.append(took_ms(clock, multiply, products))
    operations_ms = {
        name: 1e3 * statistics.median(watch.seconds[name] for watch in watches) for name in watches[0].seconds
    }
    return Profile(
        name,
        statistics.median(whole_ms),
        statistics.median(timed_ms),
        statistics.median(bare_ms),
        dict(sorted(operations_ms.items(), key=lambda pair: -pair[1])),
        watches[0].calls,
    )


def multiply(products: Sequence[tuple[Array, Array]]) -> None:
    """The products alone; each result is let go at once, as new memory for all of them would cost more time."""
    for left, right in products:
        left @ right


def bare(op: Op, args: tuple[Any, ...]) -> tuple[Array, Array]:
    """The two arrays whose product is all that NumPy must do of an operation."""
    if op.name == "linear":
        return args[0], args[1].T
    if op.name == "attention_scores":
        query_THC, keys_KSC = args[:2]
        grouped = query_THC.transpose(1, 0, 2).copy()
        return grouped.reshape(len(keys_KSC), -1, keys_KSC.shape[2]), keys_KSC.transpose(0, 2, 1)
    weights_HTS, values_KSC = args[:2]
    return weights_HTS.reshape(len(values_KSC), -1, values_KSC.shape[1]), values_KSC


def shown(found: Profile) -> str:
    """A profile as text."""
    rows = [
        [
            name,
            f"{ms:.3f}",
            str(found.calls[name]),
            f"{1e3 * ms / found.calls[name]:.1f}",
            f"{ms / found.timed_ms:.1%}",
        ]
        for name, ms in found.operations_ms.items()
    ]
    rows.append(
        ["outside operations", f"{found.rest_ms:.3f}", "", "", f"{found.rest_ms / found.whole_ms:.1%}"]
    )
    products_ms = sum(ms for name, ms in found.operations_ms.items() if name.startswith(PRODUCTS))
    return "\n".join(
        [
            f"\n{found.name}: {found.whole_ms:.2f} ms without a recorder, {found.timed_ms:.2f} ms under the stopwatch",
            table(["operation", "ms", "calls", "µs a call", "share"], rows),
            f"operations with a matrix product: {products_ms:.2f} ms; the same products in bare NumPy: "
            f"{found.bare_ms:.2f} ms, {found.bare_ms / found.whole_ms:.0%} of the whole",
        ]
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks profile`."""
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prefill (default 512)")
    parser.add_argument(
        "--behind", type=int, nargs="+", default=[16, 512, 2048], help="tokens behind a decode step"
    )
    parser.add_argument("--repeats", type=int, default=20, help="decode steps that are timed (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")


def run(options: argparse.Namespace, gguf: Path) -> int:
    """Profiles one prefill and decode steps at several lengths."""
    steps = steps_of_file(gguf)
    print("; ".join(f"{name} {value}" for name, value in description().items()))
    print("; ".join(blas_libraries()))
    clock = CLOCKS[options.clock]
    name = f"prefill of {options.prefill} tokens"
    found = [profile(name, lambda: steps.prefill(options.prefill), max(2, options.repeats // 5), clock)]
    print(shown(found[0]), flush=True)
    for behind in options.behind:
        steps.prefill(behind)
        found.append(profile(f"decode step behind {behind} tokens", steps.decode, options.repeats, clock))
        print(shown(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return 0
