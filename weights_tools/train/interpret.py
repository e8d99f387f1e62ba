"""Measures what the heads do: copying a repeated sequence, and pointing at who has a thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from weights_tools.train.examine import answered_exactly
from weights_tools.train.items import Item
from weights_tools.train.looking import Head, look
from weights_tools.train.network import Network
from weights_tools.train.tokenizer import BEGIN_ID, FIRST_BYTE_ID
from weights_tools.train.words import NAMES


@dataclass(frozen=True)
class Induction:
    """How well each head looks at what followed the last time, and how often the copy is right."""

    score_of: dict[Head, float]
    copied: float

    @property
    def best(self) -> Head:
        """The head with the highest score."""
        return max(self.score_of, key=self.score_of.__getitem__)


def measure_induction(network: Network, *, lag: int = 50, rows: int = 20, seed: int = 11) -> Induction:
    """Repeat random ids once at a lag; the score is the mean attention on what followed the same id before."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(FIRST_BYTE_ID, network.shape.vocabulary, (rows, lag), generator=generator)
    ids = torch.cat((torch.full((rows, 1), BEGIN_ID), once, once), 1)
    logits, patterns = look(network, ids)
    # Token t of the second copy (t = lag + 1 ...) is the same as t - lag; what followed that is t - lag + 1.
    places = torch.arange(lag + 1, 2 * lag)
    scores = {
        (layer, head): float(weights[:, head, places, places - lag + 1].mean())
        for layer, weights in enumerate(patterns)
        for head in range(weights.shape[1])
    }
    copied = (logits.argmax(-1)[:, places] == ids[:, places + 1]).float().mean()
    return Induction(scores, float(copied))


@dataclass(frozen=True)
class Pointing:
    """The heads that point at the holder of a thing, and what the answers lose without each of them."""

    attention_of: dict[Head, float]
    right_without: dict[Head, float]
    right: float

    @property
    def by_attention(self) -> Head:
        """The head that puts most on the holder, less what it puts on the other names."""
        return max(self.attention_of, key=self.attention_of.__getitem__)

    @property
    def by_ablation(self) -> Head:
        """The head whose loss costs most answers."""
        return min(self.right_without, key=self.right_without.__getitem__)


def measure_pointing(network: Network, tokenizer: Any, items: list[Item]) -> Pointing:
    """Measure attention from where the holder is named next and zero every head in turn."""
    chosen = [item for item in items if item.candidates >= 2]
    pairs = [item.ids(tokenizer) for item in chosen]
    name_ids = {name: {tokenizer.piece_to_id("▁" + name), tokenizer.piece_to_id(name)} for name in NAMES}
    sums: dict[Head, float] = {}
    for item, (before, answer) in zip(chosen, pairs, strict=True):
        holder = item.answer.rstrip(".").split()[-1]
        prompt = before + answer[:-2]  # up to where the holder is named: "… Answer: The drum is with"
        ids = torch.tensor(prompt)
        others = set().union(*(name_ids[name] for name in NAMES if name != holder))
        on_holder = torch.tensor([value in name_ids[holder] for value in prompt])
        on_others = torch.tensor([value in others for value in prompt])
        for layer, weights in enumerate(look(network, ids[None])[1]):
            last = weights[0, :, -1]
            gain = (last * on_holder).sum(-1) - (last * on_others).sum(-1)
            for head, value in enumerate(gain.tolist()):
                sums[layer, head] = sums.get((layer, head), 0.0) + value / len(chosen)
    without = {head: _share_right(network, pairs, head) for head in sums}
    return Pointing(sums, without, _share_right(network, pairs, None))


def _share_right(network: Network, pairs: list[tuple[list[int], list[int]]], without: Head | None) -> float:
    right = answered_exactly(lambda ids: look(network, ids, without)[0], pairs)
    return sum(right) / len(right)
