"""Beginning a training with the weights and the tokenizer of a finished model file instead of from nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from haaw.tokenizers.sentencepiece_proto import BpePieces, ModelFlags, bpe_model
from weights_tools.formats import FormatError, open_gguf
from weights_tools.train.checkpoint import TrainingError
from weights_tools.train.export import TRAINED_KEY, gguf_name, pair_up
from weights_tools.train.network import Network
from weights_tools.train.recipe import Shape
from weights_tools.train.tokenizer import BEGIN_ID, END_ID, UNKNOWN_ID, load_tokenizer


@dataclass(frozen=True)
class Beginning:
    """A finished model that a training begins with: its file, its tokenizer and what it says of its own training."""

    path: Path
    sha256: str
    tokenizer_model: bytes
    trained: str

    def fill(self, network: Network) -> None:
        """Put the file's weights into a network. Raises `TrainingError` if they have other shapes."""
        import torch

        state = {}
        with open_gguf(self.path) as file:
            for name, value in network.state_dict().items():
                stored = gguf_name(name)
                if stored not in file.tensors or tuple(file.tensors[stored].shape) != tuple(value.shape):
                    raise TrainingError(
                        f"{self.path} has no tensor {stored} of shape {list(value.shape)}: it is a model of another "
                        "shape than the recipe's. Begin with a file that this tool made."
                    )
                heads = _heads(name, network.shape)
                array = file.read(stored)
                state[name] = torch.from_numpy(pair_up(array, heads, back=True) if heads else array)
        network.load_state_dict(state)

    def note(self) -> str:
        """Give a sentence for the card."""
        return (
            f"It began with the weights and the tokenizer of an earlier model (SHA-256 {self.sha256[:16]}…), "
            f"which was trained on {self.trained}."
        )


def read_beginning(path: Path) -> Beginning:
    """Read what a training needs of a model file. Raises `TrainingError` if it is not one of this tool's."""
    try:
        found = _read(path)
        load_tokenizer(found.tokenizer_model)
        return found
    except (FormatError, OSError, TypeError, ValueError, RuntimeError) as error:
        # Texts where numbers belong, or pieces that SentencePiece refuses.
        raise TrainingError(f"The training cannot begin with {path}: {error}") from error


def _read(path: Path) -> Beginning:
    with open_gguf(path) as file:
        metadata = file.metadata
        try:
            pieces = BpePieces(
                pieces=metadata["tokenizer.ggml.tokens"],
                scores=[float(score) for score in metadata["tokenizer.ggml.scores"]],
                types=[int(kind) for kind in metadata["tokenizer.ggml.token_type"]],
                unknown_id=UNKNOWN_ID,
                bos_id=BEGIN_ID,
                eos_id=END_ID,
                byte_fallback=True,
            )
        except KeyError as missing:
            raise TrainingError(
                f"{path} has no {missing.args[0]}, so it is not a model of this tool. Begin with one that it made."
            ) from missing
        _check(path, pieces)
        trained = str(metadata[TRAINED_KEY]) if TRAINED_KEY in metadata else "an unstated number of tokens"
    model = bpe_model(pieces, ModelFlags(add_dummy_prefix=False, remove_extra_whitespaces=False))
    return Beginning(path, hashlib.sha256(path.read_bytes()).hexdigest(), model, trained)


def _check(path: Path, pieces: BpePieces) -> None:
    texts = all(isinstance(piece, str) for piece in pieces.pieces)
    if not texts or not END_ID < len(pieces.pieces) == len(pieces.scores) == len(pieces.types):
        raise TrainingError(
            f"{path} does not have a text, a score and a type for each token. Begin with a file that this tool made."
        )


def _heads(name: str, shape: Shape) -> int | None:
    return {"query": shape.heads, "key": shape.kv_heads}.get(name.split(".")[-2])
