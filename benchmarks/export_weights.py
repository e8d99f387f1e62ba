"""The weights of a GGUF file, as HAAW reads them, as a Hugging Face folder.

Run as `python -m benchmarks.export_weights GGUF FOLDER`. So both engines compute with the same float32 numbers.
The tokenizer comes through transformers' own GGUF reader.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import haaw
from haaw.models.llama import Llama


def export(gguf: Path, folder: Path) -> None:
    """Writes config, weights and tokenizer; `config.json` last, so that a folder with it is complete."""
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    model = haaw.load(gguf).transformer
    if not isinstance(model, Llama):
        raise SystemExit(f"{gguf.name} is of the family {model.family}; the benchmark needs a Llama")
    folder.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)
    save_file(tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(model), indent=1))


def tensors(model: Llama) -> dict[str, np.ndarray]:
    """Arrays by their Hugging Face names; joint projections are cut into their parts."""
    found = {
        "model.embed_tokens.weight": model.weights.embedding_VD,
        "model.norm.weight": model.weights.norm_D,
    }
    if not model.config.tied:
        found["lm_head.weight"] = model.weights.output_VD
    queries = model.config.query_heads * model.config.head_dim
    keys = model.config.kv_heads * model.config.head_dim
    for number, layer in enumerate(model.weights.layers):
        query, key, value = np.split(layer.query_key_value_ZD, [queries, queries + keys])
        gate, up = np.split(layer.gate_up_ZD, 2)
        parts = {
            "input_layernorm": layer.attention_norm_D,
            "self_attn.q_proj": query,
            "self_attn.k_proj": key,
            "self_attn.v_proj": value,
            "self_attn.o_proj": layer.output_DE,
            "post_attention_layernorm": layer.mlp_norm_D,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down_DF,
        }
        found |= {f"model.layers.{number}.{name}.weight": part for name, part in parts.items()}
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def config(model: Llama) -> dict[str, Any]:
    """The `config.json` of the same shape. Errors: a scaled RoPE is refused, the benchmark's model has none."""
    own = model.config
    if own.rope_scaling is not None:
        raise SystemExit("the benchmark knows no RoPE scaling; take smollm2-135m")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": own.layers,
        "hidden_size": own.width,
        "num_attention_heads": own.query_heads,
        "num_key_value_heads": own.kv_heads,
        "head_dim": own.head_dim,
        "intermediate_size": own.mlp_width,
        "vocab_size": own.vocabulary_size,
        "max_position_embeddings": own.context_length_tokens,
        "rms_norm_eps": own.eps,
        "rope_theta": own.rope_base,
        "rope_parameters": {"rope_theta": own.rope_base, "rope_type": "default"},
        "tie_word_embeddings": own.tied,
        "torch_dtype": "float32",
    }


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
