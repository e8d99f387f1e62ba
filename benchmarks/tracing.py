"""What a trace costs: a step with a recording against the same step without one, the file, and running a step again.

Times are wall time (or processor time) from one piece of the answer to the next, so that all of a recorder's work
counts, also what it does after the token was chosen. The figures are medians of pairs of neighbouring steps.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import process_time
from typing import Any

import haaw
from benchmarks.clocks import CLOCKS, took_ms
from benchmarks.machine import blas_libraries, description
from benchmarks.plan import TEXT
from benchmarks.report import pair_ratios, spread, table, told
from haaw.generation.language_model import LanguageModel
from haaw.tracing.rerun import Rerun
from haaw.tracing.schema import OPERATION
from haaw.tracing.trace import Trace

LEVELS = ("events", "replayable", "full")
MOST_TIMES = {"events": 1.20, "replayable": 1.25, "full": 1.35}
MOST_US_AN_EVENT = 7.0
MOST_BYTES_A_TOKEN = 120_000
MOST_STEPS_TO_REMATERIALISE = 1.5
NOT_COUNTED = 2
"""Decode steps at the beginning of an answer."""


@dataclass(frozen=True)
class Pairs:
    """Milliseconds of decode steps without and with a recording, each pair side by side in time."""

    plain: list[float]
    recorded: list[float]

    def __add__(self, other: "Pairs") -> "Pairs":
        return Pairs(self.plain + other.plain, self.recorded + other.recorded)


def step_pairs(
    model: LanguageModel, prompt: str, tokens: int, level: str, clock: Callable[[], float], path: Path
) -> Pairs:
    """Two answers step by step in turns, one of them recorded; which goes first changes.

    A machine with other guests changes its speed within seconds, so only neighbours can be compared.
    """

    def answer() -> Iterator[object]:
        return iter(model.stream(prompt, form="raw", max_tokens=tokens, stop_ids=()))

    plain, found = answer(), Pairs([], [])
    next(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one of them is not recorded is meant
        with haaw.record(path, keep=level):
            recorded = answer()
            next(recorded)
            for step in range(tokens - 1):
                turns = [(plain, found.plain), (recorded, found.recorded)]
                for stream, took in turns if step % 2 else reversed(turns):
                    took.append(took_ms(clock, next, stream, None))
            for stream in (plain, recorded):
                deque(stream, maxlen=0)
    return Pairs(found.plain[NOT_COUNTED:], found.recorded[NOT_COUNTED:])


def all_pairs(
    model: LanguageModel, prompt: str, tokens: int, turns: int, clock: Callable[[], float], folder: Path
) -> dict[str, Pairs]:
    """The pairs of every level, whose answers take turns as well."""
    found = {level: Pairs([], []) for level in LEVELS}
    for _ in range(turns):
        for level in LEVELS:
            found[level] += step_pairs(model, prompt, tokens, level, clock, folder / f"{level}.haaw")
    return found


def of_files(folder: Path) -> dict[str, dict[str, float]]:
    """Bytes and events of a decode step by level: the members of its segments, manifest and prefill left out."""
    found = {}
    for level in LEVELS:
        with Trace(folder / f"{level}.haaw") as trace:
            steps = trace.steps("decode")
            sizes = {segment.number: 0 for segment in trace.segments}
            for name, member in trace.container.members.items():
                number = name.partition("/")[0][1:]
                if number.isdigit():
                    sizes[int(number)] += member.size + 128  # and its header
            decoding = {trace.segment_of(step.first)[0].number for step in steps}
            events = sum(
                int((segment.events["kind"] == OPERATION).sum())
                for segment in trace.segments
                if segment.number in decoding
            )
            found[level] = {
                "bytes": sum(sizes[number] for number in decoding) / len(steps),
                "events": events / len(steps),
            }
    return found


def rematerialised_steps(path: Path, model: LanguageModel, clock: Callable[[], float]) -> dict[str, float]:
    """What running decode steps again costs, in decode steps that are run beside them, in turns.

    The last one with nothing prepared, and each behind the one before it.
    """
    with Trace(path, weights=model.transformer.named_weights) as trace:
        steps = trace.steps("decode")
        plain = iter(model.stream(TEXT, form="raw", max_tokens=len(steps) + 1, stop_ids=()))
        next(plain)
        rerun = Rerun(trace)
        cold_ms = took_ms(clock, rerun.step, steps[-1])
        rerun.step(steps[NOT_COUNTED])
        once_ms, again_ms = [], []
        for step in steps[NOT_COUNTED + 1 :]:
            once_ms.append(took_ms(clock, next, plain, None))
            again_ms.append(took_ms(clock, rerun.step, step))
        deque(plain, maxlen=0)
    return {"cold": cold_ms / statistics.median(once_ms), "warm": pair_ratios(once_ms, again_ms).median}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks tracing`."""
    parser.add_argument("--tokens", type=int, default=40, help="tokens of each answer (default 40)")
    parser.add_argument("--turns", type=int, default=8, help="pairs of answers at each level (default 8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--quick", action="store_true", help="two short answers: only to see that it runs")


def run(options: argparse.Namespace, gguf: Path) -> int:
    """Measures all of it, and says which limits hold."""
    model, clock = haaw.load(gguf), CLOCKS[options.clock]
    tokens, turns = (8, 2) if options.quick else (options.tokens, options.turns)
    print("; ".join(f"{name} {value}" for name, value in description().items()))
    print("; ".join(blas_libraries()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step_pairs(model, TEXT, NOT_COUNTED + 2, "events", clock, folder / "first.haaw")
        times = all_pairs(model, TEXT, tokens, turns, clock, folder)
        files = of_files(folder)
        again = rematerialised_steps(folder / "replayable.haaw", model, clock)
    figures = summary(times, files, again)
    print(shown(times, figures))
    checks = judged(figures)
    print(told(checks))
    if options.json:
        options.json.write_text(json.dumps({**figures, "processor_s": process_time()}, indent=1))
    return 0 if options.quick or all(checks.values()) else 1


def summary(
    times: dict[str, Pairs], files: dict[str, dict[str, float]], again: dict[str, float]
) -> dict[str, Any]:
    """All figures: by level ratio, µs an event and bytes a token; and what a step costs when it is run again."""
    plain_ms = statistics.median(chain.from_iterable(pairs.plain for pairs in times.values()))
    levels = {}
    for level, pairs in times.items():
        more_ms = [own - plain for plain, own in zip(pairs.plain, pairs.recorded, strict=True)]
        levels[level] = {
            "ratio": pair_ratios(pairs.plain, pairs.recorded).median,
            "us_an_event": 1e3 * statistics.median(more_ms) / files[level]["events"],
            "bytes_a_token": files[level]["bytes"],
            "events_a_token": files[level]["events"],
        }
    return {
        "step_ms": plain_ms,
        "levels": levels,
        "rematerialise_warm_steps": again["warm"],
        "rematerialise_cold_steps": again["cold"],
    }


def shown(times: dict[str, Pairs], figures: dict[str, Any]) -> str:
    """The figures as a table, and a line on running steps again."""
    rows = []
    for level, pairs in times.items():
        one = figures["levels"][level]
        rows.append(
            [
                level,
                spread(pairs.plain).text(2),
                spread(pairs.recorded).text(2),
                f"{one['ratio']:.3f}",
                f"{one['us_an_event']:.2f}",
                f"{one['events_a_token']:,.0f}",
                f"{one['bytes_a_token']:,.0f}",
            ]
        )
    header = ["kept", "plain step, ms", "recorded", "ratio", "µs an event", "events a token", "bytes a token"]
    return (
        table(header, rows)
        + f"\na step run again: {figures['rematerialise_warm_steps']:.2f} steps behind the one before, "
        + f"{figures['rematerialise_cold_steps']:.2f} with nothing prepared (the recorded rows are copied back)"
    )


def judged(figures: dict[str, Any]) -> dict[str, bool]:
    """Which limits hold."""
    levels = figures["levels"]
    checks = {
        f"a decode step under `{level}` takes at most {most:.2f} times as long": levels[level]["ratio"]
        <= most
        for level, most in MOST_TIMES.items()
    }
    checks[f"`events` takes at most {MOST_US_AN_EVENT:g} µs an event"] = (
        levels["events"]["us_an_event"] <= MOST_US_AN_EVENT
    )
    checks[f"`replayable` takes at most {MOST_BYTES_A_TOKEN:,} bytes a token"] = (
        levels["replayable"]["bytes_a_token"] <= MOST_BYTES_A_TOKEN
    )
    checks[f"a decode step is run again in at most {MOST_STEPS_TO_REMATERIALISE:g} steps"] = (
        figures["rematerialise_warm_steps"] <= MOST_STEPS_TO_REMATERIALISE
    )
    return checks
