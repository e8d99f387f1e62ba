"""A recorder that only listens: it keeps the facts, which must be JSON, and runs the operations."""

import json
from typing import Any

from haaw.arrays import is_array
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope


class Collector(Recorder):
    """`facts` in order, with their scopes; `lengths` of the first result of every operation, by name."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, dict[str, Any], Scope]] = []
        self.lengths: list[tuple[str, int]] = []
        self.blocks = 0
        self.requests = 0

    def number_request(self) -> int:
        self.requests += 1
        return self.requests

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        result = op.plain(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        if is_array(first):
            self.lengths.append((op.name, len(first)))
        return result

    def declare(self, name: str, array: Any, scope: Scope) -> None:
        pass

    def know_weights(self, weights: Any) -> None:
        pass

    def begin_step(self, scope: Scope) -> None:
        self.blocks += 1

    def emit(self, kind: str, facts: Any, scope: Scope) -> None:
        self.facts.append((kind, json.loads(json.dumps(facts, allow_nan=False)), scope))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.facts]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [facts for each, facts, _ in self.facts if each == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (facts,) = self.of(kind)
        return facts

    def answer(self) -> tuple[str, list[int]]:
        """Text and ids as whoever reads the facts puts them together."""
        text, ids = "", []
        for kind, facts, _ in self.facts:
            if kind == "delta":
                text += facts["text"]
                ids += [] if facts["token_id"] is None else [facts["token_id"]]
            elif kind == "text_anew":
                text, ids = facts["text"], list(facts["token_ids"])
        return text, ids
