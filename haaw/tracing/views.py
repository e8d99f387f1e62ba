"""What a person asks an open trace for: values, tables, trees, where things come from, and what a step did.

Each question has a file of its own, which is imported when the question is first asked.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from haaw.tracing.attention_view import AttentionPattern
    from haaw.tracing.cache_view import CacheContents
    from haaw.tracing.choice_view import Choice
    from haaw.tracing.event import Event
    from haaw.tracing.event_table import EventTable
    from haaw.tracing.phase_costs import Phases
    from haaw.tracing.provenance import Links, Which
    from haaw.tracing.reading import Reading
    from haaw.tracing.steps import StepLike
    from haaw.tracing.text_view import Tokens
    from haaw.tracing.trace import Trace
    from haaw.tracing.tree import Node
    from haaw.tracing.values import Value
    from haaw.tracing.verifying import Finding


class Views:
    """The readers' side of `Trace`. `token_bytes` gives the bytes of a token id, where a tokenizer is at hand."""

    token_bytes: Callable[[int], bytes | None] | None = None

    @property
    def _trace(self) -> "Trace":
        return cast("Trace", self)

    @cached_property
    def reading(self) -> "Reading":
        """What reading remembers from one question to the next."""
        from haaw.tracing.reading import Reading

        return Reading(self._trace)

    @property
    def events(self) -> "EventTable":
        """All events as a structured array, with `.to_pandas()`; -1 where a number does not apply."""
        return self.reading.table

    def to_pandas(self) -> Any:
        """All events as a pandas DataFrame (extra `export`)."""
        return self.events.to_pandas()

    def value(
        self, path: "str | int | Event | Value", head: int | None = None, *, request: int | None = None
    ) -> "Value":
        """A value by its path, `trace.value("decode 5/layer 3/attention.weights", head=2)`, or the first of an event.

        From the file where it was kept, else computed again, and held against its hash either way. Errors:
        `BadInputError` for a path that is unknown or may be several, `ValueNotKeptError` where it cannot be had.
        """
        from haaw.tracing.values import fetch

        return fetch(self._trace, path, head=head, request=request)

    def tree(self) -> "Node":
        """Everything that ran by stage, step, layer, head and part, with counts and times."""
        from haaw.tracing.tree import tree

        return tree(self._trace)

    def phases(self, *, request: int | None = None) -> "Phases":
        """Time, operations and bytes of each phase of a request; of all requests together without one."""
        from haaw.tracing.phase_costs import phases

        return phases(self._trace, request=request)

    def producers(self, which: "Which", *, request: int | None = None) -> "Links":
        """The events and weights that the inputs of a value's event come from."""
        from haaw.tracing.provenance import producers

        return producers(self._trace, which, request=request)

    def users(self, which: "Which", *, request: int | None = None) -> "Links":
        """The events that read a value, or everything that an event made."""
        from haaw.tracing.provenance import users

        return users(self._trace, which, request=request)

    def attention(
        self,
        step: "StepLike",
        layer: int,
        head: int | None = None,
        *,
        request: int | None = None,
        sequence: int | None = None,
    ) -> "AttentionPattern":
        """Attention weights of a layer in a step ("decode 5", or a decode step's number), with tokens as labels."""
        from haaw.tracing.attention_view import attention

        return attention(self._trace, step, layer, head, request=request, sequence=sequence)

    def cache(
        self, step: "StepLike", layer: int, *, request: int | None = None, sequence: int | None = None
    ) -> "CacheContents":
        """Keys and values of a layer at the end of a step, and the bytes that they lie in."""
        from haaw.tracing.cache_view import cache_contents

        return cache_contents(self._trace, step, layer, request=request, sequence=sequence)

    def logits(self, step: "StepLike", *, request: int | None = None) -> "Value":
        """The scores of every next token in a step (B, V)."""
        from haaw.tracing.steps import find_step
        from haaw.tracing.values import fetch

        found = find_step(self._trace, step, request=request)
        return fetch(self._trace, f"{found.name}/output.logits", request=found.request)

    def candidates(self, step: "StepLike", *, request: int | None = None) -> "Choice":
        """How a step chose its token: every filter with its survivors, the draw, the runners-up."""
        from haaw.tracing.choice_view import choice

        return choice(self._trace, step, request=request)

    def text(self, step: "StepLike | None" = None, *, request: int | None = None) -> str:
        """The answer as it stood on the screen after a step; as it ended, without one."""
        from haaw.tracing.text_view import text_at

        return text_at(self._trace, step, request=request)

    def tokens(self, *, request: int | None = None) -> "Tokens":
        """The tokens of prompt and answer: ids, bytes, characters."""
        from haaw.tracing.text_view import tokens

        return tokens(self._trace, request=request)

    def verify(self) -> "list[Finding]":
        """Looks at every byte of the file, every event and the hash of every value that is kept; what is wrong."""
        from haaw.tracing.verifying import verify

        return list(verify(self._trace))

    def _repr_html_(self) -> str:
        from haaw.tracing.trace_display import html

        return html(self._trace)
