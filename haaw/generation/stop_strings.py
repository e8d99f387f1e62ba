"""Stop strings: found in the text whatever the tokens, never emitted, and no more held back than must be."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string.

    Holds back the longest end of the text that a stop string could still begin with; nothing else. The result
    does not depend on how the text was cut into pieces: the match that ends first counts, and of those that
    end together the one that begins first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self.held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Text that is certain not to belong to a stop string; `found` is set once there is one."""
        if self.found is not None or not self._stops:
            return "" if self.found is not None else text
        text = self.held + text
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            _, start, self.found = min(matches)
            self.held = ""
            return text[:start]
        keep = self._undecided(text)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that was held back, when no more comes and it is no stop string after all."""
        held, self.held = self.held, ""
        return held

    def partial(self) -> list[tuple[str, int]]:
        """The stop strings that the held text could be the beginning of, each with the characters it has so far."""
        return [
            (stop, max(lengths))
            for stop in self._stops
            if (lengths := [n for n in range(1, len(stop)) if self.held.endswith(stop[:n])])
        ]

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next(
            (
                n
                for n in range(longest, 0, -1)
                if any(stop.startswith(text[len(text) - n :]) for stop in self._stops)
            ),
            0,
        )
