"""What a request may ask for. Checked when it is made, before any work is done."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from haaw.caches.kinds import check_options
from haaw.caches.protocol import CacheError
from haaw.errors import BadInputError
from haaw.generation.sampling import MOST_LOG_PROBABILITIES, SamplingPlan
from haaw.models.protocol import Heads

MOST_STOPS = 64
LONGEST_STOP_CHARACTERS = 1_000


@dataclass(frozen=True)
class Settings:
    """Limits and form of one request.

    `max_tokens`: at most so many new ids; 0 evaluates the prompt and chooses nothing. `stop`: texts that end the
    answer and are not part of it. `stop_ids`: ids that do the same. `tool_call_markers`: the texts that
    open and close a tool call; the answer ends behind the first closed one. `deadline_s`: seconds from the
    request's start. `logprobs`: log-probability of each chosen token and of the so many most likely ones,
    before the sampling plan. `prefill_chunk_tokens`: prompt ids taken in one step. `heads`: attention for all
    heads together, or one by one. `cache`: the kind of KV cache, see `haaw.caches.kinds`, with its
    `cache_options`; "none" takes all ids through the model for every token.
    """

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    tool_call_markers: tuple[str, str] | None = None
    deadline_s: float | None = None
    logprobs: int | None = None
    prefill_chunk_tokens: int = 512
    heads: Heads = "together"
    cache: str = "dynamic"
    cache_options: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingPlan = field(default_factory=SamplingPlan)

    def __post_init__(self) -> None:
        _whole_number("max_tokens", self.max_tokens, least=0)
        _whole_number("prefill_chunk_tokens", self.prefill_chunk_tokens, least=1)
        if self.heads not in ("together", "separate"):
            raise BadInputError(f'heads is {self.heads!r}; it must be "together" or "separate"')
        if not isinstance(self.cache_options, Mapping):
            raise BadInputError(
                f"cache_options is {self.cache_options!r:.60}; it must be names and values, such as {{'window': 64}}"
            )
        try:
            check_options(self.cache, self.cache_options)
        except CacheError as error:
            raise BadInputError(str(error)) from error
        _check_texts("stop", self.stop)
        if self.tool_call_markers is not None:
            _check_texts("tool_call_markers", self.tool_call_markers)
            if len(self.tool_call_markers) != 2:
                raise BadInputError(
                    f"tool_call_markers is {self.tool_call_markers!r:.60}; it must be two texts: what opens "
                    "and what closes a tool call"
                )
        for stop_id in self.stop_ids:
            _whole_number("one of stop_ids", stop_id, least=0)
        if self.deadline_s is not None and not _positive(self.deadline_s):
            raise BadInputError(
                f"deadline_s is {self.deadline_s!r:.60}; it must be a number of seconds above 0"
            )
        if self.logprobs is not None:
            _whole_number("logprobs", self.logprobs, least=0)
            if self.logprobs > MOST_LOG_PROBABILITIES:
                raise BadInputError(
                    f"logprobs is {self.logprobs}; at most {MOST_LOG_PROBABILITIES} are given"
                )

    def check_vocabulary(self, vocabulary_size: int) -> None:
        """Checks what depends on the model.

        Errors: `BadInputError` for ids outside the vocabulary.
        """
        for stop_id in self.stop_ids:
            if stop_id >= vocabulary_size:
                raise BadInputError(
                    f"stop_ids names the id {stop_id}; this model's ids go from 0 to {vocabulary_size - 1}"
                )
        self.sampling.check_vocabulary(vocabulary_size)


def make_settings(**options: Any) -> Settings:
    """Settings from keyword arguments; those of the sampling plan stand beside the others.

    Errors: `BadInputError` for an unknown name or an impossible value.
    """
    own = [each.name for each in fields(Settings) if each.name != "sampling"]
    plan = [each.name for each in fields(SamplingPlan)]
    for name in options:
        if name not in own and name not in plan:
            raise BadInputError(f'unknown setting "{name}"; known: {", ".join([*own, *plan])}')
    if "stop" in options:
        options["stop"] = _several("stop", options["stop"], one=str, what="a text or a list of texts")
    if "stop_ids" in options:
        ids = _several("stop_ids", options["stop_ids"], one=int, what="a token id or a list of them")
        for stop_id in ids:
            _whole_number("one of stop_ids", stop_id, least=0)
        options["stop_ids"] = frozenset(ids)
    if (markers := options.get("tool_call_markers")) is not None:
        what = "two texts: what opens and what closes a tool call"
        options["tool_call_markers"] = _several("tool_call_markers", markers, one=type(None), what=what)
    sampling = SamplingPlan(**{name: value for name, value in options.items() if name in plan})
    return Settings(sampling=sampling, **{name: value for name, value in options.items() if name in own})


def _several(name: str, value: Any, *, one: type, what: str) -> tuple[Any, ...]:
    """A setting that holds several values, or one on its own, as a tuple."""
    if value is None:
        return ()
    if isinstance(value, one):
        return (value,)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise BadInputError(f"{name} is {value!r:.60}; it must be {what}")
    return tuple(value)


def _check_texts(name: str, texts: Sequence[object]) -> None:
    if len(texts) > MOST_STOPS:
        raise BadInputError(f"{name} has {len(texts)} texts; at most {MOST_STOPS} are looked for")
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_STOP_CHARACTERS:
            raise BadInputError(
                f"{name} has {text!r:.60}; it must be a text of 1 to {LONGEST_STOP_CHARACTERS:,} characters"
            )


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _whole_number(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(f"{name} is {value!r:.60}; it must be a whole number from {least} on")
