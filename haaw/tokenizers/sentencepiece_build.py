"""Making a SentencePiece model out of what other files keep of it: a GGUF's metadata, llama2.c's pieces."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.gguf_metadata import MOST_TOKENS
from haaw.tokenizers.libraries import one_line
from haaw.tokenizers.sentencepiece_proto import BpePieces, ModelFlags, bpe_model
from haaw.tokenizers.vocabulary import LONGEST_TOKEN_CHARS, TokenType, Vocabulary

SPACE = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def one_unknown(vocabulary: Vocabulary, unknown_id: int) -> tuple[Vocabulary, int]:
    """SentencePiece wants exactly one unknown piece: others become unused, and `unknown_id` becomes it.

    (Phi-3's file types `<unk>` as control and 53 padding tokens as unknown.)
    """
    types = [TokenType.UNUSED if kind == TokenType.UNKNOWN else kind for kind in vocabulary.types]
    kind_there = vocabulary.types[unknown_id]
    if kind_there not in (TokenType.UNKNOWN, TokenType.CONTROL):
        unknown = [i for i, kind in enumerate(vocabulary.types) if kind == TokenType.UNKNOWN]
        if not unknown:
            raise BadInputError(
                "The vocabulary has no unknown token (tokenizer.ggml.unknown_token_id), which SentencePiece "
                "needs."
            )
        unknown_id = unknown[0]
    types[unknown_id] = TokenType.UNKNOWN
    return replace(vocabulary, types=types), unknown_id


def written_model(
    vocabulary: Vocabulary, scores: Sequence[float], unknown_id: int, flags: ModelFlags
) -> bytes:
    """A SentencePiece model of type BPE with the vocabulary's pieces; BadInputError for a byte that is none."""
    for token_id, (piece, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind == TokenType.BYTE and not BYTE_PIECE.fullmatch(piece):
            raise BadInputError(
                f"Token {token_id} is typed as a byte but reads {one_line(repr(piece), most_chars=60)}; "
                "a byte reads <0x00> to <0xFF>."
            )
    eos_id = min(vocabulary.eos_ids, default=None)
    content = BpePieces(
        vocabulary.tokens,
        scores,
        vocabulary.types,
        unknown_id,
        vocabulary.bos_id,
        eos_id,
        TokenType.BYTE in vocabulary.types,
    )
    return bpe_model(content, flags)


def phi_3_strips(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> frozenset[str]:
    """Phi-3's control tokens swallow the white space after them; a GGUF says so by its name only."""
    name = metadata.get("general.name")
    if not isinstance(name, str) or not any(part in name.lower() for part in ("phi-3", "phi3")):
        return frozenset()
    strips = vocabulary.of_types(TokenType.CONTROL, TokenType.USER_DEFINED)
    return frozenset(strips) - {"<unk>", "<s>", "<|endoftext|>"}


def piece_texts(pieces: Sequence[bytes]) -> list[str]:
    """llama2.c's pieces as SentencePiece spells them; BadInputError for one that is empty, long or not UTF-8."""
    if not 3 <= len(pieces) <= MOST_TOKENS:
        raise BadInputError(f"There are {len(pieces)} pieces; allowed are 3 to {MOST_TOKENS}.")
    texts = []
    for i, piece in enumerate(pieces):
        if not isinstance(piece, bytes) or not 1 <= len(piece) <= LONGEST_TOKEN_CHARS:
            raise BadInputError(f"Piece {i} must be 1 to {LONGEST_TOKEN_CHARS} bytes.")
        try:
            texts.append(piece.decode("utf-8").replace(" ", SPACE))
        except UnicodeDecodeError:
            raise BadInputError(f"Piece {i} ({one_line(repr(piece), most_chars=60)}) is not UTF-8.") from None
    return texts
