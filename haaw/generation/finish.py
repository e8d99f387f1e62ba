"""How a request ends: exactly one state, with the evidence for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Reason = Literal[
    "eos", "stop_token", "stop_string", "tool_call", "length", "context", "deadline", "cancelled", "failed"
]

COMPLETE: frozenset[str] = frozenset({"eos", "stop_token", "stop_string", "tool_call"})
"""The ends that the model or its user meant; after any other the text is partial."""


@dataclass(frozen=True)
class Finish:
    """The end state of a request.

    `evidence` says why: `token_id`, `stop_string`, `max_tokens`, `context_length_tokens`, `cache_positions`
    (the cache has no room for more), `deadline_s`, `by` and `phase` (who cancelled, and when), or `error`.
    """

    reason: Reason
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the answer is whole."""
        return self.reason in COMPLETE

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"reason": self.reason, "evidence": dict(self.evidence), "complete": self.complete}
