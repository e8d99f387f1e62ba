"""A vocabulary read from the metadata of a model file, with everything in it checked.

Knows what the metadata keys mean (GGUF specification, section on tokenizers) and nothing about encoding. The
metadata comes from a stranger: counts, types, ids and lengths are checked before they are used.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.gguf_metadata import MOST_TOKENS, metadata_array, metadata_flag, metadata_id
from haaw.tokenizers.libraries import one_line

LONGEST_TOKEN_CHARS = 65_536


class TokenType(IntEnum):
    """The token types of the GGUF specification, the same numbers as SentencePiece's piece types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


KNOWN_END_TOKENS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>"),
        "<end_of_utterance>",
    )
)
"""Control tokens that end an answer whatever the metadata says: files often name one of two."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, their types, and the ids that have a role."""

    tokens: Sequence[str]
    types: Sequence[int]
    bos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool
    add_space_prefix: bool

    def __len__(self) -> int:
        return len(self.tokens)

    def checked_id(self, token_id: int) -> int:
        """`token_id` as a Python int inside the vocabulary, or BadInputError that names both."""
        return check_id(token_id, len(self.tokens))

    def of_types(self, *types: TokenType) -> dict[str, int]:
        """Tokens of the given types, by text."""
        wanted = frozenset(int(kind) for kind in types)
        return {self.tokens[i]: i for i, kind in enumerate(self.types) if kind in wanted}


def check_id(token_id: int, vocabulary_size: int) -> int:
    """`token_id` as a Python int in `0 … vocabulary_size - 1`, or BadInputError that names both."""
    try:
        number = operator.index(token_id)
    except TypeError:
        raise BadInputError(f"A token id is a whole number, not {one_line(repr(token_id))}.") from None
    if not 0 <= number < vocabulary_size:
        raise BadInputError(
            f"Token id {number} is outside the vocabulary, which has {vocabulary_size} tokens "
            f"(ids 0 to {vocabulary_size - 1})."
        )
    return number


def end_ids(vocabulary_size: int, own: Iterable[int], *configs: Mapping[str, Any] | None) -> frozenset[int]:
    """Every id that ends an answer: the tokenizer's own and the `eos_token_id` of each config.

    A config may name one id, a list of them, or none. BadInputError for an id outside the vocabulary.
    """
    ends = set(own)
    for config in configs:
        named = (config or {}).get("eos_token_id")
        for value in named if isinstance(named, list | tuple) else [named]:
            if value is None:
                continue
            try:
                ends.add(check_id(operator.index(value), vocabulary_size))
            except (TypeError, BadInputError):
                raise BadInputError(
                    f"eos_token_id names {one_line(repr(value), most_chars=60)}, which is no token of the "
                    f"vocabulary (ids 0 to {vocabulary_size - 1})."
                ) from None
    return frozenset(ends)


def checked_text(text: str, *, what: str = "The text") -> str:
    """`text` if it can be written as UTF-8, else BadInputError (half a surrogate pair is no character)."""
    if not isinstance(text, str):
        raise BadInputError(f"{what} must be a string, not {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadInputError(
            f"{what} holds half a surrogate pair (U+{ord(text[error.start]):04X} at character "
            f"{error.start}), which is no character; check how it was read."
        ) from None
    return text


def vocabulary_from_gguf(metadata: Mapping[str, Any], *, add_bos: bool, add_space_prefix: bool) -> Vocabulary:
    """The vocabulary that GGUF metadata declares.

    `add_bos` and `add_space_prefix` are the defaults of the kind of tokenizer, used where the file is silent.
    """
    tokens = read_tokens(metadata)
    types = read_token_types(metadata, len(tokens))
    ends = {
        metadata_id(metadata, f"tokenizer.ggml.{role}_token_id", len(tokens))
        for role in ("eos", "eot", "eom")
    }
    vocabulary = Vocabulary(
        tokens=tokens,
        types=[TokenType.NORMAL] * len(tokens) if types is None else types,
        bos_id=metadata_id(metadata, "tokenizer.ggml.bos_token_id", len(tokens)),
        eos_ids=frozenset(i for i in ends if i is not None),
        add_bos=metadata_flag(metadata, "tokenizer.ggml.add_bos_token", default=add_bos),
        add_space_prefix=metadata_flag(metadata, "tokenizer.ggml.add_space_prefix", default=add_space_prefix),
    )
    return _with_roles(vocabulary, typed=types is not None)


def _with_roles(vocabulary: Vocabulary, *, typed: bool) -> Vocabulary:
    """Make the tokens that begin or end a text control tokens, and add the known end tokens."""
    types = list(vocabulary.types)
    ends = set(vocabulary.eos_ids)
    for token_id, token in enumerate(vocabulary.tokens):
        if types[token_id] in (TokenType.CONTROL, TokenType.USER_DEFINED) and token in KNOWN_END_TOKENS:
            ends.add(token_id)
    roles = ends | ({vocabulary.bos_id} if vocabulary.bos_id is not None else set())
    for token_id in roles:
        if types[token_id] == TokenType.USER_DEFINED or not typed:
            types[token_id] = TokenType.CONTROL
    if vocabulary.add_bos and vocabulary.bos_id is None:
        raise BadInputError(
            "The tokenizer asks for a BOS token before each prompt but names none "
            "(tokenizer.ggml.bos_token_id is missing)."
        )
    return replace(vocabulary, types=types, eos_ids=frozenset(ends))


def read_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """`tokenizer.ggml.tokens`, checked: strings, not too many, not too long, no two alike.

    An empty token becomes `[EMPTY_<id>]`, so that every id keeps a name.
    """
    key = "tokenizer.ggml.tokens"
    tokens = metadata_array(metadata, key, required="yes")
    if not 1 <= len(tokens) <= MOST_TOKENS:
        raise BadInputError(f"{key} has {len(tokens)} tokens; allowed are 1 to {MOST_TOKENS}.")
    for i, token in enumerate(tokens):
        if not isinstance(token, str):
            raise BadInputError(f"{key}[{i}] must be a string, not {type(token).__name__}.")
        if len(token) > LONGEST_TOKEN_CHARS:
            raise BadInputError(
                f"{key}[{i}] has {len(token)} characters; a token has at most {LONGEST_TOKEN_CHARS}."
            )
        if not token:
            tokens[i] = f"[EMPTY_{i}]"
    refuse_duplicates(tokens, key)
    return tokens


def refuse_duplicates(tokens: Sequence[str], what: str) -> None:
    """BadInputError if two tokens have the same text, which would give one text two ids."""
    if len(set(tokens)) == len(tokens):
        return
    seen: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token in seen:
            raise BadInputError(
                f"{what} holds {one_line(repr(token), most_chars=80)} twice, as id {seen[token]} and id {i}."
            )
        seen[token] = i


def read_token_types(metadata: Mapping[str, Any], count: int) -> list[int] | None:
    """`tokenizer.ggml.token_type`, one known type a token, or None where the file has none."""
    key = "tokenizer.ggml.token_type"
    values = metadata_array(metadata, key, required="no")
    if not values:
        return None
    _same_length(key, len(values), count)
    allowed = {int(kind) for kind in TokenType} | {0}
    try:
        types = [operator.index(value) for value in values]
    except TypeError:
        raise BadInputError(f"{key} must hold whole numbers.") from None
    for i, kind in enumerate(types):
        if kind not in allowed:
            raise BadInputError(f"{key}[{i}] is {kind}; known types are 1 to 6.")
    return [kind or int(TokenType.UNUSED) for kind in types]


def read_scores(metadata: Mapping[str, Any], count: int) -> list[float]:
    """`tokenizer.ggml.scores`, one finite number a token."""
    key = "tokenizer.ggml.scores"
    values = metadata_array(metadata, key, required="yes")
    _same_length(key, len(values), count)
    return checked_scores(values, key)


def checked_scores(values: Iterable[Any], what: str) -> list[float]:
    """The scores as floats; BadInputError for one that is no number, or NaN, or infinite."""
    try:
        scores = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        raise BadInputError(f"{what} must hold numbers.") from None
    for i, score in enumerate(scores):
        if not -3.4e38 < score < 3.4e38:
            raise BadInputError(f"{what}[{i}] is {score}; a score is a finite float32.")
    return scores


def _same_length(key: str, length: int, tokens: int) -> None:
    if length != tokens:
        raise BadInputError(
            f"{key} has {length} entries but tokenizer.ggml.tokens has {tokens}; the two must agree."
        )
