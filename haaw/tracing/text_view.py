"""The text of a request as a trace tells it: its tokens, and what stood on the screen after each step."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from haaw.tracing.display import html_table, text_table, token_text
from haaw.tracing.event import Event
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


class Texts:
    """What the facts of a trace say about texts, put together once: who walks through a trace asks at every step."""

    def __init__(self, trace: "Trace") -> None:
        self._trace = trace
        self._tokens: dict[int | None, Tokens] = {}
        self._answers: dict[int | None, Answer] = {}
        self.token_bytes = bytes_of_tokens(trace)

    def tokens(self, request: int | None) -> Tokens:
        """Prompt and answer of a request, token by token."""
        if request not in self._tokens:
            self._tokens[request] = _tokens(self._trace, request, self.token_bytes)
        return self._tokens[request]

    def answer(self, request: int | None) -> "Answer":
        """The answer of a request as it grew."""
        if request not in self._answers:
            self._answers[request] = Answer(self._trace.facts(request=request))
        return self._answers[request]


class Answer:
    """An answer as it grew, by the events that told of it."""

    def __init__(self, facts: Sequence[Event]) -> None:
        texts: list[list[str]] = [[]]  # a new one where the text was made anew
        self._events: list[int] = []
        self._stood: list[tuple[int, int]] = []
        length = 0
        for event in facts:
            if event.name not in ("delta", "text_anew"):
                continue
            if event.name == "text_anew":
                texts.append([])
                length = 0
            piece = (event.facts or {})["text"]
            texts[-1].append(piece)
            length += len(piece)
            self._events.append(event.number)
            self._stood.append((len(texts) - 1, length))
        self._texts = ["".join(pieces) for pieces in texts]

    def before(self, event: int) -> str:
        """As it stood before an event."""
        place = bisect_left(self._events, event)
        if not place:
            return ""
        text, length = self._stood[place - 1]
        return self._texts[text][:length]


def tokens(trace: "Trace", *, request: int | None = None) -> Tokens:
    """Prompt and answer, token by token."""
    return trace.reading.texts.tokens(the_request(trace, request))


def _tokens(trace: "Trace", request: int | None, token_bytes: Mapping[int, bytes]) -> Tokens:
    found: list[TokenAt] = []
    text = next((each["text"] for each in _facts(trace, "prepared", request)), None)
    for facts in _facts(trace, "tokenised", request)[:1]:
        for token_id, piece, start, end, *_ in facts["tokens"]:
            own = text[start:end] if text is not None and start is not None else ""
            found.append(TokenAt(len(found), token_id, piece.encode("latin-1"), "prompt", own, start, end))
    prompt, shown = len(found), 0
    for event in trace.facts(request=request):
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
        return trace.reading.texts.answer(the_request(trace, request)).before(len(trace))
    found = find_step(trace, step, request=request)
    return trace.reading.texts.answer(found.request).before(found.end)


def prompt_text(trace: "Trace", *, request: int | None = None) -> str | None:
    """The prompt as it was tokenised; None for one of token ids."""
    found: list[str | None] = [
        each["text"] for each in _facts(trace, "prepared", the_request(trace, request))
    ]
    return found[0] if found else None
