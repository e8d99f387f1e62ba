"""The network of the embedded model in PyTorch: Llama style, written out so that a compiler can fuse it.

RMSNorm, half-split RoPE, grouped-query attention, SwiGLU, tied embeddings. Knows nothing about text or training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weights_tools.train.recipe import Shape

QUERY_BLOCK = 128


def rope_tables(shape: Shape, tokens: int) -> tuple[Tensor, Tensor]:
    """Give cosine and sine, [tokens, head_dim / 2], rounded as the reference implementations round them."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequency = 1.0 / (shape.rope_base**exponent)
    angle = torch.outer(torch.arange(tokens, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the halves of each head, [batch, tokens, heads, channels]."""
    first, second = x.chunk(2, dim=-1)
    c, s = cosine[None, :, None, :].to(x.dtype), sine[None, :, None, :].to(x.dtype)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square over the last axis."""
        wide = x.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    """One layer: attention, then the MLP, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm = Norm(shape.width, shape.eps)
        self.query = nn.Linear(shape.width, query_width, bias=False)
        self.key = nn.Linear(shape.width, kv_width, bias=False)
        self.value = nn.Linear(shape.width, kv_width, bias=False)
        self.output = nn.Linear(query_width, shape.width, bias=False)
        self.mlp_norm = Norm(shape.width, shape.eps)
        self.gate = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def project(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Give turned queries [batch, kv_heads, group, tokens, channels], keys and values [batch, kv_heads, …]."""
        batch, tokens, _ = x.shape
        shape = self.shape
        normed = self.attention_norm(x)
        query = rotate(self.query(normed).view(batch, tokens, shape.heads, shape.head_dim), *tables)
        key = rotate(self.key(normed).view(batch, tokens, shape.kv_heads, shape.head_dim), *tables)
        value = self.value(normed).view(batch, tokens, shape.kv_heads, shape.head_dim)
        grouped = query.view(batch, tokens, shape.kv_heads, -1, shape.head_dim).permute(0, 2, 3, 1, 4)
        return grouped, key.transpose(1, 2), value.transpose(1, 2)

    def attend(self, grouped: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Give the mixed values and the attention weights of some queries, both by batch, K/V head, group, token."""
        batch, kv_heads, group, tokens, channels = grouped.shape
        # The query heads that share a K/V head are stacked along the token axis: one product for each K/V head.
        stacked = grouped.reshape(batch, kv_heads, group * tokens, channels)
        scores = stacked @ key.transpose(2, 3) * channels**-0.5
        scores = scores.view(batch, kv_heads, group, tokens, -1) + mask
        weights = torch.softmax(scores.float(), dim=-1).to(value.dtype)
        mixed = weights.view(batch, kv_heads, group * tokens, -1) @ value
        return mixed.view(batch, kv_heads, group, tokens, channels), weights

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add the attention's output [batch, kv_heads, group, tokens, channels] and the MLP to the residual stream."""
        x = x + self.output(mixed.permute(0, 3, 1, 2, 4).reshape(*x.shape[:2], -1))
        normed = self.mlp_norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return out

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Map the residual stream [batch, tokens, width]."""
        grouped, key, value = self.project(x, tables)
        mixed = []
        # Blocks of queries need only the keys up to their end: less than the whole square is computed.
        for start in range(0, x.shape[1], QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, x.shape[1])
            part = self.attend(
                grouped[:, :, :, start:stop], key[:, :, :stop], value[:, :, :stop], mask[start:stop, :stop]
            )
            mixed.append(part[0])
        return self.finish(x, torch.cat(mixed, dim=3))


class Network(nn.Module):
    """The whole model: ids [batch, tokens] to logits [batch, tokens, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = Norm(shape.width, shape.eps)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.05)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and not name.startswith("embedding"):
                last = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (0.2 if last else 0.6))

    def layers(self) -> list[Block]:
        """Give the blocks in order."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def tables(self, tokens: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Give RoPE's tables and the causal mask for so many tokens."""
        mask = torch.full((tokens, tokens), float("-inf")).triu(1)
        return rope_tables(self.shape, tokens), mask

    def hidden(self, ids: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Give the normed residual stream after the last layer."""
        x: Tensor = self.embedding(ids)
        for block in self.layers():
            x = block(x, tables, mask)
        normed: Tensor = self.final_norm(x)
        return normed

    def forward(self, ids: Tensor) -> Tensor:
        """Give logits for every position."""
        tables, mask = self.tables(ids.shape[1])
        return functional.linear(self.hidden(ids, tables, mask), self.embedding.weight)

    def loss(self, ids: Tensor, targets: Tensor, weights: Tensor, tables: Any, mask: Tensor) -> Tensor:
        """Give the weighted mean cross-entropy."""
        logits = functional.linear(self.hidden(ids, tables, mask), self.embedding.weight).float()
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / weights.sum()
