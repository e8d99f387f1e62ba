"""How a prompt became token ids: the text after templating, and which characters became which token.

A request keeps what it was given; the facts are made of it only where somebody records them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Facts = dict[str, Any]
Place = tuple[int | None, int | None]

TOKEN_COLUMNS = ("id", "bytes", "start", "end", "special")


@dataclass(frozen=True)
class Preparation:
    """What a prompt was made of; times are of `time.perf_counter_ns`.

    `text` is what was tokenised, and None for a prompt of token ids. `contents` says where each message's content
    lies in it (role, first character, end), where that is certain. `spans` are the template's own tokens with
    the characters of each.
    """

    form: Literal["raw", "chat", "ids"]
    text: str | None
    ids: tuple[int, ...]
    tokenizer: Any
    tokenised_ns: int
    roles: tuple[str, ...] = ()
    contents: tuple[tuple[str, int, int], ...] = ()
    spans: Sequence[Any] = ()
    notes: tuple[str, ...] = ()
    templated_ns: int | None = None

    def facts(self) -> Iterator[tuple[str, Facts]]:
        """`prepared` and `tokenised`, as a recorder is told of them."""
        yield (
            "prepared",
            {
                "form": self.form,
                "roles": list(self.roles),
                "text": self.text,
                "characters": None if self.text is None else len(self.text),
                "contents": [list(content) for content in self.contents],
                "notes": list(self.notes),
                "t_ns": self.templated_ns or self.tokenised_ns,
            },
        )
        pieces = list(map(self.tokenizer.token_bytes, self.ids))
        places, found_by = token_places(self.text, self.ids, pieces, self.tokenizer, self.spans)
        special = frozenset(self.tokenizer.special_tokens().values())
        rows = zip(self.ids, pieces, places, strict=True)
        tokens = [[i, as_text(piece), *place, int(i in special)] for i, piece, place in rows]
        columns = list(TOKEN_COLUMNS)
        yield (
            "tokenised",
            {"columns": columns, "tokens": tokens, "found_by": found_by, "t_ns": self.tokenised_ns},
        )


def as_text(data: bytes) -> str:
    """Bytes in JSON: each as the character of its number (Latin-1), so that ASCII reads as itself."""
    return data.decode("latin-1")


def token_places(
    text: str | None, ids: Sequence[int], pieces: Sequence[bytes], tokenizer: Any, spans: Sequence[Any]
) -> tuple[list[Place], str | None]:
    """For each token the characters that became it (start, end), and how that was found.

    Tokens that share a character have it all; a token that no character stands for, such as BOS, has an empty
    place. "bytes": the tokens' bytes, joined, are the text's. "tokenizer": they are not (a normalised text), and
    the tokenizer says where it took each from. None: nobody knows, and places are (None, None).
    """
    if text is None:
        return [(None, None)] * len(ids), None
    if (exact := places_by_bytes(text, ids, pieces, tokenizer.bos_id)) is not None:
        return exact, "bytes"
    if not spans and hasattr(tokenizer, "encode_spans"):
        spans = tokenizer.encode_spans(text)
    begin = len(ids) - len(spans)  # BOS, which the text does not show
    if 0 <= begin <= 1 and [span.id for span in spans] == list(ids[begin:]):
        first: list[Place] = [(0, 0)] * begin
        return first + [(span.start, span.end) for span in spans], "tokenizer"
    return [(None, None)] * len(ids), None


def places_by_bytes(
    text: str, ids: Sequence[int], pieces: Sequence[bytes], bos_id: int | None
) -> list[Place] | None:
    """The places of tokens whose joined bytes are the UTF-8 of `text`; None if they are not.

    Before them may stand BOS, and the space that a tokenizer puts before a text.
    """
    data = text.encode("utf-8", "surrogatepass")
    begin = 0
    joined = b"".join(pieces)
    if joined != data and ids and ids[0] == bos_id:
        begin, joined = 1, b"".join(pieces[1:])
    added = 1 if joined == b" " + data else 0
    if joined[added:] != data:
        return None
    character_of = _characters_of_bytes(text)
    places: list[Place] = [(0, 0)] * begin
    position = -added
    for piece in pieces[begin:]:
        low, position = max(position, 0), position + len(piece)
        start = character_of[low]
        end = start if position <= low else character_of[position - 1] + 1
        places.append((start, end))
    return places


def _characters_of_bytes(text: str) -> Sequence[int]:
    """For each byte of the text as UTF-8, and for its end, the number of the character it belongs to."""
    if text.isascii():
        return range(len(text) + 1)
    numbers: list[int] = []
    for number, character in enumerate(text):
        numbers.extend([number] * len(character.encode("utf-8", "surrogatepass")))
    numbers.append(len(text))
    return numbers


def chunk_facts(tokens: int, chunk_tokens: int, first: int = 0) -> Facts:
    """`chunks`: the positions that each prefill step takes, from `first` on, as the request plans it."""
    chunks: Iterable[int] = range(first, tokens, chunk_tokens)
    return {
        "tokens": tokens,
        "chunk_tokens": chunk_tokens,
        "chunks": [[start, min(start + chunk_tokens, tokens)] for start in chunks],
    }
