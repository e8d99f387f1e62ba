"""HAAW beside other engines, in turns A B A B …: load, first word, prefill, decode, memory, and the limits set to HAAW.

Loads no engine itself; each turn is two fresh processes.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.engines.haaw_engine import DEFAULT_CHUNK
from benchmarks.machine import available_cores, description
from benchmarks.plan import TEXT, Plan, shortened
from benchmarks.processes import (
    Contestant,
    EngineFailedError,
    Turn,
    export_for_transformers,
    python_has,
    take_turn,
)
from benchmarks.report import Spread, pair_ratios, spread, table

Turns = dict[str, list[Turn]]
MB = 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m benchmarks compare`."""
    parser.add_argument("--turns", type=int, default=3, help="turns of each engine (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, one turn: does everything run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every turn")
    parser.add_argument("--without", nargs="*", default=[], choices=["transformers", "llama.cpp"])
    parser.add_argument("--llama-python", default=sys.executable, help="the interpreter that has llama_cpp")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "haaw-benchmarks",
        help="folder for exports",
    )


def run(options: argparse.Namespace, gguf: Path) -> int:
    """Runs the comparison and prints it; 1 if HAAW misses a limit or the engines disagree."""
    plan = Plan(str(gguf), options.threads or available_cores(), options.clock)
    turns_each = options.turns
    if options.quick:
        plan, turns_each = shortened(plan), 1
        print("--quick: small sizes and one turn, so the figures mean little", file=sys.stderr)
    machine, start_s = description(), time.perf_counter()
    turns: Turns = {each.engine: [] for each in contestants(options, gguf)}
    for number in range(turns_each):
        for each in contestants(options, gguf):
            print(f"turn {number + 1} of {turns_each}: {each.engine} …", file=sys.stderr)
            try:
                turns[each.engine].append(take_turn(each, replace(plan, model=each.model)))
            except EngineFailedError as error:
                print(error, file=sys.stderr)
                return 3
    machine["seconds"] = round(time.perf_counter() - start_s)
    kept = limits(turns)
    print(report(machine, plan, turns, kept))
    if options.json:
        options.json.write_text(json.dumps(as_json(machine, plan, turns, kept), indent=1))
    return 0 if options.quick or all(held for _, _, held in kept) else 1


def contestants(options: argparse.Namespace, gguf: Path) -> list[Contestant]:
    """HAAW, and the others as far as they are installed and wanted."""
    found = [Contestant("haaw", sys.executable, str(gguf))]
    if "transformers" not in options.without and python_has(sys.executable, "transformers, torch"):
        folder = export_for_transformers(gguf, options.work)
        found.append(Contestant("transformers", sys.executable, str(folder)))
    if "llama.cpp" not in options.without and python_has(options.llama_python, "llama_cpp"):
        found.append(Contestant("llama.cpp", options.llama_python, str(gguf)))
    return found


def measured(turn: Turn) -> dict[str, float]:
    """Every row of the table from one turn; of several variants the faster one counts, but for HAAW's chunks."""
    rows = {
        "load, s": turn.load_s,
        "first word from process start, s": turn.first_word_s,
        "anonymous memory while loading, MB": turn.load_anonymous_bytes / MB,
        "anonymous memory afterwards, MB": turn.run_anonymous_bytes / MB,
        "peak of all memory (VmHWM), MB": turn.resident_bytes / MB,
    }
    for name, variants_ms in turn.figures_ms.items():
        rows[f"{name}, ms"] = variants_ms.get(DEFAULT_CHUNK) or min(variants_ms.values())
        if "chunk 256" in variants_ms:
            rows[f"{name}, ms, HAAW with chunk 256"] = variants_ms["chunk 256"]
    return rows


def columns(turns: Turns) -> dict[str, dict[str, list[float]]]:
    """Row -> engine -> one figure a turn. A row of HAAW's alone is held against the others' same row."""
    rows: dict[str, dict[str, list[float]]] = {}
    for engine, each in turns.items():
        for turn in each:
            for name, value in measured(turn).items():
                rows.setdefault(name, {}).setdefault(engine, []).append(value)
    for name, by_engine in rows.items():
        plain = rows[name.removesuffix(", HAAW with chunk 256")]
        for engine, values in plain.items():
            by_engine.setdefault(engine, values)
    return rows


def limits(turns: Turns) -> list[tuple[str, str, bool]]:
    """What HAAW promises: (the promise, what was measured, whether it holds)."""
    rows = columns(turns)
    weights_bytes = turns["haaw"][0].facts["weights_bytes"]
    loading, first = (
        rows["anonymous memory while loading, MB"]["haaw"],
        rows["first word from process start, s"]["haaw"],
    )
    most_mb = 1.3 * weights_bytes / MB + 64
    found = [
        ("first word within 5 s", f"{max(first):.2f} s", max(first) <= 5),
        (
            f"anonymous memory while loading at most {most_mb:.0f} MB",
            f"{max(loading):.0f} MB",
            max(loading) <= most_mb,
        ),
    ]
    if "transformers" not in turns:
        return found
    wanted = [(name, 1.2) for name in rows if name.startswith("decode")] + [("prefill of 512, ms", 0.9)]
    for name, least in wanted:
        if name in rows:
            ratio = pair_ratios(rows[name]["haaw"], rows[name]["transformers"]).median
            found.append((f"{name.removesuffix(', ms')}: at least {least} times as fast as transformers",
                          f"{ratio:.2f}", ratio >= least))  # fmt: skip
    same = turns["haaw"][0].facts["greedy_ids"] == turns["transformers"][0].facts["greedy_ids"]
    return [*found, ("the same greedy ids as transformers", "same" if same else "different", same)]


def report(machine: dict[str, Any], plan: Plan, turns: Turns, kept: list[tuple[str, str, bool]]) -> str:
    """The whole answer as text."""
    others = [engine for engine in turns if engine != "haaw"]
    header = ["median (least–most)", "HAAW", *others, *(f"{engine} / HAAW" for engine in others)]
    rows = []
    for name, by_engine in columns(turns).items():
        digits = 2 if name.endswith(", s") or "decode" in name or "answer" in name else 0
        shown = [spread(by_engine["haaw"]).text(digits)]
        shown += [spread(by_engine[engine]).text(digits) for engine in others]
        shown += [ratio_text(pair_ratios(by_engine["haaw"], by_engine[engine])) for engine in others]
        rows.append([name, *shown])
    parts = ["; ".join(f"{name} {value}" for name, value in machine.items())]
    parts += [engine_line(engine, each[0]) for engine, each in turns.items()]
    parts += [f"prompt: {TEXT[:60]}…"]
    parts += [
        f"greedy answer of {engine}: {each[0].facts['greedy_text']!r}" for engine, each in turns.items()
    ]
    parts += ["", table(header, rows), ""]
    parts += [f"{'holds' if held else 'FAILS':6} {promise}: {value}" for promise, value, held in kept]
    return "\n".join(parts)


def ratio_text(ratio: Spread) -> str:
    """A ratio and its range."""
    return f"{ratio.median:.2f} ({ratio.least:.2f}–{ratio.most:.2f})"


def engine_line(engine: str, turn: Turn) -> str:
    """Versions, threads, and which variants the figures come from."""
    facts = turn.facts
    said = f"{engine}: {facts['version']}; weights {facts['weights']}; {', '.join(facts['threads'])}"
    if engine == "haaw" or all(len(variants_ms) == 1 for variants_ms in turn.figures_ms.values()):
        return said
    best = [f"{name} {min(ms.items(), key=lambda pair: pair[1])[0]}" for name, ms in turn.figures_ms.items()]
    return f"{said}; the faster variant of turn 1: {', '.join(best)}"


def as_json(
    machine: dict[str, Any], plan: Plan, turns: Turns, kept: list[tuple[str, str, bool]]
) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "machine": machine,
        "plan": asdict(plan),
        "turns": {engine: [asdict(turn) for turn in each] for engine, each in turns.items()},
        "rows": {
            name: {engine: asdict(spread(values)) for engine, values in by_engine.items()}
            for name, by_engine in columns(turns).items()
        },
        "limits": [{"promise": promise, "measured": value, "holds": held} for promise, value, held in kept],
    }
