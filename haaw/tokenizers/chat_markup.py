"""Which characters of a rendered chat the template wrote, and where each message's content lies.

Renders the chat several times, with characters of the messages exchanged (`forgery`), and compares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from haaw.errors import BadInputError
from haaw.tokenizers.forgery import Mask, map_strings
from haaw.tokenizers.protocol import TextPart, TokenSpan


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """The tokens `start … end` (end excluded) that hold the content of one message.

    A token at the border that also holds characters of the template is counted in.
    """

    role: str
    message: int
    start: int
    end: int


@dataclass(frozen=True)
class ChatJob:
    """One chat to render: its text, and a way to render it with other messages and tools at the same time."""

    messages: Any
    tools: Any
    text: str
    avoid: str
    with_other: Callable[[Any, Any], str]


def markup_of(job: ChatJob, control: frozenset[str], markers: frozenset[str]) -> tuple[bytes, list[str]]:
    """For each character of the chat whether control tokens may be read from it, and warnings.

    `markers` are user-defined tokens that the template writes. Where the template itself looks for them in a
    message (as for a reasoning tag), the message must keep them, and they count as markup there.
    """
    attempts: tuple[tuple[frozenset[str], Literal["beginnings", "whole"]], ...] = (
        (control | markers, "beginnings"),
        (control | markers, "whole"),
        (control, "whole"),
    )
    for guarded, extent in attempts:
        mask = Mask(guarded, extent=extent, avoid=job.avoid)
        hidden = map_strings(job.messages, mask.hide), map_strings(job.tools, mask.hide)
        try:
            masked = job.with_other(*hidden) if mask.used else job.text
        except BadInputError:
            continue
        if mask.restore(masked) == job.text:
            return mask.markup(masked), _unguarded(job, markers - guarded)
    raise BadInputError(
        "A message holds text that is also a control token of this model, and the chat template rewrites "
        "that message, so it cannot be told from the template's own markup; take the control token out."
    )


def _unguarded(job: ChatJob, markers: frozenset[str]) -> list[str]:
    """A warning for each marker that a message holds and that could not be kept apart."""
    strings: list[str] = []

    def note(text: str) -> str:
        strings.append(text)
        return text

    map_strings([job.messages, job.tools], note)
    found = sorted(marker for marker in markers if any(marker in text for text in strings))
    return [
        f"The chat template itself looks for {marker!r} in messages, so it counts as markup there."
        for marker in found
    ]


def places_of(job: ChatJob) -> dict[int, tuple[int, int]]:
    """Message index -> the characters of the chat that are its content; empty unless all are certain.

    Each content is exchanged for as many copies of a private-use character of its own, and must come out of
    the template whole and once.
    """
    fresh = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in job.avoid)
    signs: dict[int, tuple[str, str]] = {}
    exchanged = []
    for index, message in enumerate(job.messages):
        content = message.get("content")
        core = content.strip() if isinstance(content, str) else ""
        if core:
            signs[index] = (next(fresh), core)
            message = {**message, "content": content.replace(core, signs[index][0] * len(core), 1)}
        exchanged.append(message)
    try:
        marked = job.with_other(exchanged, job.tools)
    except BadInputError:
        return {}
    places = {}
    for index, (sign, core) in signs.items():
        start = marked.find(sign * len(core))
        if start >= 0 and marked.count(sign) == len(core):
            places[index] = (start, start + len(core))
    for index, (start, end) in places.items():
        marked = marked[:start] + signs[index][1] + marked[end:]
    return places if marked == job.text else {}


def parts_of(text: str, markup: bytes) -> list[TextPart]:
    """`text` as stretches of equal trust: "parse" where `markup` is 1, "text" where it is 0."""
    parts = []
    start = 0
    while start < len(text):
        other = markup.find(b"\0" if markup[start] else b"\1", start)
        end = len(text) if other < 0 else other
        parts.append(TextPart(text[start:end], "parse" if markup[start] else "text"))
        start = end
    return parts


def message_spans(
    tokens: Sequence[TokenSpan], messages: Sequence[Mapping[str, Any]], places: Mapping[int, tuple[int, int]]
) -> tuple[MessageSpan, ...]:
    """The tokens that touch each place, in the order of the text."""
    spans = []
    for index, (start, end) in sorted(places.items(), key=lambda place: place[1]):
        inside = [i for i, token in enumerate(tokens) if token.start < end and token.end > start]
        if inside:
            spans.append(MessageSpan(messages[index]["role"], index, inside[0], inside[-1] + 1))
    return tuple(spans)
