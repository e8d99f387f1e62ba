"""Prefill and decode steps of HAAW on a loaded model, for the profile and the overhead: the caches come ready-made."""

from collections.abc import Sequence
from pathlib import Path

import haaw
from benchmarks.plan import TEXT
from haaw.caches.dynamic import DynamicCache
from haaw.generation.engine import advance
from haaw.models.protocol import Transformer
from haaw.ops.choosing import greedy

CHUNK_TOKENS = 512


def steps_of_file(gguf: Path) -> "Steps":
    """The model of a file, and the benchmark prompt in its ids."""
    model = haaw.load(gguf)
    return Steps(model.transformer, model.prepare(TEXT, form="raw").ids)


class Steps:
    """One sequence of a model that can be put back, so that the same step runs again and again."""

    def __init__(self, model: Transformer, text_ids: Sequence[int]) -> None:
        self.model = model
        self._text_ids = list(text_ids)
        self._cache: DynamicCache | None = None

    def ids(self, tokens: int) -> list[int]:
        """The benchmark prompt, repeated up to so many ids."""
        return (self._text_ids * (1 + tokens // len(self._text_ids)))[:tokens]

    def prefill(self, tokens: int) -> None:
        """A prompt of that length into a new cache, in chunks of 512."""
        self._cache = DynamicCache(self.model.cache_layout, self.model.prototype_Z)
        ids = self.ids(tokens)
        for start in range(0, tokens, CHUNK_TOKENS):
            self._advance(ids[start : start + CHUNK_TOKENS])

    def decode(self) -> None:
        """One step of one token; the cache is as long afterwards as before."""
        assert self._cache is not None
        length = self._cache.length
        self._advance([self._text_ids[0]])
        self._cache.crop_to(length)

    def _advance(self, ids: Sequence[int]) -> int:
        assert self._cache is not None
        return int(greedy(advance(self.model, self._cache, ids)[-1])[0])
