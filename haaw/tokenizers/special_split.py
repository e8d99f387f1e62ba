"""Finding control tokens in a text, where they may be found at all.

Knows token texts and which characters of the text are trusted; knows nothing of encoding. The rule that keeps
a person's text from forging a control token is here: a control token is taken only if every one of its
characters may be read as markup.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from haaw.tokenizers.protocol import TextPart


@dataclass(frozen=True, slots=True)
class Run:
    """`text[start:end]`: one control token (`token_id`), or text between two of them (None)."""

    start: int
    end: int
    token_id: int | None


def join_parts(parts: Sequence[TextPart]) -> tuple[str, bytes]:
    """The parts' joined text, and for each character 1 if control tokens may be read from it, else 0."""
    text = "".join(part.text for part in parts)
    markup = b"".join((b"\1" if part.special == "parse" else b"\0") * len(part.text) for part in parts)
    return text, markup


class SpecialSplitter:
    """Cuts a text at its control and user-defined tokens: leftmost first, then longest.

    `control` is read only from markup; `always` from any text. A token in `strips_after` swallows the white
    space that follows it, one in `strips_before` that before it.
    """

    def __init__(
        self,
        control: Mapping[str, int],
        *,
        always: Mapping[str, int] | None = None,
        strips_before: Iterable[str] = (),
        strips_after: Iterable[str] = (),
    ) -> None:
        self._control = dict(control)
        self._always = {text: i for text, i in (always or {}).items() if text not in self._control}
        self._strips_before = frozenset(strips_before)
        self._strips_after = frozenset(strips_after)
        self._any = _longest_first([*self._control, *self._always])
        self._user = _longest_first(self._always)

    def split(self, text: str, markup: bytes) -> list[Run]:
        """The runs of `text`, in order, without gaps except for stripped white space, none empty."""
        pattern = self._any if b"\1" in markup else self._user
        runs: list[Run] = []
        position = 0
        search_from = 0
        while pattern is not None and (match := pattern.search(text, search_from)):
            found = self._allowed(text, match, markup)
            if found is None:
                search_from = match.start() + 1
                continue
            start, end = found
            token = text[start:end]
            self._close(runs, text, position, start, strip=token in self._strips_before)
            runs.append(Run(start, end, self._id(token)))
            position = self._after(text, end) if token in self._strips_after else end
            search_from = position
        self._close(runs, text, position, len(text), strip=False)
        return runs

    def first_forged(self, text: str, markup: bytes) -> str | None:
        """The first control token in `text` with a character outside the markup, or None."""
        if self._any is None or not self._control:
            return None
        position = 0
        while match := self._any.search(text, position):
            if match[0] in self._control and b"\0" in markup[match.start() : match.end()]:
                return match[0]
            position = match.start() + 1
        return None

    def _id(self, token: str) -> int:
        return self._control[token] if token in self._control else self._always[token]

    def _allowed(self, text: str, match: re.Match[str], markup: bytes) -> tuple[int, int] | None:
        start, end = match.span()
        if match[0] not in self._control or b"\0" not in markup[start:end]:
            return start, end
        shorter = self._user.match(text, start) if self._user is not None else None
        return shorter.span() if shorter else None

    @staticmethod
    def _close(runs: list[Run], text: str, start: int, end: int, *, strip: bool) -> None:
        if strip:
            while end > start and text[end - 1].isspace():
                end -= 1
        if start < end:
            runs.append(Run(start, end, None))

    @staticmethod
    def _after(text: str, end: int) -> int:
        while end < len(text) and text[end].isspace():
            end += 1
        return end


def _longest_first(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that matches any of `tokens`, the longest at each place; None if there are none.

    Tokens are grouped by their first character, so that a place where none begins costs one comparison.
    """
    groups: dict[str, list[str]] = {}
    for token in tokens:
        groups.setdefault(token[0], []).append(token[1:])
    if not groups:
        return None
    branches = []
    for first, rests in groups.items():
        tails = "|".join(re.escape(rest) for rest in sorted(rests, key=len, reverse=True))
        branches.append(f"{re.escape(first)}(?:{tails})")
    return re.compile("|".join(branches))
