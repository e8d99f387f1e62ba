"""HAAW, through the functions that its own requests call."""

from collections.abc import Sequence
from typing import Any

from benchmarks.machine import blas_libraries
from benchmarks.plan import Plan

DEFAULT_CHUNK = "chunk 512"


class HaawEngine:
    """Prefill and steps by `advance`, the function behind every request; whole answers by `model.request`."""

    prefill_variants = (DEFAULT_CHUNK, "chunk 256")
    decode_variants = (DEFAULT_CHUNK,)

    def __init__(self, plan: Plan) -> None:
        import haaw

        self._model = haaw.load(plan.model)
        self._transformer = self._model.transformer
        self._cache: Any = None
        self._chunk_tokens = 512

    def use(self, variant: str) -> None:
        self._chunk_tokens = int(variant.removeprefix("chunk "))

    def encode(self, text: str) -> list[int]:
        return list(self._model.prepare(text, form="raw").ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.tokenizer.decode(ids)

    def prefill(self, ids: Sequence[int]) -> int:
        from haaw.caches.dynamic import DynamicCache

        self._cache = DynamicCache(self._transformer.cache_layout, self._transformer.prototype_Z)
        for start in range(0, len(ids), self._chunk_tokens):
            following = self._advance(ids[start : start + self._chunk_tokens])
        return following

    def step(self, token_id: int) -> int:
        return self._advance([token_id])

    def _advance(self, ids: Sequence[int]) -> int:
        from haaw.generation.engine import advance
        from haaw.ops.choosing import greedy

        return int(greedy(advance(self._transformer, self._cache, ids)[-1])[0])

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        return list(self._model.generate(list(ids), max_tokens=tokens).token_ids)

    def facts(self) -> dict[str, Any]:
        import numpy

        import haaw

        return {
            "version": f"HAAW {haaw.__version__}, NumPy {numpy.__version__}",
            "threads": blas_libraries(),
            "weights": "float32",
            "weights_bytes": sum(each.nbytes for each in self._transformer.named_weights().values()),
        }
