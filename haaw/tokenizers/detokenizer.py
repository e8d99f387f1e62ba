"""The incremental detokenizer: bytes arrive token by token, text leaves as soon as it is certain.

Knows nothing of vocabularies: a `PieceStream` says which bytes an id adds. What is kept between two ids is
the start of one UTF-8 sequence (at most three bytes) and whatever the stream itself holds, so a long answer
costs the same per token as a short one.
"""

import codecs
from collections.abc import Iterable
from typing import Protocol

from haaw.errors import BadInputError


class PieceStream(Protocol):
    """The bytes that each id adds to the text, given the ids before it."""

    def push(self, token_id: int) -> bytes:
        """The bytes that are certain once this id is known."""
        ...

    def finish(self) -> bytes:
        """The bytes that waited for the end."""
        ...

    @property
    def held_bytes(self) -> bytes:
        """The bytes that wait for another id or the end."""
        ...


class BytesDetokenizer:
    """Decodes a stream of pieces as UTF-8 with replacement, a code point at a time.

    Python's incremental decoder has the property that is needed: it returns the longest prefix that no later
    byte can change, and its joined output equals ``bytes.decode("utf-8", "replace")``.
    """

    def __init__(self, stream: PieceStream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = False

    def push(self, token_id: int) -> str:
        """Take one id; return the text that is now certain. BadInputError for an id that does not exist."""
        if self._ended:
            raise BadInputError("This detokenizer was flushed; ask the tokenizer for a fresh one.")
        return self._decoder.decode(self._stream.push(token_id))

    def flush(self) -> str:
        """Return what was held back; a second call returns nothing."""
        if self._ended:
            return ""
        self._ended = True
        return self._decoder.decode(self._stream.finish(), final=True)

    @property
    def held_bytes(self) -> bytes:
        """The bytes received and not yet returned as text."""
        incomplete, _ = self._decoder.getstate()
        return incomplete + self._stream.held_bytes


def decode_all(stream: PieceStream, ids: Iterable[int]) -> str:
    """The text of all ids at once: every byte joined, then read as UTF-8 with replacement."""
    pieces = [stream.push(token_id) for token_id in ids]
    pieces.append(stream.finish())
    return b"".join(pieces).decode("utf-8", "replace")
