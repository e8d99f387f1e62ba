"""Measures one engine in a process of its own: `python -m benchmarks.child ENGINE measure|first-word PLAN`.

In `measure`, lines of JSON on standard output are events for the parent process; in `first-word`, the text itself.
"""

import importlib
import json
import statistics
import sys
from typing import Any

from benchmarks.clocks import CLOCKS, took_ms
from benchmarks.engines.engine import Engine
from benchmarks.plan import FIRST_WORD_TOKENS, GREEDY_TOKENS, TEXT, Plan

ENGINES = {
    "haaw": ("benchmarks.engines.haaw_engine", "HaawEngine"),
    "transformers": ("benchmarks.engines.transformers_engine", "TransformersEngine"),
    "llama.cpp": ("benchmarks.engines.llama_cpp_engine", "LlamaCppEngine"),
}


def load(name: str, plan: Plan) -> Engine:
    """A loaded engine; what it imports is imported here."""
    module, class_name = ENGINES[name]
    engine: Engine = getattr(importlib.import_module(module), class_name)(plan)
    return engine


def first_words(engine: Engine) -> None:
    """Writes the beginning of an answer to standard output, token by token."""
    token_id = engine.prefill(engine.encode(TEXT))
    for _ in range(FIRST_WORD_TOKENS):
        print(engine.decode([token_id]), end="", flush=True)
        token_id = engine.step(token_id)


def measure(name: str, plan: Plan) -> None:
    """Runs the whole plan, and tells the parent of each stage."""
    clock = CLOCKS[plan.clock]
    start_s = clock()
    engine = load(name, plan)
    tell("loaded", load_s=clock() - start_s)
    text_ids = engine.encode(TEXT)
    ids = text_ids * (1 + plan.longest_tokens // len(text_ids))
    engine.prefill(ids[:64])  # touches every weight and wakes the threads
    greedy_ids = [engine.prefill(text_ids)]
    while len(greedy_ids) < GREEDY_TOKENS:
        greedy_ids.append(engine.step(greedy_ids[-1]))
    tell("figures", figures_ms=figures(engine, plan, ids))
    tell("facts", greedy_ids=greedy_ids, greedy_text=engine.decode(greedy_ids), **engine.facts())


def figures(engine: Engine, plan: Plan, ids: list[int]) -> dict[str, dict[str, float]]:
    """Milliseconds of everything that is timed, by variant."""
    clock = CLOCKS[plan.clock]
    found: dict[str, dict[str, float]] = {}
    for variant in engine.prefill_variants:
        engine.use(variant)
        for tokens in plan.prefill_tokens:
            each_ms = [took_ms(clock, engine.prefill, ids[:tokens]) for _ in range(plan.prefill_repeats)]
            found.setdefault(f"prefill of {tokens:,}", {})[variant] = statistics.median(each_ms)
    for variant in engine.decode_variants:
        engine.use(variant)
        for behind in plan.decode_behind_tokens:
            found.setdefault(f"decode behind {behind:,}", {})[variant] = decode_ms(engine, plan, ids[:behind])
        name = f"answer of {plan.generate_tokens}, a token"
        found.setdefault(name, {})[variant] = answer_ms(engine, plan, ids[:16])
    return found


def decode_ms(engine: Engine, plan: Plan, ids: list[int]) -> float:
    """The median step behind a prompt; two steps before it are not counted."""
    clock = CLOCKS[plan.clock]
    token_id = engine.prefill(ids)
    steps_ms = []
    for _ in range(2 + plan.decode_steps):
        start_s = clock()
        token_id = engine.step(token_id)
        steps_ms.append(1e3 * (clock() - start_s))
    return statistics.median(steps_ms[2:])


def answer_ms(engine: Engine, plan: Plan, ids: list[int]) -> float:
    """Milliseconds for each further token of a long answer: a long answer less a one-token one."""
    clock = CLOCKS[plan.clock]
    short_ms = took_ms(clock, engine.generate, ids, 1)
    return (took_ms(clock, engine.generate, ids, 1 + plan.generate_tokens) - short_ms) / plan.generate_tokens


def tell(event: str, **facts: Any) -> None:
    """Writes one event for the parent."""
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    _, engine_name, mode, plan_json = sys.argv
    if mode == "first-word":
        first_words(load(engine_name, Plan.from_json(plan_json)))
    else:
        measure(engine_name, Plan.from_json(plan_json))
