"""Examines a network: exact answers by greedy choice, beside guessing, an untrained network and exchanged stories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from weights_tools.train.items import Item
from weights_tools.train.network import Network
from weights_tools.train.tokenizer import BEGIN_ID

ROWS = 25


@dataclass(frozen=True)
class Mark:
    """How many items of a group were answered exactly, and how often a guess among what was mentioned would hit."""

    right: int
    count: int
    guess: float

    @property
    def share(self) -> float:
        """Right answers over all."""
        return self.right / self.count


LogitsOf = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def answered_exactly(logits_of: LogitsOf, pairs: list[tuple[list[int], list[int]]]) -> list[bool]:
    """Say for each (prompt ids, answer ids) whether greedy decoding gives just this answer.

    Greedy decoding gives an answer exactly if every token of it is the best one after what came before, so one pass
    over prompt and answer decides.
    """
    right: list[bool] = [False] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index])))
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        longest = max(sum(map(len, pairs[index])) for index in chosen)
        ids = torch.full((len(chosen), longest), BEGIN_ID)
        for row, index in enumerate(chosen):
            whole = [*pairs[index][0], *pairs[index][1]]
            ids[row, : len(whole)] = torch.tensor(whole)
        best = logits_of(ids).argmax(-1)
        for row, index in enumerate(chosen):
            prompt, answer = pairs[index]
            found = best[row, len(prompt) - 1 : len(prompt) - 1 + len(answer)]
            right[index] = found.tolist() == answer
    return right


def examine(
    network: Network,
    tokenizer: Any,
    exam: dict[str, list[Item]],
    filler: Callable[[int], list[int]] | None = None,
) -> dict[str, list[bool]]:
    """Answer a whole exam; `filler` gives ids of unrelated text that pushes an item to the end of the context."""
    answers = {}
    for sort, items in exam.items():
        pairs = [item.ids(tokenizer) for item in items]
        if filler:
            pairs = [(filler(len(prompt) + len(answer)) + prompt, answer) for prompt, answer in pairs]
        answers[sort] = answered_exactly(network, pairs)
    return answers


def mark(items: list[Item], right: list[bool]) -> Mark:
    """Sum up a group of items."""
    return Mark(sum(right), len(items), sum(1 / item.candidates for item in items) / len(items))


def by_candidates(items: list[Item], right: list[bool]) -> dict[int, Mark]:
    """Sum up by the number of names or places that could be guessed (6 stands for 6 and more)."""
    groups: dict[int, tuple[list[Item], list[bool]]] = {}
    for item, hit in zip(items, right, strict=True):
        group = groups.setdefault(min(6, item.candidates), ([], []))
        group[0].append(item)
        group[1].append(hit)
    return {count: mark(*groups[count]) for count in sorted(groups)}


def with_exchanged_stories(items: list[Item]) -> list[Item]:
    """Give every question the story of the next item: what is right then is not read but guessed."""
    return [replace(item, context=items[index - 1].context) for index, item in enumerate(items)]
