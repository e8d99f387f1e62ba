"""A llama2.c model: weights in one `.bin` file, and a tokenizer, `tok*.bin`, that lies beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.loading.destination import Destination, assembled
from haaw.loading.noted import built, opened, read_weights
from haaw.models import llama
from haaw.models.llama import LlamaConfig

NAMES = {
    "embedding": "token_embedding_table",
    "norm": "rms_final_weight",
    "output": "wcls",
    "attention_norm": "layers.{}.rms_att_weight",
    "query": "layers.{}.wq",
    "key": "layers.{}.wk",
    "value": "layers.{}.wv",
    "attention_output": "layers.{}.wo",
    "mlp_norm": "layers.{}.rms_ffn_weight",
    "gate": "layers.{}.w1",
    "up": "layers.{}.w3",
    "down": "layers.{}.w2",
}
MOST_TOKENIZERS = 32


def load_llama2c(path: Path, name: str, destination: Destination) -> LanguageModel:
    """Loads a llama2.c weights file; prompts are raw and begin with BOS.

    Errors: `BadInputError`, or `FormatError` of `weights_tools.formats`, for whatever does not add up.
    """
    from haaw.tokenizers import SentencePieceTokenizer
    from weights_tools.formats.llama2c import open_llama2c

    with opened(open_llama2c, path, "llama2.c") as file:
        config = config_from_header(file.metadata)
        pieces, scores = _tokenizer_beside(path, config.vocabulary_size)
        tokenizer = built("tokenizer", lambda: SentencePieceTokenizer.from_pieces(pieces, scores))
        transformer = read_weights(
            lambda loader: llama.build(config, loader, NAMES, layout="interleaved"), destination, file
        )
    return assembled(name, path.name, transformer, tokenizer)


def config_from_header(header: Mapping[str, Any]) -> LlamaConfig:
    """The config that the header states; `run.c` fixes what it does not (eps 1e-5, RoPE base 10,000)."""
    return LlamaConfig(
        layers=header["n_layers"],
        width=header["dim"],
        query_heads=header["n_heads"],
        kv_heads=header["n_kv_heads"],
        head_dim=header["dim"] // header["n_heads"],
        mlp_width=header["hidden_dim"],
        vocabulary_size=header["vocab_size"],
        context_length_tokens=header["seq_len"],
        eps=1e-5,
        rope_base=10_000.0,
        rope_scaling=None,
        tied=header["output"] == "tied",
    )


def _tokenizer_beside(path: Path, vocabulary_size: int) -> tuple[list[bytes], list[float]]:
    """Pieces and scores of `tokN.bin`, else of the one other `tok*.bin` that holds N tokens."""
    from weights_tools.formats.errors import FormatError
    from weights_tools.formats.llama2c import read_llama2c_tokenizer

    own = path.with_name(f"tok{vocabulary_size}.bin")
    others = sorted(path.parent.glob("tok*.bin"))[:MOST_TOKENIZERS]
    found = []
    for candidate in [own] if own.is_file() else [other for other in others if other != path]:
        try:
            found.append((candidate.name, read_llama2c_tokenizer(candidate, vocabulary_size)))
        except FormatError:
            if candidate == own:
                raise
    if not found:
        raise BadInputError(
            f"{path.name} needs its tokenizer: a file tok*.bin with {vocabulary_size} tokens beside it"
            + (f" ({', '.join(other.name for other in others)} is not it)" if others else "")
        )
    if len(found) > 1:
        raise BadInputError(
            f"{' and '.join(name for name, _ in found)} both have {vocabulary_size} tokens; rename the one that "
            f"belongs to {path.name} to {own.name}"
        )
    pieces, scores = found[0][1]
    return pieces, scores.tolist()
