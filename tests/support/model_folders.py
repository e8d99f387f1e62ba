"""Small models as other programs store them: Hugging Face folders and llama2.c files, written piece by piece."""

import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from support.gguf_models import byte_tokens
from support.tiny_models import tiny_config, tiny_tensors

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 40,
    "vocab_size": 263, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": 256,
}  # fmt: skip
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def llama_tensors(seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """The tensors that go with `LLAMA_CONFIG`."""
    return tiny_tensors(seed, tiny_config(vocabulary_size=263, **changes))


def tokenizer_json() -> str:
    """A byte-level tokenizer: 256 bytes, <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258, he 259, fillers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, _ = byte_tokens(263)
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[256:259]])
    return tokenizer.to_str()


def sentencepiece_model() -> bytes:
    """A trained SentencePiece model of 263 pieces with bytes to fall back on."""
    import sentencepiece

    written = io.BytesIO()
    lines = ["the cat sat on the mat", "a hat and a bat", "tea at ten to two"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, model_type="bpe", vocab_size=280,
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return written.getvalue()


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def model_folder(
    folder: Path,
    config: Mapping[str, Any] = LLAMA_CONFIG,
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    dtype: str = "float32",
    shards: int = 1,
    **json_files: Any,
) -> Path:
    """A whole folder; `json_files` as in generation_config={"eos_token_id": 258} add files of that name."""
    folder.mkdir(exist_ok=True, parents=True)
    write_json(folder / "config.json", config)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    for name, value in json_files.items():
        write_json(folder / f"{name}.json", value)
    cast = {n: t.astype(DTYPES[dtype]) for n, t in (llama_tensors() if tensors is None else tensors).items()}
    if shards == 1:
        safetensors.numpy.save_file(cast, folder / "model.safetensors")
    else:
        write_shards(folder, cast, shards)
    return folder


def write_shards(folder: Path, tensors: Mapping[str, np.ndarray], shards: int) -> None:
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        safetensors.numpy.save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Half-split query or key rows in the order of the original Llama: row i + j·C/2 goes to 2·i + j."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_llama2c(path: Path, named: Mapping[str, np.ndarray], *, output: str = "tied") -> Path:
    """A llama2.c file (version 0) of Hugging Face tensors of `tiny_config()`'s shape with heads of width / 4.

    Order and header: `legacy_export` of llama2.c's export.py.
    """
    layers, width, queries, keys, hidden, vocabulary, context = 2, 24, 4, 2, 40, 263, 128
    prefix = "model.layers.{}."

    def stacked(name: str, heads: int = 0) -> list[np.ndarray]:
        parts = [named[prefix.format(n) + name] for n in range(layers)]
        return [interleaved(part, heads) if heads else part for part in parts]

    blocks = [
        named["model.embed_tokens.weight"],
        *stacked("input_layernorm.weight"),
        *stacked("self_attn.q_proj.weight", queries),
        *stacked("self_attn.k_proj.weight", keys),
        *stacked("self_attn.v_proj.weight"),
        *stacked("self_attn.o_proj.weight"),
        *stacked("post_attention_layernorm.weight"),
        *stacked("mlp.gate_proj.weight"),
        *stacked("mlp.down_proj.weight"),
        *stacked("mlp.up_proj.weight"),
        named["model.norm.weight"],
        np.zeros((context, width // queries), np.float32),
        *([named["lm_head.weight"]] if output == "separate" else []),
    ]
    sign = -1 if output == "separate" else 1
    header = struct.pack("<7i", width, hidden, layers, queries, keys, sign * vocabulary, context)
    path.write_bytes(header + b"".join(block.astype("<f4").tobytes() for block in blocks))
    return path


def write_llama2c_tokenizer(path: Path, count: int = 263) -> Path:
    """A tok*.bin: <unk>, BOS, EOS, the 256 bytes, then words."""
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
    pieces += [b" w%d" % number for number in range(count - len(pieces))]
    write_pieces(path, pieces[:count])
    return path


def write_pieces(path: Path, pieces: Sequence[bytes]) -> None:
    longest = max(map(len, pieces))
    path.write_bytes(
        struct.pack("<i", longest)
        + b"".join(struct.pack("<fi", -float(i), len(p)) + p for i, p in enumerate(pieces))
    )
