"""Hugging Face transformers in float32, used as a careful user would: inference mode, own loop, scores of the last row.

Reads a Hugging Face folder that `export_weights.py` made of the same weights.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from benchmarks.machine import blas_libraries
from benchmarks.plan import Plan


class TransformersEngine:
    """`LlamaForCausalLM` with a `DynamicCache`; no attention mask, since nothing is padded."""

    prefill_variants = ("sdpa", "eager")
    decode_variants = ("sdpa", "eager")

    def __init__(self, plan: Plan) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM

        torch.set_num_threads(plan.threads)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(plan.model)
        self._model: Any = LlamaForCausalLM.from_pretrained(
            plan.model, dtype=torch.float32, attn_implementation="sdpa"
        )  # in evaluation mode already
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in 5.x
        self._cache: Any = None

    def use(self, variant: str) -> None:
        self._model.set_attn_implementation(variant)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def prefill(self, ids: Sequence[int]) -> int:
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)
        return self._forward(list(ids))

    def step(self, token_id: int) -> int:
        return self._forward([token_id])

    def _forward(self, ids: list[int]) -> int:
        with self._torch.inference_mode():
            output = self._model(
                self._torch.tensor([ids]), use_cache=True, logits_to_keep=1, **{self._cache_name: self._cache}
            )
            return int(output.logits[0, -1].argmax())

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        with self._torch.inference_mode():
            output = self._model.generate(
                self._torch.tensor([list(ids)]),
                attention_mask=self._torch.ones((1, len(ids)), dtype=self._torch.int64),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        return [int(each) for each in output[0, len(ids) :]]

    def facts(self) -> dict[str, Any]:
        import transformers

        return {
            "version": f"transformers {transformers.__version__}, PyTorch {self._torch.__version__}",
            "threads": [f"PyTorch: {self._torch.get_num_threads()} threads", *blas_libraries()],
            "weights": "float32",
            "weights_bytes": sum(each.nbytes for each in self._model.parameters()),
        }
