"""Writes the trained model as one GGUF file (architecture `llama`): weights, tokenizer, template, licence.

Matrices are stored as float16, norms as float32. GGUF's llama convention interleaves the channels that RoPE turns
together, so the rows of query and key are reordered; readers undo it. Tied embeddings: there is no `output.weight`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weights_tools.train.asking import ASSISTANT, END, USER
from weights_tools.train.checkpoint import write_whole
from weights_tools.train.network import Network
from weights_tools.train.recipe import Shape
from weights_tools.train.tokenizer import BEGIN_ID, END_ID, UNKNOWN_ID

LIMIT_BYTES = 6_000_000
PROMPT_KEY = "haaw.prompt"  # "raw": prompts are continued as they are unless the template is asked for
TRAINED_KEY = "haaw.trained"  # on what and for how long, in words

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    + ASSISTANT
    + " {{ message['content'] | trim }}"
    + END
    + "{% else %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] == 'assistant' %}" + USER + "{% endif %}"
    " {{ message['content'] | trim }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)

_BLOCK_NAMES = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@torch.no_grad()
def round_weights(network: Network) -> None:
    """Round the matrices to what the file stores, so that what is examined is what is shipped."""
    for parameter in network.parameters():
        if parameter.ndim == 2:
            parameter.copy_(parameter.half().float())


def pair_up(weight: Any, heads: int, *, back: bool = False) -> Any:
    """Reorder the rows of each head from halves (0 1 2 … | 0' 1' 2' …) to pairs (0 0' 1 1' …), or back."""
    rows, columns = weight.shape
    parts = (heads, rows // heads // 2, 2, columns) if back else (heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(weight.reshape(parts).swapaxes(1, 2).reshape(rows, columns))


def gguf_name(name: str) -> str:
    """Give the name in the file of a parameter of the network."""
    if name.startswith("blocks."):
        _, layer, part, _ = name.split(".")
        return f"blk.{layer}.{_BLOCK_NAMES[part]}.weight"
    return {"embedding.weight": "token_embd.weight", "final_norm.weight": "output_norm.weight"}[name]


def gguf_tensors(network: Network) -> dict[str, Any]:
    """Give every tensor under its GGUF name, as it is stored."""
    shape, tensors = network.shape, {}
    for name, value in network.state_dict().items():
        array = value.detach().numpy()
        stored = array.astype(np.float16) if array.ndim == 2 else array.astype(np.float32)
        heads = {"query": shape.heads, "key": shape.kv_heads}.get(name.split(".")[-2])
        tensors[gguf_name(name)] = pair_up(stored, heads) if heads else stored
    return tensors


def write_gguf(path: Path, network: Network, tokenizer: Any, trained: str) -> None:
    """Write the model file, whole or not at all; `trained` says on what, in words.

    Raises `TrainingError` if it cannot be written.
    """
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "tiny.gguf"
        writer = GGUFWriter(str(draft), "llama")
        _add_shape(writer, network.shape)
        writer.add_string(TRAINED_KEY, trained)
        _add_tokenizer(writer, tokenizer)
        for name, array in gguf_tensors(network).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        write_whole(path, draft.read_bytes())


def _add_shape(writer: Any, shape: Shape) -> None:
    from gguf import LlamaFileType

    writer.add_name("tiny")
    writer.add_description("The embedded model of HAAW: a very small language model made to be looked into.")
    writer.add_license("apache-2.0")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocabulary)


def _add_tokenizer(writer: Any, tokenizer: Any) -> None:
    from gguf import TokenType

    size = tokenizer.get_piece_size()
    kinds = []
    for index in range(size):
        if tokenizer.is_unknown(index):
            kinds.append(TokenType.UNKNOWN)
        elif tokenizer.is_control(index):
            kinds.append(TokenType.CONTROL)
        elif tokenizer.is_byte(index):
            kinds.append(TokenType.BYTE)
        elif tokenizer.id_to_piece(index) in (USER, ASSISTANT, END):
            kinds.append(TokenType.USER_DEFINED)
        else:
            kinds.append(TokenType.NORMAL)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([tokenizer.id_to_piece(index) for index in range(size)])
    writer.add_token_scores([tokenizer.get_score(index) for index in range(size)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BEGIN_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_eot_token_id(tokenizer.piece_to_id(END))
    writer.add_unk_token_id(UNKNOWN_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_remove_extra_whitespaces(False)
    writer.add_chat_template(TEMPLATE)
    writer.add_string(PROMPT_KEY, "raw")
