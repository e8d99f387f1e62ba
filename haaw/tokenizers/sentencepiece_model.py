"""SentencePiece, from a `.model` file, from a GGUF's metadata, or from llama2.c's pieces.

The `sentencepiece` library encodes; decoding is ours, on the pieces' bytes, so that a stream and the whole
text obey one rule. On valid UTF-8 it gives what the library gives; where bytes are not UTF-8 the library
writes one U+FFFD a byte, and this one a U+FFFD for each maximal invalid part.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from haaw.errors import BadInputError
from haaw.tokenizers.base import Place, VocabularyTokenizer
from haaw.tokenizers.detokenizer import PieceStream
from haaw.tokenizers.gguf_metadata import metadata_flag, metadata_id
from haaw.tokenizers.libraries import library_errors_as_bad_input, need
from haaw.tokenizers.protocol import Begins, Shown
from haaw.tokenizers.sentencepiece_build import (
    BYTE_PIECE,
    SPACE,
    one_unknown,
    phi_3_strips,
    piece_texts,
    written_model,
)
from haaw.tokenizers.sentencepiece_proto import (
    ModelFlags,
    read_flags,
    read_pieces,
    read_spans,
    with_control_pieces,
    without_dummy_prefix,
)
from haaw.tokenizers.vocabulary import (
    TokenType,
    Vocabulary,
    checked_scores,
    read_scores,
    refuse_duplicates,
    vocabulary_from_gguf,
)

MOST_MODEL_BYTES = 256 * 2**20


class SentencePieceTokenizer(VocabularyTokenizer):
    """A SentencePiece model with control tokens. See `protocol.Tokenizer` for each method.

    `after_special` says whether text after a control token begins with a space as the text's beginning does:
    "prefix" is what llama.cpp and "legacy" tokenizers do, "plain" is the later rule of transformers.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        model: bytes,
        *,
        after_special: Literal["prefix", "plain"] = "prefix",
        strips_after: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(vocabulary, strips_after=strips_after)
        self._model = model
        self._flags = read_flags(model)
        self._after_special = after_special
        nothing: frozenset[str] = frozenset()
        first = _processor(model)
        self._processors: dict[tuple[bool, frozenset[str]], Any] = {(True, nothing): first}
        if first.get_piece_size() != len(vocabulary):
            raise BadInputError(
                f"The SentencePiece model has {first.get_piece_size()} pieces, the vocabulary "
                f"{len(vocabulary)} tokens; the two must agree."
            )

    @classmethod
    def from_model(
        cls,
        model: bytes,
        *,
        add_bos: bool | None = None,
        after_special: Literal["prefix", "plain"] = "prefix",
        end_tokens: Sequence[str] = (),
    ) -> "SentencePieceTokenizer":
        """Build from the bytes of a `.model` file.

        `add_bos` None means: if the model has a BOS. `end_tokens` are further pieces that end an answer.
        BadInputError for bytes that are no model.
        """
        if len(model) > MOST_MODEL_BYTES:
            raise BadInputError(
                f"The SentencePiece model has {len(model)} bytes; allowed are {MOST_MODEL_BYTES}."
            )
        flags = read_flags(model)
        library = _processor(model)
        pieces, types = read_pieces(model)
        bos_id = library.bos_id() if library.bos_id() >= 0 else None
        ends = {library.eos_id()} | {pieces.index(piece) for piece in end_tokens if piece in pieces}
        vocabulary = Vocabulary(
            tokens=pieces,
            types=types,
            bos_id=bos_id,
            eos_ids=frozenset(i for i in ends if i >= 0),
            add_bos=bos_id is not None and add_bos is not False,
            add_space_prefix=flags.add_dummy_prefix,
        )
        return cls(vocabulary, model, after_special=after_special)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "SentencePieceTokenizer":
        """Build from `tokenizer.ggml.*` where the model is "llama"; BadInputError for anything unusable."""
        declared = vocabulary_from_gguf(metadata, add_bos=True, add_space_prefix=True)
        unknown_id = metadata_id(metadata, "tokenizer.ggml.unknown_token_id", len(declared))
        vocabulary, unknown_id = one_unknown(declared, 0 if unknown_id is None else unknown_id)
        flags = ModelFlags(
            add_dummy_prefix=vocabulary.add_space_prefix,
            remove_extra_whitespaces=metadata_flag(
                metadata, "tokenizer.ggml.remove_extra_whitespaces", default=False
            ),
        )
        scores = read_scores(metadata, len(vocabulary))
        model = written_model(vocabulary, scores, unknown_id, flags)
        return cls(vocabulary, model, strips_after=phi_3_strips(metadata, declared))

    @classmethod
    def from_pieces(
        cls,
        pieces: Sequence[bytes],
        scores: Sequence[float],
        *,
        bos_id: int = 1,
        eos_id: int = 2,
        unknown_id: int = 0,
    ) -> "SentencePieceTokenizer":
        """Build from the pieces of llama2.c's `tok*.bin`, where a space stands for itself.

        BOS and EOS both end a text there: the stories it was trained on are separated by BOS.
        """
        tokens = piece_texts(pieces)
        roles = {"bos_id": bos_id, "eos_id": eos_id, "unknown_id": unknown_id}
        for name, token_id in roles.items():
            if not 0 <= token_id < len(tokens):
                raise BadInputError(f"{name} is {token_id}, outside the vocabulary of {len(tokens)} tokens.")
        types = [TokenType.BYTE if BYTE_PIECE.fullmatch(token) else TokenType.NORMAL for token in tokens]
        for token_id, name, kind in (
            (unknown_id, "<unk>", TokenType.UNKNOWN),
            (bos_id, "<s>", TokenType.CONTROL),
            (eos_id, "</s>", TokenType.CONTROL),
        ):
            tokens[token_id], types[token_id] = name, kind
        refuse_duplicates(tokens, "The list of pieces")
        vocabulary = Vocabulary(tokens, types, bos_id, frozenset({bos_id, eos_id}), True, True)
        flags = ModelFlags(remove_extra_whitespaces=False)
        if len(scores) != len(tokens):
            raise BadInputError(f"There are {len(tokens)} pieces but {len(scores)} scores.")
        return cls(vocabulary, written_model(vocabulary, checked_scores(scores, "scores"), unknown_id, flags))

    def with_eos_ids(self, eos_ids: frozenset[int]) -> "SentencePieceTokenizer":
        """The same tokenizer with other ids that end an answer."""
        other = copy(self)
        other._vocabulary = replace(self._vocabulary, eos_ids=eos_ids)
        return other

    def _library(self, place: Place, markers: frozenset[str]) -> Any:
        """The processor for a run of text: with or without a prefix space, and blind to `markers`."""
        prefix = place == "first" or self._after_special == "prefix"
        blind_to = markers.intersection(self._user_defined)
        key = (prefix or not self._flags.add_dummy_prefix, blind_to)
        if key not in self._processors:
            model = with_control_pieces(self._model, blind_to) if blind_to else self._model
            self._processors[key] = _processor(model if key[0] else without_dummy_prefix(model))
        return self._processors[key]

    def _cut_everywhere(self) -> dict[str, int]:
        return {}  # the library finds user-defined pieces itself

    def _encode_run(self, text: str, place: Place, markers: frozenset[str]) -> list[int]:
        library = self._library(place, markers)
        with library_errors_as_bad_input("The text cannot be encoded"):
            ids: list[int] = library.encode(text)
        return ids

    def _encode_run_spans(
        self, text: str, place: Place, markers: frozenset[str]
    ) -> list[tuple[int, int, int]]:
        library = self._library(place, markers)
        with library_errors_as_bad_input("The text cannot be encoded"):
            encoded = library.encode(text, out_type="serialized_proto")
        character = _characters_of_bytes(text)
        spans = [(i, character[start], character[end]) for i, start, end in read_spans(encoded)]
        return _joined_byte_spans(spans, self._vocabulary.types)

    def _token_bytes(self, token_id: int) -> bytes:
        number = self._vocabulary.checked_id(token_id)
        piece, kind = self._vocabulary.tokens[number], self._vocabulary.types[number]
        if kind == TokenType.BYTE:
            return bytes([int(piece[3:5], 16)])
        if kind == TokenType.UNKNOWN:
            return self._flags.unk_surface.encode("utf-8")
        if kind == TokenType.CONTROL:
            return piece.encode("utf-8", "replace")
        return piece.replace(SPACE, " ").encode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """The token for display; the unknown token by its name."""
        number = self._vocabulary.checked_id(token_id)
        if self._vocabulary.types[number] == TokenType.UNKNOWN:
            return self._vocabulary.tokens[number]
        return super().token_text(number)

    def _stream(self, special: Shown, begins: Begins) -> PieceStream:
        prefix = self._flags.add_dummy_prefix or self._flags.remove_extra_whitespaces
        spaces: Literal["keep", "one", "all"] = "keep"
        if begins == "text" and prefix:
            spaces = "all" if self._flags.remove_extra_whitespaces else "one"
        return _PieceStream(self, self._vocabulary, special, spaces)


class _PieceStream:
    """Each piece adds its bytes; the space that encoding put before the text is taken away again, once.

    With `spaces` "all" (the model removes extra spaces) every leading space piece goes, one per piece.
    """

    held_bytes = b""

    def __init__(
        self,
        tokenizer: SentencePieceTokenizer,
        vocabulary: Vocabulary,
        special: Shown,
        spaces: Literal["keep", "one", "all"],
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._vocabulary = vocabulary
        self._special = special
        self._spaces = spaces

    def push(self, token_id: int) -> bytes:
        piece = self._token_bytes(token_id)
        kind = self._vocabulary.types[token_id]
        if kind == TokenType.CONTROL:
            return piece if self._special == "show" else b""
        if self._spaces == "keep":
            return piece
        if self._vocabulary.tokens[token_id].startswith(SPACE):
            piece = piece[1:]
            if self._spaces == "one":
                self._spaces = "keep"
        if piece:
            self._spaces = "keep"
        return piece

    def finish(self) -> bytes:
        return b""


def _processor(model: bytes) -> Any:
    library = need("sentencepiece", purpose="This tokenizer")
    with library_errors_as_bad_input("The SentencePiece model cannot be used"):
        processor = library.SentencePieceProcessor()
        processor.LoadFromSerializedProto(model)
    return processor


def _characters_of_bytes(text: str) -> list[int]:
    """For each byte offset of the UTF-8 text (its end included) the index of the character there."""
    table: list[int] = []
    for index, char in enumerate(text):
        table.extend([index] * len(char.encode("utf-8")))
    table.append(len(text))
    return table


def _joined_byte_spans(spans: list[tuple[int, int, int]], types: Sequence[int]) -> list[tuple[int, int, int]]:
    """Give the byte pieces of one character that character's span (the library gives it to one of them)."""
    out = list(spans)
    start = 0
    while start < len(out):
        end = start
        while end < len(out) and types[out[end][0]] == TokenType.BYTE:
            end += 1
            if out[end - 1][2] > out[end - 1][1]:
                break
        if end - start > 1:
            low, high = out[start][1], out[end - 1][2]
            out[start:end] = [(token_id, low, high) for token_id, _, _ in out[start:end]]
        start = max(end, start + 1)
    return out
