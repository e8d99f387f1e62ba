"""A transformer whose answer is written down beforehand: for tests of a request's life, not of arithmetic."""

from collections.abc import Callable, Sequence

import numpy as np

from haaw.caches.protocol import CacheLayout
from haaw.models.pack import Pack


class ScriptedModel:
    """Answers a prompt of `prompt_length` ids with `answer`, over and over.

    `before_step(n)` is called at the start of the n-th step (from 0, prefill chunks included) and may raise,
    or return scores to be given instead.
    """

    family = "scripted"

    def __init__(
        self,
        answer: Sequence[int],
        *,
        prompt_length: int,
        vocabulary_size: int = 300,
        context_length_tokens: int = 128,
        before_step: Callable[[int], np.ndarray | None] = lambda step: None,
    ) -> None:
        self.answer = list(answer)
        self.prompt_length = prompt_length
        self.vocabulary_size = vocabulary_size
        self.context_length_tokens = context_length_tokens
        self.before_step = before_step
        self.step_tokens: list[int] = []

    def forward(self, pack: Pack, *, heads: str = "together", rows: str = "last") -> np.ndarray:
        instead_V = self.before_step(len(self.step_tokens))
        (span,) = pack.spans
        tokens = span.stop - span.start
        self.step_tokens.append(tokens)
        zeros_TKC = np.zeros((tokens, 1, 2), np.float32)
        span.cache.append(0, zeros_TKC, zeros_TKC)
        length = span.cache.length + tokens
        logits_BV = np.zeros((1, self.vocabulary_size), np.float32)
        logits_BV[0, self.answer[(length - self.prompt_length) % len(self.answer)]] = 1
        return logits_BV if instead_V is None else instead_V[None]

    @property
    def cache_layout(self) -> CacheLayout:
        return CacheLayout(layers=1, kv_heads=1, head_dim=2, dtype="float32")

    @property
    def prototype_Z(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def named_weights(self) -> dict[str, np.ndarray]:
        return {}
