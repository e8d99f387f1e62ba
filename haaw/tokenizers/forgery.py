"""Telling the template's own characters from a person's in a rendered chat.

Wherever a message could begin, hold or end a control token, the characters concerned are exchanged, one for
one, for private-use characters drawn at random. The template then runs on those; what comes out private is a
person's. Lengths, slices and white space stay as they were, so a template does with the exchanged text what
it does with the real one; the caller compares the two renders and refuses where that is not so.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
UNTOUCHED_KEYS = frozenset({"role"})


class Mask:
    """Exchanges risky characters of strings, and restores them; one object serves one render.

    `extent` "beginnings" exchanges every place where a marker could begin (its first two characters), so that
    not even a template which removes text from the middle can assemble one; "whole" only complete markers.
    Both also exchange what could complete a marker with the text before or after the message.
    """

    def __init__(self, markers: Iterable[str], *, extent: Literal["beginnings", "whole"], avoid: str) -> None:
        texts = sorted({marker for marker in markers if marker}, key=len, reverse=True)
        sought = {text[:2] for text in texts} if extent == "beginnings" else set(texts)
        self._sought = re.compile("|".join(map(re.escape, sorted(sought, key=len, reverse=True))) or r"(?!)")
        self._heads = tuple({text[i:] for text in texts for i in range(1, len(text))})
        self._tails = tuple({text[:i] for text in texts for i in range(1, len(text))})
        self._private: dict[str, str] = {}
        self._original: dict[str, str] = {}
        self._avoid = frozenset(avoid)

    def hide(self, text: str) -> str:
        """`text` with its risky characters exchanged."""
        risky: set[int] = set()
        for match in self._sought.finditer(text):
            risky.update(range(*match.span()))
        inner = text.strip()
        begin = text.find(inner)
        if inner.startswith(self._heads):
            risky.update(range(begin, begin + _longest(self._heads, inner.startswith)))
        if inner.endswith(self._tails):
            end = begin + len(inner)
            risky.update(range(end - _longest(self._tails, inner.endswith), end))
        if not risky:
            return text
        return "".join(
            self._exchange(char) if i in risky and not char.isspace() else char for i, char in enumerate(text)
        )

    @property
    def used(self) -> bool:
        """Whether any character was exchanged."""
        return bool(self._private)

    def restore(self, text: str) -> str:
        """`text` with the original characters."""
        return text.translate({ord(private): char for private, char in self._original.items()})

    def markup(self, text: str) -> bytes:
        """For each character of a masked render 0 if it was exchanged, else 1."""
        return bytes(0 if char in self._original else 1 for char in text)

    def _exchange(self, char: str) -> str:
        if char not in self._private:
            private = char
            while private == char or private in self._original or private in self._avoid:
                private = chr(secrets.choice(_PRIVATE_USE))
            self._private[char] = private
            self._original[private] = char
        return self._private[char]


def _longest(candidates: Iterable[str], fits: Callable[[str], bool]) -> int:
    return max(len(candidate) for candidate in candidates if fits(candidate))


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it changed, except roles and the keys of mappings."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            key: inner if key in UNTOUCHED_KEYS else map_strings(inner, change)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_strings(inner, change) for inner in value]
    return value
