"""What reading a long trace costs: opening it, finding an event, fetching an array, asking of all events at once."""

import argparse
import json
import random
import shutil
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import haaw
from benchmarks.clocks import CLOCKS, took_ms
from benchmarks.machine import description
from benchmarks.plan import TEXT
from benchmarks.report import Spread, spread, table, told
from haaw.generation.language_model import LanguageModel
from haaw.tracing.trace import Trace

MOST_MS = {"open": 500.0, "event": 1.0, "array": 5.0}
"""What was asked of a file of 1 GB."""

TOKENS = 560
"""Of SmolLM2 they make 1.5 GB."""

OPENED_BY: dict[str, Callable[[Path], Any]] = {"open": Trace, "open by zipfile": zipfile.ZipFile}

WHOLE: dict[str, Callable[[Trace], Any]] = {
    "trace.events": lambda trace: trace.events,
    "trace.phases()": lambda trace: trace.phases(),
    "trace.tree(), shown in a notebook": lambda trace: trace.tree()._repr_html_(),
    "trace.text()": lambda trace: trace.text(),
}


def record(model: LanguageModel, path: Path, tokens: int) -> None:
    """An answer of so many tokens, everything kept."""
    with haaw.record(path, keep="full"):
        deque(model.stream(TEXT, form="raw", max_tokens=tokens, stop_ids=()), maxlen=0)


def measure(path: Path, clock: Callable[[], float], rng: random.Random, count: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of question; the first event and array, for which most is read, are apart."""
    found: dict[str, list[float]] = {name: [] for name in OPENED_BY}
    for _ in range(5):  # the file is in the system's cache
        for name, opening in OPENED_BY.items():
            start_s = clock()
            opened = opening(path)
            found[name].append(1e3 * (clock() - start_s))
            opened.close()
    with Trace(path) as trace:
        numbers = [rng.randrange(len(trace)) for _ in range(count)]
        times = [took_ms(clock, trace.event, number) for number in numbers]
    found["first event"], found["event"] = times[:1], times[1:]
    with Trace(path) as trace:
        steps = [step.name for step in trace.steps("decode")]
    with Trace(path) as trace:
        layers = int(trace.manifest["model"]["layers"])
        arrays = ("attention.weights", "attention.normed", "mlp.update")
        paths = [
            f"{rng.choice(steps)}/layer {rng.randrange(layers)}/{rng.choice(arrays)}" for _ in range(count)
        ]
        times = [took_ms(clock, lambda path: trace.value(path).array, each) for each in paths]
    found["first array"], found["array"] = times[:1], times[1:]
    for name, ask in WHOLE.items():
        with Trace(path) as trace:
            found[name] = [took_ms(clock, ask, trace)]
    return found


def judged(found: dict[str, list[float]]) -> dict[str, bool]:
    """Which limits hold, at the median."""
    sentences = {"open": "a trace opens", "event": "an event is found", "array": "an array is fetched"}
    return {
        f"{sentences[name]} in at most {most_ms:g} ms": spread(found[name]).median <= most_ms
        for name, most_ms in MOST_MS.items()
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks reading`."""
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of the answer (default {TOKENS})")
    parser.add_argument("--count", type=int, default=300, help="events and arrays asked for (default 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--quick", action="store_true", help="a short answer: only to see that it runs")


def run(options: argparse.Namespace, gguf: Path) -> int:
    """Measures all of it, and says which limits hold."""
    model, clock = haaw.load(gguf), CLOCKS[options.clock]
    tokens, count = (8, 20) if options.quick else (options.tokens, options.count)
    print("; ".join(f"{name} {value}" for name, value in description().items()))
    with tempfile.TemporaryDirectory() as name:
        free = shutil.disk_usage(name).free
        if free < 3e6 * tokens:
            raise SystemExit(
                f"{name} has {free / 1e9:.1f} GB free; set TMPDIR to a folder with {tokens * 3 / 1e3:.1f}"
            )
        path = Path(name) / "full.haaw"
        record(model, path, tokens)
        nbytes = path.stat().st_size
        with Trace(path) as trace:
            print(f"{nbytes / 1e9:.2f} GB, {len(trace):,} events in {len(trace.steps())} steps")
        found = measure(path, clock, random.Random(1), count)
    print(shown(found))
    checks = judged(found)
    print(told(checks))
    if options.json:
        options.json.write_text(json.dumps({"bytes": nbytes, "ms": found}, indent=1))
    return 0 if options.quick or all(checks.values()) else 1


def shown(found: dict[str, list[float]]) -> str:
    """The figures as a table."""

    def cells(times: list[float]) -> list[str]:
        whole: Spread = spread(times)
        high = sorted(times)[int(0.99 * len(times))]
        return [f"{figure:,.2f}" for figure in (whole.median, whole.least, high, whole.most)]

    rows = [[name, *cells(times)] for name, times in found.items()]
    return table(["ms", "median", "least", "99 of 100 within", "most"], rows)
