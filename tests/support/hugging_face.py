"""Random tiny Llamas of the `transformers` library, which serve as the oracle, and their way over to HAAW."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from support.gguf_models import llama_metadata, llama_tensors, write_gguf
from support.tiny_models import MemorySource

import haaw
from haaw.models import llama
from haaw.models.llama import Llama
from haaw.models.weights import WeightLoader
from haaw.ops import rope

SHAPE: dict[str, Any] = {
    "vocab_size": 263,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}
"""A small config; `vocab_size` leaves room for 256 bytes and some control tokens."""

GAIN = 1.4
"""How much larger than usual queries and keys are; more makes rounding grow from layer to layer."""


def random_model(seed: int, **changes: Any) -> Any:
    """A LlamaForCausalLM in float32 with the plain ("eager") attention and telling random weights.

    Queries and keys are large, so that attention picks out tokens instead of averaging; the embedding is small, so
    that eps counts; the last norm makes up for it, so that logits are of the order of 1 to 10.
    """
    config = transformers.LlamaConfig(**(SHAPE | changes), attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.normal_(1.0, 0.2, generator=generator)
            else:
                spread = 0.06 if "embed" in name else weight.shape[1] ** -0.5
                spread *= GAIN if "q_proj" in name or "k_proj" in name else 1.0
                weight.normal_(0.0, spread, generator=generator)
        embedding_spread = config.hidden_size**0.5 * 0.06
        model.model.norm.weight *= 2.0 / embedding_spread if config.tie_word_embeddings else 2.0
    return model


def reference_logits(model: Any, ids: Sequence[int], *, chunk: int = 512) -> np.ndarray:
    """Logits (T, V) of every position, by the library, which takes long inputs in chunks."""
    argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = {argument: transformers.DynamicCache(config=model.config)}
    pieces = []
    with torch.no_grad():
        for start in range(0, len(ids), chunk):
            piece = torch.tensor([list(ids[start : start + chunk])])
            pieces.append(model(piece, use_cache=True, **cache).logits[0].numpy())
    return np.concatenate(pieces)


def highest_attention_weight(model: Any, ids: Sequence[int], *, first_row: int = 8) -> float:
    """The largest weight of a token that sees more than `first_row` positions; the first sees only itself."""
    with torch.no_grad():
        layers = model(torch.tensor([list(ids)]), output_attentions=True).attentions
    return max(float(weights[0, :, first_row:].max()) for weights in layers)


def checkpoint(model: Any) -> dict[str, np.ndarray]:
    """The tensors as a checkpoint holds them: a tied output table is not stored."""
    tensors = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def from_memory(model: Any, *, dtype: str = "float32", **config_changes: Any) -> Llama:
    """The same model in HAAW, straight from the library's config and tensors."""
    config = llama.config_from_hugging_face(model.config.to_dict() | config_changes)
    loader = WeightLoader(MemorySource(checkpoint(model)), dtype=dtype)
    return llama.build(config, loader, llama.HUGGING_FACE_NAMES, layout="half-split")


def through_gguf(model: Any, path: Path, *, dtype: str = "float32") -> Llama:
    """The same model in HAAW, by way of a GGUF file that is written with the format owner's library."""
    config = model.config
    rotary = config.rope_parameters
    tensors = llama_tensors(
        checkpoint(model),
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
    )
    if rotary["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = frequency_factors(config.head_dim, rotary)
    metadata = llama_metadata(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        mlp_width=config.intermediate_size,
        context_length=config.max_position_embeddings,
        eps=config.rms_norm_eps,
        rope_base=rotary["rope_theta"],
        vocabulary_size=config.vocab_size,
    )
    write_gguf(path, metadata, tensors)
    loaded = haaw.load(path, dtype=dtype).transformer
    assert isinstance(loaded, Llama)
    return loaded


def frequency_factors(head_dim: int, rotary: dict[str, Any]) -> np.ndarray:
    """What each RoPE frequency is divided by under the Llama-3 scaling, as a GGUF stores it.

    The three bands as published with Llama 3.1: wavelengths below original/high are kept, those above
    original/low are divided by the factor, between them the reciprocals are blended linearly.
    """
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * np.pi * rotary["rope_theta"] ** (2 * pair / head_dim)
        turns = rotary["original_max_position_embeddings"] / wavelength
        blend = (turns - rotary["low_freq_factor"]) / (rotary["high_freq_factor"] - rotary["low_freq_factor"])
        blend = min(max(blend, 0.0), 1.0)
        factors.append(1 / ((1 - blend) / rotary["factor"] + blend))
    return np.array(factors, np.float32)


class Frequencies(NamedTuple):
    """RoPE frequencies (C/2,), float32, of HAAW and of the library."""

    ours: np.ndarray
    theirs: np.ndarray


def rope_frequencies(head_dim: int, base: float, *, scaling: dict[str, Any] | None) -> Frequencies:
    """The frequencies that one config leads to."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        **(SHAPE | {"head_dim": head_dim, "rope_theta": base, "rope_scaling": scaling})
    )
    read = llama.config_from_hugging_face(config.to_dict())
    ours = rope.rope_frequencies(head_dim, read.rope_base, read.rope_scaling)
    return Frequencies(ours, LlamaRotaryEmbedding(config).inv_freq.numpy())
