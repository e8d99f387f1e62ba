"""Tiny GGUF models, written with the format owner's library: metadata, a byte-level vocabulary, tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from support.tiny_models import tiny_config, tiny_tensors

from haaw.models import llama

END, START, TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, CONTROL = 1, 3


def byte_alphabet() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the others for U+0100 onwards, in order.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_tokens(vocabulary_size: int) -> tuple[list[str], list[int]]:
    """Tokens and their types: 256 bytes, three control tokens, one merged pair, then fillers."""
    tokens = [*byte_alphabet(), END, START, TURN, "he"]
    kinds = [NORMAL] * 256 + [CONTROL] * 3 + [NORMAL]
    fillers = vocabulary_size - len(tokens)
    return tokens + [f"filler{number}" for number in range(fillers)], kinds + [NORMAL] * fillers


def llama_metadata(
    *,
    layers: int = 2,
    width: int = 24,
    query_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 6,
    mlp_width: int = 40,
    context_length: int = 128,
    eps: float = 1e-5,
    rope_base: float = 10_000.0,
    vocabulary_size: int = 263,
) -> dict[str, Any]:
    """The metadata of a Llama with a byte-level vocabulary and no chat template."""
    tokens, kinds = byte_tokens(vocabulary_size)
    return {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.embedding_length": width,
        "llama.attention.head_count": query_heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.feed_forward_length": mlp_width,
        "llama.context_length": context_length,
        "llama.attention.layer_norm_rms_epsilon": eps,
        "llama.rope.freq_base": rope_base,
        "llama.vocab_size": vocabulary_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.eos_token_id": tokens.index(END),
    }


def llama_tensors(
    named: Mapping[str, np.ndarray], *, layers: int, query_heads: int, kv_heads: int
) -> dict[str, np.ndarray]:
    """A checkpoint's tensors (Hugging Face names) under GGUF names, query and key rows interleaved.

    The permutation is that of llama.cpp's converter: row 2·i + j of a head is row i + j·C/2 of the checkpoint.
    """
    tensors = {}
    for part, name in llama.HUGGING_FACE_NAMES.items():
        for number in range(layers if "{}" in name else 1):
            tensor = named.get(name.format(number))
            if tensor is None:
                continue
            if part in ("query", "key"):
                heads = query_heads if part == "query" else kv_heads
                rows, columns = tensor.shape
                halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
                tensor = halves.swapaxes(1, 2).reshape(rows, columns)
            tensors[llama.GGUF_NAMES[part].format(number)] = np.ascontiguousarray(tensor)
    return tensors


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes a GGUF file; a Python value becomes the GGUF type that holds it, None leaves a key out."""
    values = {key: value for key, value in metadata.items() if value is not None}
    writer = GGUFWriter(path, values.pop("general.architecture", "llama"))
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, _kind(value))
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kind(value: Any) -> GGUFValueType:
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, float):
        return GGUFValueType.FLOAT32
    if isinstance(value, str):
        return GGUFValueType.STRING
    if value < 0:
        return GGUFValueType.INT64
    return GGUFValueType.UINT32 if value < 1 << 32 else GGUFValueType.UINT64


def tiny_gguf_parts(
    seed: int = 0, *, template: str | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and tensors of a small model that loads and runs, to be written as they are or spoilt."""
    config = tiny_config(vocabulary_size=263, tied=True)
    metadata = llama_metadata() | {"tokenizer.chat_template": template}
    tensors = llama_tensors(
        tiny_tensors(seed, config),
        layers=config.layers,
        query_heads=config.query_heads,
        kv_heads=config.kv_heads,
    )
    return metadata, tensors


def tiny_gguf(path: Path, seed: int = 0, *, template: str | None = None) -> Path:
    """A small model in a file."""
    return write_gguf(path, *tiny_gguf_parts(seed, template=template))
