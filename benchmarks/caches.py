"""Decode time against context for every kind of KV cache: a whole step of the model, and append and view alone.

All kinds are filled with rows made at random, and then take turns, token by token, in an order that changes each
time, so that a drift of the machine's speed hits all of them alike.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import haaw
from benchmarks.cache_report import Findings, limits, tables
from benchmarks.cache_runs import Contestant, contestants, moved_bytes
from benchmarks.clocks import CLOCKS, took_ms
from benchmarks.machine import blas_libraries, description
from haaw.models.protocol import Transformer

CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
QUICK_CONTEXTS = (24, 48, 96)
MOST_WITHOUT_CACHE = 1024
WARM_STEPS = 2
GROWN = ("dynamic", "static")
GROWTHS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks caches`."""
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=CONTEXTS, help="tokens there are after the last step"
    )
    parser.add_argument(
        "--steps", type=int, default=16, help="steps of each kind that are timed (default 16)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures (.png, .svg, .pdf)")
    parser.add_argument("--quick", action="store_true", help="short contexts, few steps: only that it runs")


def run(options: argparse.Namespace, gguf: Path) -> int:
    """Measures, prints, and says whether what must hold does: status 1 where it does not."""
    model = haaw.load(gguf).transformer
    steps = min(3, options.steps) if options.quick else options.steps
    contexts = possible(QUICK_CONTEXTS if options.quick else options.contexts, steps, model)
    machine = description()
    print("; ".join(f"{name} {value}" for name, value in machine.items()))
    print("; ".join(blas_libraries()), flush=True)
    findings = measure(model, contexts, steps, CLOCKS[options.clock])
    print(tables(findings))
    text, held = limits(findings)
    print(text)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, **findings.to_dict()}, indent=1))
    if options.plot:
        from benchmarks.cache_plot import draw

        draw(findings, str(machine["cpu"]), options.plot)
        print(f"the picture is in {options.plot}", file=sys.stderr)
    return 0 if held or options.quick else 1


def possible(contexts: Sequence[int], steps: int, model: Transformer) -> list[int]:
    """The contexts that the model has and that the steps fit into. Errors: ends the program where there is none."""
    least, most = needed(steps), model.context_length_tokens
    found = sorted({each for each in contexts if least < each <= most})
    if left := sorted(set(contexts) - set(found)):
        print(f"left out: {left}; contexts go from {least + 1} to {most:,} here", file=sys.stderr)
    if not found:
        raise SystemExit("no context is left to be measured; choose others with --contexts, or fewer --steps")
    return found


def needed(steps: int) -> int:
    """Tokens that all steps of one context take: the one that is counted, those with the model and those without."""
    return 2 * (WARM_STEPS + steps) + 1


def measure(model: Transformer, contexts: Sequence[int], steps: int, clock: Callable[[], float]) -> Findings:
    """All kinds at each context: one token is counted, `steps` are run by the model, and as many without it."""
    findings = Findings(list(contexts), model.cache_layout.bytes_per_position)
    for context in contexts:
        runners = contestants(model, without_cache=context <= MOST_WITHOUT_CACHE)
        for each in runners:
            each.fill(context - needed(steps))
        cached = [each for each in runners if each.cache is not None]
        findings.moved_bytes.append({each.name: moved_bytes(each) for each in cached})
        findings.decode_ms.append(in_turns(runners, Contestant.decode, steps, clock))
        findings.alone_ms.append(in_turns(cached, Contestant.append_and_view, steps, clock))
        for each in runners:
            each.release()
    for _ in range(GROWTHS):
        for each in contestants(model, without_cache=False):
            if each.name in GROWN:
                findings.growth_ms.setdefault(each.name, []).append(took_ms(clock, grow, each, max(contexts)))
                each.release()
    return findings


def in_turns(
    runners: Sequence[Contestant], step: Callable[[Contestant], None], steps: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Milliseconds of each step, by name; the first two rounds are not counted."""
    order, shuffled = list(runners), random.Random(1)
    times: dict[str, list[float]] = {each.name: [] for each in runners}
    for number in range(WARM_STEPS + steps):
        shuffled.shuffle(order)  # whoever comes behind a kind that copies much finds colder memory
        for each in order:
            took = took_ms(clock, step, each)
            if number >= WARM_STEPS:
                times[each.name].append(took)
    return times


def grow(contestant: Contestant, length: int) -> None:
    """Appends token by token, from nothing."""
    while contestant.length < length:
        contestant.append()
