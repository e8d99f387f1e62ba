"""The text of a request as a trace tells it: its tokens, and what stood on the screen after each step."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from haaw.tracing.display import html_table, text_table, token_text
from haaw.tracing.steps import StepLike, find_step, the_request

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

TokenBytes = Callable[[int], bytes]


class TokenAt(NamedTuple):
    """A token at its position. `start` and `end` are the characters that it stands for (of an answer: that it made
    visible), in the prepared prompt or in the answer; None where nobody knows.
    """

    position: int
    id: int
    bytes: bytes | None
    source: Literal["prompt", "answer"]
    text: str
    start: int | None
    end: int | None

    @property
    def label(self) -> str:
        """The token as a short quoted text."""
        return token_text(self.bytes) if self.bytes else f"token {self.id}"


class Tokens(Sequence[TokenAt]):
    """The tokens of a prompt and its answer, by position."""

    def __init__(self, tokens: Sequence[TokenAt]) -> None:
        self._tokens = tuple(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, key: Any) -> Any:
        return self._tokens[key]

    @property
    def ids(self) -> list[int]:
        """All token ids."""
        return [token.id for token in self._tokens]

    def labels(self, count: int) -> list[str]:
        """The tokens at the first `count` positions as short texts; beyond those that are known, the position."""
        known = [token.label for token in self._tokens[:count]]
        return known + [f"position {number}" for number in range(len(known), count)]

    def _rows(self) -> list[list[object]]:
        return [
            [token.position, token.id, token.label, token.source, token.text, _span(token.start, token.end)]
            for token in self._tokens
        ]

    def __repr__(self) -> str:
        return text_table(("position", "id", "bytes", "of the", "text", "characters"), self._rows())

    def _repr_html_(self) -> str:
        return html_table("tokens", ("position", "id", "bytes", "of the", "text", "characters"), self._rows())


def _span(start: int | None, end: int | None) -> str:
    return "" if start is None else f"{start}–{end}"


def tokens(trace: "Trace", *, request: int | None = None) -> Tokens:
    """Prompt and answer, token by token."""
    number = the_request(trace, request)
    found: list[TokenAt] = []
    text = next((each["text"] for each in _facts(trace, "prepared", number)), None)
    for facts in _facts(trace, "tokenised", number)[:1]:
        for token_id, piece, start, end, *_ in facts["tokens"]:
            own = text[start:end] if text is not None and start is not None else ""
            found.append(TokenAt(len(found), token_id, piece.encode("latin-1"), "prompt", own, start, end))
    prompt, shown = len(found), 0
    token_bytes = bytes_of_tokens(trace)
    for event in trace.facts(request=number):
        facts = event.facts or {}
        if event.name == "text_anew":
            found, shown = found[:prompt], len(facts["text"])
            for token_id in facts["token_ids"]:
                found.append(
                    TokenAt(len(found), token_id, token_bytes.get(token_id), "answer", "", None, None)
                )
        elif event.name == "delta" and facts.get("token_id") is not None:
            end = shown + len(facts["text"])
            piece = facts["bytes"].encode("latin-1")
            found.append(TokenAt(len(found), facts["token_id"], piece, "answer", facts["text"], shown, end))
            shown = end
    return Tokens(found)


def _facts(trace: "Trace", kind: str, request: int | None) -> list[Any]:
    return [event.facts or {} for event in trace.facts(kind, request=request)]


def bytes_of_tokens(trace: "Trace") -> dict[int, bytes]:
    """The bytes of every token id that the trace itself names."""
    known: dict[int, bytes] = {}
    for event in trace.facts():
        facts = event.facts or {}
        if event.name == "tokenised":
            known |= {row[0]: row[1].encode("latin-1") for row in facts["tokens"]}
        elif event.name == "delta" and facts.get("token_id") is not None:
            known[facts["token_id"]] = facts["bytes"].encode("latin-1")
    return known


def text_at(trace: "Trace", step: StepLike | None = None, *, request: int | None = None) -> str:
    """The answer as it stood on the screen when a step had ended; without a step, as it stands at the end."""
    if step is None:
        number, end = the_request(trace, request), len(trace)
    else:
        found = find_step(trace, step, request=request)
        number, end = found.request, found.end
    text = ""
    for event in trace.facts(request=number):
        if event.number >= end:
            break
        facts = event.facts or {}
        if event.name == "text_anew":
            text = facts["text"]
        elif event.name == "delta":
            text += facts["text"]
    return text


def prompt_text(trace: "Trace", *, request: int | None = None) -> str | None:
    """The prompt as it was tokenised; None for one of token ids."""
    found: list[str | None] = [
        each["text"] for each in _facts(trace, "prepared", the_request(trace, request))
    ]
    return found[0] if found else None
