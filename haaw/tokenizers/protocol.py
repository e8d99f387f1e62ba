"""What the rest of HAAW may expect of a tokenizer, whichever kind it is.

Only the promise: no kind, file format or library appears here.

Three rules hold for every kind:

- Text typed by a person is ordinary text. Control tokens are read out of text only where the caller says
  ``special="parse"``, which is meant for what a chat template wrote.
- ``decode`` joins the tokens' bytes and reads them as UTF-8; bytes that are not UTF-8 become U+FFFD by the
  rule of Python's ``errors="replace"`` (one per maximal invalid part). No clean-up of spaces is applied,
  ever.
- The deltas of a detokenizer, joined, are exactly what ``decode`` gives for the same ids.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

Special: TypeAlias = Literal["text", "parse"]
"""Whether control tokens in a text are ordinary text, or are parsed into their ids."""

Shown: TypeAlias = Literal["hide", "show"]
"""Whether control tokens leave their text in a decoded string."""

Begins: TypeAlias = Literal["text", "middle"]
"""Whether the ids begin a text, or go on after others (then no leading space is taken away)."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """One token and the characters that became it: `text[start:end]`.

    Tokens that share one character (its bytes were split) have the same span; a token that no character
    stands for (BOS, a prefix space) has an empty one.
    """

    id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a longer text, and whether control tokens may be read out of it."""

    text: str
    special: Special


class Detokenizer(Protocol):
    """Turns ids into text one at a time; the joined deltas equal the text decoded in one go."""

    def push(self, token_id: int) -> str:
        """Take one id; return the text that is now certain, possibly none."""
        ...

    def flush(self) -> str:
        """End the text: return what was held back, incomplete bytes as U+FFFD. No id may follow."""
        ...

    @property
    def held_bytes(self) -> bytes:
        """The bytes received and not yet returned as text."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. Errors are BadInputError."""

    @property
    def vocabulary_size(self) -> int:
        """How many ids there are; every id is below it."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, if the vocabulary has one."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether a raw prompt begins with `bos_id`."""
        ...

    def encode(self, text: str, *, special: Special = "text") -> list[int]:
        """The ids of `text`, without BOS."""
        ...

    def encode_prompt(self, text: str, *, special: Special = "text") -> list[int]:
        """The ids of a raw prompt: BOS first where the vocabulary's file asks for it, never an EOS after.

        With ``special="parse"`` a BOS that the text itself writes is not doubled.
        """
        ...

    def encode_parts(self, parts: Sequence[TextPart], *, markers: frozenset[str] = frozenset()) -> list[int]:
        """The ids of the parts joined; a control token is parsed only where all its characters may be.

        Text between two control tokens is encoded as one run, across the parts' borders. `markers` are
        further tokens (user-defined ones that the template writes) that count as control tokens.
        """
        ...

    def encode_spans(self, text: str, *, special: Special = "text") -> list[TokenSpan]:
        """As `encode`, with the characters that became each token."""
        ...

    def encode_parts_spans(
        self, parts: Sequence[TextPart], *, markers: frozenset[str] = frozenset()
    ) -> list[TokenSpan]:
        """As `encode_parts`, with spans in the joined text."""
        ...

    def decode(self, ids: Iterable[int], *, special: Shown = "hide", begins: Begins = "text") -> str:
        """The text of all ids at once."""
        ...

    def detokenizer(self, *, special: Shown = "hide", begins: Begins = "text") -> Detokenizer:
        """A fresh detokenizer whose joined deltas equal `decode` with the same arguments."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, from the vocabulary and not from decoded text."""
        ...

    def token_text(self, token_id: int) -> str:
        """The token for display: its bytes as text, or its name where it is a control token."""
        ...

    def special_tokens(self) -> dict[str, int]:
        """Control tokens by name."""
        ...

    def user_defined_tokens(self) -> dict[str, int]:
        """Tokens that are always read out of text, unless they are named as markers."""
        ...
