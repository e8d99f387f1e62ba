"""What a request hands out: deltas while it runs, and the answer when it has ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haaw.generation.finish import Finish


@dataclass(frozen=True)
class TokenLogProbability:
    """How likely a chosen token was, before the sampling plan, and what else was likely.

    Natural logarithms. `token_bytes` are the vocabulary's own bytes. `top` holds the most likely tokens, the
    likeliest first, each without a `top` of its own.
    """

    token_id: int
    token_bytes: bytes
    log_probability: float
    top: tuple["TokenLogProbability", ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: a token without any probability has the log-probability None."""
        return {
            "token_id": self.token_id,
            "bytes": list(self.token_bytes),
            "log_probability": self.log_probability if math.isfinite(self.log_probability) else None,
        } | ({"top": [each.to_dict() for each in self.top]} if self.top else {})


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
    log_probabilities: tuple[TokenLogProbability, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Usage:
    """Tokens, counted once: ids of the prompt and ids delivered.

    `reused_tokens` are those of the prompt that were not computed, since a cache had their rows.
    """

    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int = 0

    def to_dict(self) -> dict[str, int]:
        """For JSON; `reused_tokens` where there are any."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        } | ({"reused_tokens": self.reused_tokens} if self.reused_tokens else {})


@dataclass(frozen=True)
class Answer:
    """A finished request. Partial when `finish.complete` is false.

    `seed` is the one that was used, also when the system chose it; None where nothing was drawn.
    `log_probabilities` stand one a token, where they were asked for; `token_bytes` are the vocabulary's own.
    `reused_tokens` of the prompt were not computed, since the cache had their rows. `cache_peak_bytes` is the most that
    the cache had allocated at the end of a step; 0 in the mode without a cache.
    """

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish: Finish
    timing_s: Mapping[str, float]
    first_token_s: float | None
    seed: int | None = None
    log_probabilities: tuple[TokenLogProbability, ...] = ()
    token_bytes: tuple[bytes, ...] = ()
    reused_tokens: int = 0
    cache_peak_bytes: int = 0

    @property
    def usage(self) -> Usage:
        """Token counts."""
        return Usage(len(self.prompt_ids), len(self.token_ids), self.reused_tokens)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `timing` is in seconds."""
        fields: dict[str, Any] = {
            "text": self.text,
            "prompt_ids": list(self.prompt_ids),
            "token_ids": list(self.token_ids),
            "finish": self.finish.to_dict(),
            "timing": dict(self.timing_s) | {"first_token": self.first_token_s},
            "usage": self.usage.to_dict(),
        }
        if self.seed is not None:
            fields["seed"] = self.seed
        if self.log_probabilities:
            fields["log_probabilities"] = [each.to_dict() for each in self.log_probabilities]
        return fields

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        tokens = len(self.token_ids)
        return f"<Answer {self.text[:60]!r}, {tokens} tokens, {self.finish.reason}, {self.timing_s['total']:.2f} s>"

    def _repr_html_(self) -> str:
        from haaw.generation.display import answer_html

        return answer_html(self)
