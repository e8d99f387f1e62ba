"""What the tokenizers with a vocabulary of their own share: cutting at control tokens, BOS, decoding.

A subclass says how one run of ordinary text is encoded and which bytes a token stands for.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from haaw.tokenizers.detokenizer import BytesDetokenizer, PieceStream, decode_all
from haaw.tokenizers.protocol import Begins, Shown, Special, TextPart, Tokenizer, TokenSpan
from haaw.tokenizers.special_split import SpecialSplitter, join_parts
from haaw.tokenizers.vocabulary import TokenType, Vocabulary, checked_text

Place: TypeAlias = Literal["first", "after_special"]
"""Where a run of text stands: at the very beginning, or after a control token."""


class VocabularyTokenizer(ABC):
    """Base of the tokenizers that are built from a `Vocabulary`. See `protocol.Tokenizer` for each method."""

    def __init__(self, vocabulary: Vocabulary, *, strips_after: Iterable[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._strips_after = frozenset(strips_after)
        self._control = vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN)
        self._user_defined = vocabulary.of_types(TokenType.USER_DEFINED)
        self._splitter_for = lru_cache(maxsize=4)(self._make_splitter)
        self.token_bytes = lru_cache(maxsize=65_536)(self._token_bytes)

    @property
    def vocabulary_size(self) -> int:
        """How many ids there are."""
        return len(self._vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text."""
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        return self._vocabulary.eos_ids

    @property
    def add_bos(self) -> bool:
        """Whether a raw prompt begins with BOS."""
        return self._vocabulary.add_bos

    def special_tokens(self) -> dict[str, int]:
        """Control tokens by text."""
        return dict(self._control)

    def user_defined_tokens(self) -> dict[str, int]:
        """Tokens that are read out of any text."""
        return dict(self._user_defined)

    def encode(self, text: str, *, special: Special = "text") -> list[int]:
        """The ids of `text`, without BOS."""
        return self.encode_parts([TextPart(text, special)])

    def encode_prompt(self, text: str, *, special: Special = "text") -> list[int]:
        """The ids of a raw prompt, BOS first where the file asks for it."""
        return with_bos(self.encode(text, special=special), self, special)

    def encode_parts(self, parts: Sequence[TextPart], *, markers: frozenset[str] = frozenset()) -> list[int]:
        """The ids of the parts joined; control tokens only from parts that may hold them."""
        text, markup = join_parts(parts)
        checked_text(text)
        ids: list[int] = []
        for run in self._splitter_for(markers).split(text, markup):
            if run.token_id is None:
                ids.extend(self._encode_run(text[run.start : run.end], _place(run.start), markers))
            else:
                ids.append(run.token_id)
        return ids

    def encode_spans(self, text: str, *, special: Special = "text") -> list[TokenSpan]:
        """As `encode`, with the characters that became each token."""
        return self.encode_parts_spans([TextPart(text, special)])

    def encode_parts_spans(
        self, parts: Sequence[TextPart], *, markers: frozenset[str] = frozenset()
    ) -> list[TokenSpan]:
        """As `encode_parts`, with spans in the joined text."""
        text, markup = join_parts(parts)
        checked_text(text)
        spans: list[TokenSpan] = []
        for run in self._splitter_for(markers).split(text, markup):
            if run.token_id is None:
                for token_id, start, end in self._encode_run_spans(
                    text[run.start : run.end], _place(run.start), markers
                ):
                    spans.append(TokenSpan(token_id, run.start + start, run.start + end))
            else:
                spans.append(TokenSpan(run.token_id, run.start, run.end))
        return spans

    def decode(self, ids: Iterable[int], *, special: Shown = "hide", begins: Begins = "text") -> str:
        """The text of all ids at once."""
        return decode_all(self._stream(special, begins), ids)

    def detokenizer(self, *, special: Shown = "hide", begins: Begins = "text") -> BytesDetokenizer:
        """A fresh detokenizer whose joined deltas equal `decode`."""
        return BytesDetokenizer(self._stream(special, begins))

    def token_text(self, token_id: int) -> str:
        """The token for display: its bytes as text."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _make_splitter(self, markers: frozenset[str]) -> SpecialSplitter:
        promoted = {text: i for text, i in self._user_defined.items() if text in markers}
        return SpecialSplitter(
            self._control | promoted, always=self._cut_everywhere(), strips_after=self._strips_after
        )

    def _cut_everywhere(self) -> dict[str, int]:
        """The tokens to cut at in any text; a subclass whose library finds them itself returns none."""
        return self._user_defined

    @abstractmethod
    def _encode_run(self, text: str, place: Place, markers: frozenset[str]) -> list[int]:
        """The ids of one run of ordinary text."""

    @abstractmethod
    def _encode_run_spans(
        self, text: str, place: Place, markers: frozenset[str]
    ) -> list[tuple[int, int, int]]:
        """As `_encode_run`, each id with the start and end of its characters in the run."""

    @abstractmethod
    def _stream(self, special: Shown, begins: Begins) -> PieceStream:
        """The bytes that ids add to a text, one after another."""

    @abstractmethod
    def _token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""


def with_bos(ids: list[int], tokenizer: Tokenizer, special: Special) -> list[int]:
    """`ids` with BOS in front where the tokenizer asks for one and the parsed text did not write it."""
    bos_id = tokenizer.bos_id
    if not tokenizer.add_bos or bos_id is None or (special == "parse" and ids[:1] == [bos_id]):
        return ids
    return [bos_id, *ids]


def _place(start: int) -> Place:
    return "first" if start == 0 else "after_special"
