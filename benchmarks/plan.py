"""What is measured: sizes, counts, threads and the text.

Standard library only, since the process of every engine reads it.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

TEXT = (
    "A transformer reads its prompt in one pass, which is called prefill, and keeps the keys and values of every "
    "token in a cache. Then it writes the answer one token at a time: each step looks back at all that stands in "
    "the cache, adds one row to it, and gives a score to every token of the vocabulary. The most likely one is "
    "chosen, or one is drawn at random, and the text grows until an end is reached. "
)
"""The benchmark prompt; repeated where more tokens are needed than it has."""

FIRST_WORD_TOKENS = 4
GREEDY_TOKENS = 24


@dataclass(frozen=True)
class Plan:
    """One measurement of one engine, by a clock of `clocks.py`.

    `prefill_tokens`: lengths of prompts into an empty cache. `decode_behind_tokens`: how many tokens are cached when
    single steps are timed. `generate_tokens`: length of an answer through the engine's own loop.
    """

    model: str
    threads: int
    clock: str = "wall"
    prefill_tokens: tuple[int, ...] = (32, 128, 512)
    prefill_repeats: int = 3
    decode_behind_tokens: tuple[int, ...] = (16, 512, 2048)
    decode_steps: int = 24
    generate_tokens: int = 48

    def to_json(self) -> str:
        """The plan as one line, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Plan":
        """The plan that `to_json` wrote."""
        values: dict[str, Any] = json.loads(line)
        for name, value in values.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    @property
    def longest_tokens(self) -> int:
        """Room that a cache needs for everything that is measured."""
        longest = max(*self.prefill_tokens, *self.decode_behind_tokens)
        return longest + self.decode_steps + self.generate_tokens + 16


def shortened(plan: Plan) -> Plan:
    """A plan for a look at whether everything runs; its figures mean little."""
    return Plan(
        plan.model,
        plan.threads,
        plan.clock,
        prefill_tokens=(32, 128),
        prefill_repeats=2,
        decode_behind_tokens=(16, 128),
        decode_steps=6,
        generate_tokens=8,
    )
