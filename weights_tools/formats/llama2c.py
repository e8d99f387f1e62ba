"""Reading llama2.c files: weights (`.bin`, the export without a version) and tokenizer (`tok*.bin`).

Names are those of `run.c`, with the stacked layers taken apart: `layers.3.wq`. Query and key rows stand in
the interleaved RoPE order of the original Llama weights; nothing is permuted here.

Source of both layouts: `run.c` (`memory_map_weights`, `build_tokenizer`) and `export.py` of llama2.c.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from weights_tools.formats.errors import FormatError
from weights_tools.formats.mapped_file import MappedFile, looks_like
from weights_tools.formats.storage import STORAGE_TYPES, decode_into
from weights_tools.formats.tensor_file import Float32Array, TensorInfo, find_tensor, row_window

_HEADER = struct.Struct("<7i")
_FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_MOST_LAYERS = 4096  # a loop in Python that a file could otherwise make long
_LARGEST_TOKENIZER_BYTES = 64 * 1024 * 1024  # 32,000 tokens take half a megabyte
_PIECE = struct.Struct("<fi")


def open_llama2c(path: str | os.PathLike[str]) -> "Llama2cFile":
    """Open a llama2.c weights file; its length must agree with its header to the byte."""
    file = MappedFile(path)
    try:
        config = _read_config(file)
        return Llama2cFile(file, config, _tensor_table(file, config))
    except BaseException:
        file.close()
        raise


class Llama2cFile:
    """An open llama2.c weights file; a `TensorFile` and a context manager.

    `metadata` has `dim`, `hidden_dim`, `n_layers`, `n_heads`, `n_kv_heads`, `vocab_size` (positive),
    `seq_len` and `output`: `"tied"`, or `"separate"` if the file has a tensor `wcls`.
    """

    def __init__(
        self, file: MappedFile, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
    ) -> None:
        self._file = file
        self.mapped_ns = file.mapped_ns
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(config))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))

    def read_into(self, name: str, out: Float32Array, rows: slice | None = None) -> None:
        """Write tensor `name`, or the window `rows` of its first axis, into `out`, any strides."""
        info = find_tensor(self.tensors, name, self._file.name)
        first_row, row_count = row_window(info, out, rows)
        row_bytes = 4 * prod(info.shape[1:])
        data = self._file.window(info.offset + first_row * row_bytes, row_count * row_bytes)
        decode_into(STORAGE_TYPES["F32"], data, out)

    def read(self, name: str) -> Float32Array:
        """Tensor `name` as a new float32 array."""
        out = np.empty(find_tensor(self.tensors, name, self._file.name).shape, np.float32)
        self.read_into(name, out)
        return out

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_config(file: MappedFile) -> dict[str, Any]:
    head = bytes(file.content[:64])
    if kind := looks_like(head):
        raise FormatError(f"{file.name} is not a llama2.c weights file: it looks like {kind}.")
    if head.startswith(b"24ka"):
        raise FormatError(
            f"{file.name} is a llama2.c export of version 1 or 2; HAAW reads version 0: export it again with "
            "`--version 0`."
        )
    if len(head) < _HEADER.size:
        raise FormatError(
            f"{file.name} has {file.size_bytes} bytes, too few for a llama2.c header of 28 bytes."
        )
    config: dict[str, Any] = dict(zip(_FIELDS, _HEADER.unpack_from(head), strict=True))
    config["output"] = "separate" if config["vocab_size"] < 0 else "tied"  # the sign is the flag
    config["vocab_size"] = abs(config["vocab_size"])
    problem = next((f"{field} is {config[field]}" for field in _FIELDS if config[field] < 1), None)
    if problem is None:
        problem = _disagreement(config)
    if problem:
        raise FormatError(
            f"{file.name} is not a llama2.c weights file, or is damaged: its header says that {problem}."
        )
    return config


def _disagreement(config: Mapping[str, int]) -> str | None:
    if config["dim"] % (2 * config["n_heads"]):
        return f"dim {config['dim']} cannot be shared by {config['n_heads']} heads of an even size"
    if config["n_heads"] % config["n_kv_heads"]:
        return f"{config['n_heads']} query heads cannot share {config['n_kv_heads']} key/value heads"
    if config["n_layers"] > _MOST_LAYERS:
        return f"n_layers is {config['n_layers']} (at most {_MOST_LAYERS} are accepted)"
    return None


def _blocks(config: Mapping[str, Any]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """(name, number of layers or 0, shape) of each block of float32, in the order of the file."""
    dim, hidden, layers = config["dim"], config["hidden_dim"], config["n_layers"]
    head_size = dim // config["n_heads"]
    kv_dim = head_size * config["n_kv_heads"]
    yield "token_embedding_table", 0, (config["vocab_size"], dim)
    yield "rms_att_weight", layers, (dim,)
    yield "wq", layers, (dim, dim)
    yield "wk", layers, (kv_dim, dim)
    yield "wv", layers, (kv_dim, dim)
    yield "wo", layers, (dim, dim)
    yield "rms_ffn_weight", layers, (dim,)
    yield "w1", layers, (hidden, dim)
    yield "w2", layers, (dim, hidden)
    yield "w3", layers, (hidden, dim)
    yield "rms_final_weight", 0, (dim,)
    yield "", 0, (config["seq_len"], head_size)  # cosines and sines of RoPE, which run.c skips too
    if config["output"] == "separate":
        yield "wcls", 0, (config["vocab_size"], dim)


def _tensor_table(file: MappedFile, config: Mapping[str, Any]) -> dict[str, TensorInfo]:
    expected = _HEADER.size + sum(4 * max(layers, 1) * prod(shape) for _, layers, shape in _blocks(config))
    if file.size_bytes != expected:
        raise FormatError(
            f"{file.name} has {file.size_bytes} bytes, but a llama2.c file with its header makes {expected} "
            f"({dict(config)}); fetch it again, or check that it is such a file."
        )
    tensors = {}
    offset = _HEADER.size
    for name, layers, shape in _blocks(config):
        size_bytes = 4 * prod(shape)
        for full_name in [f"layers.{layer}.{name}" for layer in range(layers)] or [name]:
            if name:
                tensors[full_name] = TensorInfo(full_name, shape, "F32", offset, size_bytes)
            offset += size_bytes
    return tensors


def read_llama2c_tokenizer(
    path: str | os.PathLike[str], vocab_size: int | None = None
) -> tuple[list[bytes], Float32Array]:
    """(pieces, scores_V) of a `tok*.bin`: the bytes and the score of each token, by id.

    With `vocab_size`, the model's, the file must hold just so many; without, it is read to its end.
    """
    with MappedFile(path) as file:
        if kind := looks_like(bytes(file.content[:64])):
            raise FormatError(f"{file.name} is not a llama2.c tokenizer: it looks like {kind}.")
        if not 4 <= file.size_bytes <= _LARGEST_TOKENIZER_BYTES:
            raise FormatError(f"{file.name} is not a llama2.c tokenizer: it has {file.size_bytes} bytes.")
        data = bytes(file.content[:])
        pieces, scores = _read_pieces(file.name, data)
    if vocab_size not in (None, len(pieces)):
        raise FormatError(
            f"{file.name} holds {len(pieces)} tokens, but the model has {vocab_size}; give its own file."
        )
    return pieces, np.array(scores, np.float32)


def _read_pieces(file_name: str, data: bytes) -> tuple[list[bytes], list[float]]:
    pieces: list[bytes] = []
    scores: list[float] = []
    (longest,) = struct.unpack_from("<i", data)
    position = 4
    while position < len(data):
        what = f"{file_name} is damaged or not a llama2.c tokenizer: token {len(pieces)} at byte {position}"
        if position + _PIECE.size > len(data):
            raise FormatError(f"{what} is cut short; fetch the file again.")
        score, length = _PIECE.unpack_from(data, position)
        position += _PIECE.size
        if not 0 <= length <= min(longest, len(data) - position):
            raise FormatError(
                f"{what} has {length} bytes, but {longest} at most, and {len(data) - position} are left."
            )
        pieces.append(data[position : position + length])
        scores.append(score)
        position += length
    return pieces, scores
