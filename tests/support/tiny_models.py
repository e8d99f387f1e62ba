"""Small models with random weights, built the way a file is loaded. `tiny_llama(seed)` is the usual door."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from haaw.generation.language_model import LanguageModel
from haaw.models import gpt2, llama
from haaw.models.gpt2 import GPT2, GPT2Config
from haaw.models.llama import Llama, LlamaConfig
from haaw.models.weights import WeightLoader

SMALL: dict[str, Any] = {
    "layers": 2,
    "width": 24,
    "query_heads": 4,
    "kv_heads": 2,
    "head_dim": 6,
    "mlp_width": 40,
    "vocabulary_size": 64,
    "context_length_tokens": 128,
    "eps": 1e-5,
    "rope_base": 10_000.0,
    "rope_scaling": None,
    "tied": False,
}


class MemorySource:
    """Tensors in memory, offered as a weight file offers them (`haaw.models.protocol.TensorSource`)."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays
        self.tensors = {name: SimpleNamespace(shape=array.shape) for name, array in arrays.items()}

    def read_into(self, name: str, out: np.ndarray, rows: slice | None = None) -> None:
        out[...] = self._arrays[name] if rows is None else self._arrays[name][rows]


def tiny_config(**changes: Any) -> LlamaConfig:
    """The config of `SMALL`, with changes: `tiny_config(kv_heads=1, head_dim=8)`."""
    return LlamaConfig(**(SMALL | changes))


def tiny_tensors(seed: int, config: LlamaConfig) -> dict[str, np.ndarray]:
    """Random float32 weights under Hugging Face names, half-split RoPE layout, as a checkpoint holds them.

    Matrices have a standard deviation of gain/sqrt(columns), so that activations neither grow nor die; what
    attention does has a higher gain, so that answers vary instead of repeating one id. Norms are near 1.
    """
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return rng.normal(0, gain * columns**-0.5, (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return rng.normal(1, 0.1, config.width).astype(np.float32)

    queries, keys = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {"embedding": matrix(config.vocabulary_size, config.width), "norm": norm()}
    if not config.tied:
        tensors["output"] = matrix(config.vocabulary_size, config.width)
    named = {llama.HUGGING_FACE_NAMES[part]: tensor for part, tensor in tensors.items()}
    for layer in range(config.layers):
        parts = {
            "attention_norm": norm(),
            "query": matrix(queries, config.width, 2),
            "key": matrix(keys, config.width, 2),
            "value": matrix(keys, config.width),
            "attention_output": matrix(config.width, queries, 4),
            "mlp_norm": norm(),
            "gate": matrix(config.mlp_width, config.width),
            "up": matrix(config.mlp_width, config.width),
            "down": matrix(config.width, config.mlp_width, 4),
        }
        named |= {llama.HUGGING_FACE_NAMES[part].format(layer): tensor for part, tensor in parts.items()}
    return named


def tiny_llama(seed: int, *, xp: Any = np, dtype: str = "float32", **changes: Any) -> Llama:
    """A Llama with random weights, in any array library and dtype; the same seed gives the same weights."""
    config = tiny_config(**changes)
    loader = WeightLoader(MemorySource(tiny_tensors(seed, config)), xp=xp, dtype=dtype)
    return llama.build(config, loader, llama.HUGGING_FACE_NAMES, layout="half-split")


def tiny_gpt2(seed: int, *, xp: Any = np, dtype: str = "float32") -> GPT2:
    """A GPT-2 of two layers and three heads with random weights, context 128; the same seed, the same weights."""
    config = GPT2Config(
        layers=2, width=24, heads=3, mlp_width=40, vocabulary_size=64, context_length_tokens=128, eps=1e-5,
        gelu="tanh", attention_scale=8**-0.5, tied=True,
    )  # fmt: skip
    rng, names = np.random.default_rng(seed), gpt2.GGUF_NAMES
    tensors = {
        names["embedding"]: rng.normal(0, 1, (64, 24)).astype(np.float32),
        names["position"]: rng.normal(0, 1, (128, 24)).astype(np.float32),
    }
    shapes = {
        "query_key_value": (72, 24), "attention_output": (24, 24), "up": (40, 24), "down": (24, 40),
        "attention_norm": (24,), "mlp_norm": (24,), "norm": (24,),
    }  # fmt: skip
    for part, shape in shapes.items():
        for name in {names[part].format(layer) for layer in range(2)}:
            weight = rng.normal(0, 2 * 24**-0.5, shape) if len(shape) > 1 else rng.normal(1, 0.2, shape)
            tensors[f"{name}.weight"] = weight.astype(np.float32)
            tensors[f"{name}.bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float32)
    return gpt2.build(
        config, WeightLoader(MemorySource(tensors), xp=xp, dtype=dtype), names, matrices="out-in"
    )


class NumberText:
    """A text side without a tokenizer: id 7 reads "7 "; a prompt is a line of numbers."""

    def __init__(self, eos_ids: Sequence[int] = ()) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.bos_id: int | None = None

    def special_tokens(self) -> dict[str, int]:
        return {}

    def token_bytes(self, token_id: int) -> bytes:
        return f"{token_id} ".encode()

    def detokenizer(self, *, begins: str = "text") -> Any:
        return SimpleNamespace(push=lambda token_id: f"{token_id} ", flush=lambda: "")

    def encode(self, text: str, *, special: str = "text") -> list[int]:
        return [int(word) for word in text.split()]

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int], *, special: str = "hide") -> str:
        return "".join(f"{token_id} " for token_id in ids)


def tiny_language_model(seed: int, *, eos_ids: Sequence[int] = (), **changes: Any) -> LanguageModel:
    """A tiny Llama that answers prompts of token ids; `changes` as for `tiny_llama`."""
    return LanguageModel("random", tiny_llama(seed, **changes), NumberText(eos_ids))
