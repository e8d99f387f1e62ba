"""Byte-level BPE built from the metadata of a GGUF, by way of the `tokenizers` library.

The library merges bytes into tokens; cutting at control tokens is ours (`special_split`), so that they are
found exactly where they may be.
"""

from collections.abc import Mapping
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.base import Place, VocabularyTokenizer
from haaw.tokenizers.byte_alphabet import CHAR_OF_BYTE, alphabet_to_bytes
from haaw.tokenizers.detokenizer import PieceStream
from haaw.tokenizers.gguf_metadata import metadata_array, metadata_text
from haaw.tokenizers.libraries import library_errors_as_bad_input, need, one_line
from haaw.tokenizers.pre_tokenizers import PreTokenizer, pre_tokenizer
from haaw.tokenizers.protocol import Begins, Shown
from haaw.tokenizers.vocabulary import TokenType, Vocabulary, vocabulary_from_gguf


class ByteLevelTokenizer(VocabularyTokenizer):
    """Byte-level BPE over a checked vocabulary. See `protocol.Tokenizer` for each method."""

    def __init__(self, vocabulary: Vocabulary, merges: list[tuple[str, str]], cut: PreTokenizer) -> None:
        super().__init__(vocabulary)
        not_text = {TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN}
        ids = {
            token: i
            for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
            if kind not in not_text
        }
        self._missing_bytes = frozenset(byte for byte, char in CHAR_OF_BYTE.items() if char not in ids)
        self._library = _build(ids, merges, cut)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "ByteLevelTokenizer":
        """Build from `tokenizer.ggml.*` where the model is "gpt2"; BadInputError for anything unusable."""
        cut = pre_tokenizer(metadata_text(metadata, "tokenizer.ggml.pre"))
        vocabulary = vocabulary_from_gguf(metadata, add_bos=cut.add_bos, add_space_prefix=False)
        return cls(vocabulary, _read_merges(metadata), cut)

    def _encode_run(self, text: str, place: Place, markers: frozenset[str]) -> list[int]:
        self._refuse_missing_bytes(text)
        ids: list[int] = self._library.encode(self._prefixed(text, place), add_special_tokens=False).ids
        return ids

    def _encode_run_spans(
        self, text: str, place: Place, markers: frozenset[str]
    ) -> list[tuple[int, int, int]]:
        self._refuse_missing_bytes(text)
        prefixed = self._prefixed(text, place)
        added = len(prefixed) - len(text)
        encoding = self._library.encode(prefixed, add_special_tokens=False)
        return [
            (token_id, max(start - added, 0), max(end - added, 0))
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    def _prefixed(self, text: str, place: Place) -> str:
        wanted = self._vocabulary.add_space_prefix and place == "first" and not text.startswith(" ")
        return f" {text}" if wanted else text

    def _refuse_missing_bytes(self, text: str) -> None:
        """The library drops a byte that has no token; text must not vanish silently."""
        if self._missing_bytes:
            lost = self._missing_bytes.intersection(text.encode("utf-8"))
            if lost:
                raise BadInputError(
                    f"The vocabulary has no token for the byte 0x{min(lost):02X}, so this text cannot be "
                    "encoded."
                )

    def _token_bytes(self, token_id: int) -> bytes:
        number = self._vocabulary.checked_id(token_id)
        token = self._vocabulary.tokens[number]
        kind = self._vocabulary.types[number]
        if kind in (TokenType.NORMAL, TokenType.UNUSED, TokenType.BYTE):
            return b"" if token == f"[EMPTY_{number}]" else alphabet_to_bytes(token)
        return token.encode("utf-8", "replace")

    def _stream(self, special: Shown, begins: Begins) -> PieceStream:
        return _ByteStream(self, special)


class _ByteStream:
    """Each token adds its own bytes, whatever stands before it."""

    held_bytes = b""

    def __init__(self, tokenizer: ByteLevelTokenizer, special: Shown) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._hidden = frozenset() if special == "show" else frozenset(tokenizer.special_tokens().values())

    def push(self, token_id: int) -> bytes:
        piece = self._token_bytes(token_id)
        return b"" if token_id in self._hidden else piece

    def finish(self) -> bytes:
        return b""


def _read_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`tokenizer.ggml.merges`: two tokens a line, separated by the one space that is not at its beginning."""
    key = "tokenizer.ggml.merges"
    merges = []
    for i, line in enumerate(metadata_array(metadata, key, required="yes")):
        if not isinstance(line, str):
            raise BadInputError(f"{key}[{i}] must be a string, not {type(line).__name__}.")
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            raise BadInputError(
                f"{key}[{i}] is {one_line(repr(line), most_chars=80)}; a merge is two tokens with a space "
                "between."
            )
        merges.append((left, right))
    return merges


def _build(ids: dict[str, int], merges: list[tuple[str, str]], cut: PreTokenizer) -> Any:
    """The library's tokenizer without control tokens: cut by the patterns, then bytes, then merges."""
    library = need("tokenizers", purpose="Byte-level BPE")
    with library_errors_as_bad_input("The vocabulary and its merges cannot be used"):
        model = library.models.BPE(vocab=ids, merges=merges, ignore_merges=cut.whole_words)
        tokenizer = library.Tokenizer(model)
        steps = [
            library.pre_tokenizers.Split(library.Regex(pattern), behavior="isolated")
            for pattern in cut.patterns
        ]
        steps.append(library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(steps)
    return tokenizer
