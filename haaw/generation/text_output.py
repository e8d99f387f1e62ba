"""From ids to the text that may be shown: detokenising, end tokens, stop strings and tool calls, in this order.

The one path that every id and every end takes, so that streamed and whole text cannot differ.
"""

from collections.abc import Iterable
from typing import Any, Literal, Protocol

from haaw.errors import BadInputError
from haaw.generation.finish import Finish
from haaw.generation.settings import Settings
from haaw.generation.stop_strings import StopStrings

Begins = Literal["text", "middle"]


class Detokenizer(Protocol):
    """Turns ids into text as they come; the pieces joined equal the text decoded in one go."""

    def push(self, token_id: int) -> str:
        """The text that this id makes certain, possibly empty."""

    def flush(self) -> str:
        """What was held back, at the end."""


class TextSide(Protocol):
    """The part of a tokenizer that a running request needs."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence."""

    def special_tokens(self) -> dict[str, int]:
        """Control tokens by name; text does not show them."""

    def token_bytes(self, token_id: int) -> bytes:
        """The vocabulary's own bytes of an id."""

    def detokenizer(self, *, begins: Begins = "text") -> Any:
        """A fresh `Detokenizer`; "middle" keeps a leading space that would be dropped where a text begins."""


class TextOutput:
    """The text of one answer. `finish` is set as soon as an id or the text ends it."""

    def __init__(self, text_side: TextSide, settings: Settings, begins: Begins = "text") -> None:
        self.text = ""
        self.pushed = 0
        self.finish: Finish | None = None
        self._eos_ids = text_side.eos_ids
        self._stop_ids = dict.fromkeys(settings.stop_ids)
        self._stop_tokens: dict[int, str] = {}
        self._stops = StopStrings(
            _visible_stops(settings.stop, text_side.special_tokens(), self._stop_tokens)
        )
        self._markers = settings.tool_call_markers
        self._detokenizer: Detokenizer = text_side.detokenizer(begins=begins)
        self.closed = False

    def push(self, token_id: int) -> str:
        """Takes the next id and returns the text that may be shown now; ids that end the answer have none."""
        shown = ""
        if token_id in self._eos_ids:
            self.finish = Finish("eos", {"token_id": token_id})
        elif token_id in self._stop_ids:
            self.finish = Finish("stop_token", {"token_id": token_id})
        elif token_id in self._stop_tokens:
            evidence = {"stop_string": self._stop_tokens[token_id], "token_id": token_id}
            self.finish = Finish("stop_string", evidence)
        else:
            shown = self._up_to_tool_call(self._up_to_stop(self._detokenizer.push(token_id)))
        self.text += shown
        self.pushed += 1
        return shown

    def close(self) -> str:
        """Ends the text: returns what was held back and is no stop string. A second call returns nothing."""
        if self.closed:
            return ""
        shown = self._up_to_stop(self._detokenizer.flush()) + self._stops.flush()
        shown = self._up_to_tool_call(shown)
        self.text += shown
        self.closed = True
        return shown

    @property
    def held_bytes(self) -> bytes:
        """What the detokeniser holds back: bytes that are no whole character yet."""
        held: bytes = getattr(self._detokenizer, "held_bytes", b"")
        return held

    @property
    def stops(self) -> StopStrings:
        """The matching of stop texts: what it holds back, and what it has found."""
        return self._stops

    def _up_to_stop(self, text: str) -> str:
        shown = self._stops.push(text)
        if self._stops.found is not None and self.finish is None:
            self.finish = Finish("stop_string", {"stop_string": self._stops.found})
        return shown

    def _up_to_tool_call(self, shown: str) -> str:
        if self._markers is None:
            return shown
        if self.finish is not None and self.finish.reason == "tool_call":
            return ""
        opening, closing = self._markers
        text = self.text + shown
        opened = text.find(opening)
        closed = text.find(closing, opened + len(opening)) if opened >= 0 else -1
        if closed < 0:
            return shown
        self.finish = Finish("tool_call", {"call": text[opened + len(opening) : closed]})
        return text[len(self.text) : closed + len(closing)]


def _visible_stops(stops: Iterable[str], special: dict[str, int], stop_tokens: dict[int, str]) -> list[str]:
    """Stops that are looked for in text; one that is a control token is looked for among the ids as well.

    Errors: `BadInputError` for a stop that a hidden control token is part of, since it could never be found.
    """
    visible = []
    for stop in stops:
        if stop in special:
            stop_tokens[special[stop]] = stop
            visible.append(stop)  # a model may also spell it out in ordinary tokens
        elif hidden := next((token for token in special if token and token in stop), None):
            raise BadInputError(
                f"the stop text {stop!r:.60} contains the control token {hidden!r}, which the text does not show; "
                f"stop at its id {special[hidden]} instead (stop_ids)"
            )
        else:
            visible.append(stop)
    return visible
