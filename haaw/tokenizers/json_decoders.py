"""The decoder steps that a `tokenizer.json` declares, run one token at a time.

Each step turns a fragment (text, or bytes where bytes are not yet whole characters) into fragments, and
knows only what it must remember: whether a token came before, how much it may still strip, what may yet be
stripped from the end. Run over all ids they give what the `tokenizers` library's decoder gives; where byte
tokens are not valid UTF-8 the library writes one U+FFFD a byte, and HAAW one for each maximal invalid part.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from haaw.errors import BadInputError
from haaw.tokenizers.byte_alphabet import alphabet_to_bytes
from haaw.tokenizers.libraries import need, one_line
from haaw.tokenizers.protocol import Begins

Fragment: TypeAlias = str | bytes
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Step(Protocol):
    """One decoder step."""

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """What one token becomes, as far as it is certain."""
        ...

    def finish(self) -> Iterable[Fragment]:
        """What waited for the end."""
        ...

    @property
    def held_bytes(self) -> bytes:
        """What waits for the end."""
        ...


class _Step:
    """A step that holds nothing back."""

    held_bytes = b""

    def finish(self) -> Iterable[Fragment]:
        """What this step held back."""
        return ()


class Replace(_Step):
    """Replace a text in each token; a pattern is left to the library, a token at a time."""

    def __init__(self, pattern: Any, content: str) -> None:
        self._content = content
        self._text = pattern.get("String") if isinstance(pattern, Mapping) else None
        self._library = None
        if self._text is None:
            expression = pattern.get("Regex") if isinstance(pattern, Mapping) else None
            if not isinstance(expression, str):
                raise BadInputError("tokenizer.json: a Replace decoder names neither a String nor a Regex.")
            library = need("tokenizers", purpose="A tokenizer.json")
            self._library = library.decoders.Replace(library.Regex(expression), content)

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        if isinstance(fragment, bytes):
            return (fragment,)
        if self._library is not None:
            return (str(self._library.decode([fragment])),)
        return (fragment.replace(self._text or "", self._content) if self._text else fragment,)


class ByteFallback(_Step):
    """Tokens that read `<0xHH>` are bytes."""

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        found = BYTE_TOKEN.fullmatch(fragment) if isinstance(fragment, str) else None
        return (bytes([int(found[1], 16)]) if found else fragment,)


class ByteLevel(_Step):
    """Each character of a token is one byte of the byte-level alphabet."""

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        return (alphabet_to_bytes(fragment) if isinstance(fragment, str) else fragment,)


class Strip(_Step):
    """Take up to `start` characters from the beginning of each token and up to `stop` from its end."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        if isinstance(fragment, bytes):
            return (fragment,)
        return (_cut_end(_cut_start(fragment, self._content, self._start), self._content, self._stop),)


class StripWhole:
    """The same on the whole text, once an earlier step has joined all tokens."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content.encode("utf-8")
        self._start, self._stop = start, stop
        self.held_bytes = b""

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        data = self.held_bytes + (fragment.encode("utf-8") if isinstance(fragment, str) else fragment)
        while self._start and data.startswith(self._content):
            data = data[len(self._content) :]
            self._start -= 1
        if data:
            self._start = 0
        kept = _cut_end_bytes(data, self._content, self._stop)
        self.held_bytes = data[len(kept) :]
        return (kept,)

    def finish(self) -> Iterable[Fragment]:
        """What this step held back."""
        self.held_bytes = b""
        return ()


class Metaspace(_Step):
    """The replacement character is a space, and in the first token nothing (unless it never is prepended)."""

    def __init__(self, replacement: str, drop: str, first: str) -> None:
        self._replacement = replacement
        self._drop = drop == "yes" and first == "yes"

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        drop, self._drop = self._drop, False
        if isinstance(fragment, bytes):
            return (fragment,)
        return (fragment.replace(self._replacement, "" if drop else " "),)


class WordPiece(_Step):
    """Tokens are words with a space before them, except those that begin with the prefix (`##`)."""

    def __init__(self, prefix: str, cleanup: bool, first: str) -> None:
        library = need("tokenizers", purpose="A tokenizer.json")
        self._first = first == "yes"
        self._library = library.decoders.WordPiece(prefix=prefix, cleanup=cleanup)

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        first, self._first = self._first, False
        if isinstance(fragment, bytes):
            return (fragment,)
        if first:
            return (str(self._library.decode([fragment])),)
        return (str(self._library.decode(["", fragment])),)


class BPEDecoder:
    """A token's suffix is a space, except in the last token, where it is nothing."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._last: str | None = None

    @property
    def held_bytes(self) -> bytes:
        """What this step holds back."""
        return (self._last or "").encode("utf-8")

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        token = fragment.decode("utf-8", "replace") if isinstance(fragment, bytes) else fragment
        before, self._last = self._last, token
        return () if before is None else (self._replaced(before, " "),)

    def finish(self) -> Iterable[Fragment]:
        """What this step held back."""
        last, self._last = self._last, None
        return () if last is None else (self._replaced(last, ""),)

    def _replaced(self, token: str, by: str) -> str:
        return token.replace(self._suffix, by) if self._suffix else token


class Spaced(_Step):
    """What the library does where no decoder is declared: tokens with a space between."""

    def __init__(self, first: str) -> None:
        self._first = first == "yes"

    def push(self, fragment: Fragment) -> Iterable[Fragment]:
        """The fragment after this step."""
        first, self._first = self._first, False
        text = fragment.decode("utf-8", "replace") if isinstance(fragment, bytes) else fragment
        return (text if first else f" {text}",)


def decoder_steps(declared: Any, begins: Begins) -> list[Step]:
    """Fresh steps for the `decoder` of a tokenizer.json; begins "middle" takes nothing from the front.

    BadInputError that names a kind of decoder that is not known.
    """
    first = "yes" if begins == "text" else "no"
    if declared is None:
        return [Spaced(first)]
    steps: list[Step] = []
    joined = False
    for settings in _flat(declared):
        kind = settings.get("type")
        if kind == "Fuse":
            joined = True
            continue
        steps.append(_step(str(kind), settings, joined, first))
        joined = joined or kind == "ByteLevel"
    return steps


def _step(kind: str, settings: Mapping[str, Any], joined: bool, first: str) -> Step:
    if kind == "Replace":
        return Replace(settings.get("pattern"), _text(settings, "content"))
    if kind == "ByteFallback":
        return ByteFallback()
    if kind == "ByteLevel":
        return ByteLevel()
    if kind == "Strip":
        content = _text(settings, "content")
        start, stop = _count(settings, "start"), _count(settings, "stop")
        if joined:
            return StripWhole(content, start if first == "yes" else 0, stop)
        return Strip(content, start, stop)
    if joined:
        raise BadInputError(
            f"tokenizer.json: a {kind} decoder after the tokens were joined is not supported."
        )
    if kind == "Metaspace":
        never = settings.get("prepend_scheme") == "never" or settings.get("add_prefix_space") is False
        return Metaspace(_text(settings, "replacement"), "no" if never else "yes", first)
    if kind == "WordPiece":
        return WordPiece(_text(settings, "prefix"), settings.get("cleanup") is not False, first)
    if kind == "BPEDecoder":
        return BPEDecoder(_text(settings, "suffix"))
    raise BadInputError(
        f"tokenizer.json declares the decoder {one_line(repr(kind), most_chars=60)}, unknown to HAAW."
    )


def _flat(declared: Any, depth: int = 8) -> list[Mapping[str, Any]]:
    if not isinstance(declared, Mapping) or depth == 0:
        raise BadInputError("tokenizer.json: its decoder is not a description of decoder steps.")
    if declared.get("type") != "Sequence":
        return [declared]
    steps = declared.get("decoders")
    if not isinstance(steps, list):
        raise BadInputError("tokenizer.json: its decoder sequence lists no decoders.")
    return [inner for step in steps for inner in _flat(step, depth - 1)]


def _text(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    if not isinstance(value, str):
        raise BadInputError(f"tokenizer.json: decoder {settings.get('type')} needs the text {key!r}.")
    return value


def _count(settings: Mapping[str, Any], key: str) -> int:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        raise BadInputError(f"tokenizer.json: decoder {settings.get('type')} needs {key!r} from 0 to 1000.")
    return value


def _cut_start(text: str, content: str, most: int) -> str:
    while most and content and text.startswith(content):
        text, most = text[len(content) :], most - 1
    return text


def _cut_end(text: str, content: str, most: int) -> str:
    while most and content and text.endswith(content):
        text, most = text[: len(text) - len(content)], most - 1
    return text


def _cut_end_bytes(data: bytes, content: bytes, most: int) -> bytes:
    while most and content and data.endswith(content):
        data, most = data[: len(data) - len(content)], most - 1
    return data
