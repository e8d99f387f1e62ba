"""What a request hands out: deltas while it runs, and the answer when it has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haaw.generation.finish import Finish


@dataclass(frozen=True)
class Delta:
    """What one step adds. Text may be empty: a fragment is not a token, and a token is not a word.

    `token_bytes` are the vocabulary's own bytes of the ids; `computed_s` and `handed_over_s` are seconds since
    the request was received.
    """

    text: str
    token_ids: tuple[int, ...]
    token_bytes: bytes
    computed_s: float
    handed_over_s: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Usage:
    """Tokens, counted once: ids of the prompt and ids delivered."""

    prompt_tokens: int
    completion_tokens: int

    def to_dict(self) -> dict[str, int]:
        """For JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True)
class Answer:
    """A finished request. Partial when `finish.complete` is false."""

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish: Finish
    timing_s: Mapping[str, float]
    first_token_s: float | None

    @property
    def usage(self) -> Usage:
        """Token counts."""
        return Usage(len(self.prompt_ids), len(self.token_ids))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `timing` is in seconds."""
        return {
            "text": self.text,
            "prompt_ids": list(self.prompt_ids),
            "token_ids": list(self.token_ids),
            "finish": self.finish.to_dict(),
            "timing": dict(self.timing_s) | {"first_token": self.first_token_s},
            "usage": self.usage.to_dict(),
        }

    def __str__(self) -> str:
        return self.text
