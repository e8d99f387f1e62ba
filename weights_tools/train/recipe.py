"""The recipe of the embedded model: every choice that the trained weights depend on, and its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from weights_tools.train.documents import EARLY_MIXTURE, LATE_MIXTURE, QUESTION_SHARE


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    vocabulary: int = 1792
    width: int = 192
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp_width: int = 384
    context_tokens: int = 512
    rope_base: float = 10_000.0
    eps: float = 1e-5


@dataclass(frozen=True)
class Recipe:
    """How the model is trained. Rows of the short length come first, of the whole context later."""

    shape: Shape = field(default_factory=Shape)
    seed: int = 7
    batch_tokens: int = 2048
    short_tokens: int = 256
    long_from: float = 0.75
    early_until: float = 0.10
    muon_lr: float = 0.006
    muon_decay: float = 0.1
    adam_lr: float = 0.002
    warmup_steps: int = 100
    decay_from: float = 0.4
    tokenizer_documents: int = 12_000
    generator: str = "3"

    def with_width(self, **sizes: int) -> Recipe:
        """Give the same recipe with other sizes of the network."""
        return replace(self, shape=replace(self.shape, **sizes))

    def going_on(self) -> Recipe:
        """Give the recipe for a training that begins with a trained model: gentler, and without the early documents."""
        return replace(
            self, early_until=0.0, muon_lr=0.7 * self.muon_lr, adam_lr=0.7 * self.adam_lr, decay_from=0.2
        )

    def as_dict(self) -> dict[str, Any]:
        """Give every choice as plain values, the mixture of the documents included."""
        return {**asdict(self), "early": EARLY_MIXTURE, "late": LATE_MIXTURE, "questions": QUESTION_SHARE}

    def digest(self, tokenizer_model: bytes) -> str:
        """Give a digest of the recipe and its tokenizer; a checkpoint of another digest is not continued."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode() + tokenizer_model).hexdigest()

    def tokens_at(self, progress: float) -> int:
        """Give the row length at a share of the training from 0 to 1."""
        return self.short_tokens if progress < self.long_from else self.shape.context_tokens

    def mixture_at(self, progress: float) -> dict[str, float]:
        """Give the shares of the documents at a share of the training."""
        return EARLY_MIXTURE if progress < self.early_until else LATE_MIXTURE

    def rate_at(self, progress: float, step: int) -> float:
        """Give the factor on the learning rates: warm up, stay, fall in a straight line to a fiftieth."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        if progress <= self.decay_from:
            return warm
        return warm * max(0.02, 1.0 - (progress - self.decay_from) / (1.0 - self.decay_from))
