"""A forward pass that can be looked into: attention weights of every head, single heads switched off, a K/V cache.

The same blocks as in training, so that what is measured is what was trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from weights_tools.train.network import Network, rope_tables

Head = tuple[int, int]


@torch.no_grad()
def look(network: Network, ids: Tensor, without: Head | None = None) -> tuple[Tensor, list[Tensor]]:
    """Give logits [batch, tokens, vocabulary] and each layer's weights [batch, heads, tokens, tokens].

    `without` names a (layer, head) whose mixed values are set to zero.
    """
    tables, mask = network.tables(ids.shape[1])
    x, patterns = network.embedding(ids), []
    for layer, block in enumerate(network.layers()):
        mixed, weights = block.attend(*block.project(x, tables), mask)
        if without and without[0] == layer:
            mixed = mixed.clone()
            mixed.flatten(1, 2)[:, without[1]] = 0.0
        x = block.finish(x, mixed)
        patterns.append(weights.flatten(1, 2))
    return functional.linear(network.final_norm(x), network.embedding.weight), patterns


@dataclass
class Cache:
    """Keys and values of one layer, [batch, kv_heads, positions, channels]."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class Decoder:
    """Reads one token of each row at a time and gives the logits after it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.caches = [Cache() for _ in network.layers()]
        self.cosine, self.sine = rope_tables(network.shape, network.shape.context_tokens)
        self.position = 0

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        """Read one id a row, [batch]; gives logits [batch, vocabulary]."""
        tables = self.cosine[self.position, None], self.sine[self.position, None]
        x = self.network.embedding(ids)[:, None]
        for block, cache in zip(self.network.layers(), self.caches, strict=True):
            grouped, key, value = block.project(x, tables)
            cache.keys.append(key)
            cache.values.append(value)
            mixed, _ = block.attend(
                grouped, torch.cat(cache.keys, 2), torch.cat(cache.values, 2), torch.zeros(())
            )
            x = block.finish(x, mixed)
        self.position += 1
        return functional.linear(self.network.final_norm(x[:, 0]), self.network.embedding.weight)


def sample_stories(
    network: Network, opening: list[int], end_id: int, count: int, seed: int, heat: float
) -> list[list[int]]:
    """Continue an opening `count` times at temperature `heat` until the end id or the end of the context."""
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(network)
    rows = torch.tensor([opening] * count)
    for column in range(rows.shape[1]):
        logits = decoder.read(rows[:, column])
    done = torch.zeros(count, dtype=torch.bool)
    while not bool(done.all()) and rows.shape[1] < network.shape.context_tokens:
        drawn = torch.multinomial(torch.softmax(logits / heat, -1), 1, generator=generator)[:, 0]
        drawn = torch.where(done, end_id, drawn)
        rows = torch.cat((rows, drawn[:, None]), 1)
        done |= drawn == end_id
        logits = decoder.read(drawn)
    return [row[: row.index(end_id) + 1] if end_id in row else row for row in rows.tolist()]
