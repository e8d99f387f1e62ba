"""Options that several commands share, and how they become settings."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from haaw.caches.kinds import KINDS, NO_CACHE
from haaw.errors import BadInputError

Model = Annotated[str, typer.Option(help="A model's name (see `haaw models list`), a file or a folder.")]
MaxTokens = Annotated[int, typer.Option(help="At most so many new tokens.")]
System = Annotated[str | None, typer.Option(help="A system prompt (chat only).")]
Heads = Annotated[str, typer.Option(help="Attention heads: together or separate.")]
Cache = Annotated[
    str,
    typer.Option(
        help=f"The kind of KV cache: {', '.join(KINDS)}, or {NO_CACHE} to compute everything anew for each token."
    ),
]
CacheOption = Annotated[
    list[str], typer.Option(help="NAME=VALUE for the cache, such as window=64 for sliding. Repeatable.")
]
PrefillChunk = Annotated[int, typer.Option(help="Prompt tokens taken in one step.")]
Temperature = Annotated[
    float, typer.Option(help="0 takes the most likely token; 1 is the model's own distribution.")
]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set whose probabilities reach p; 1 is off.")]
MinP = Annotated[
    float, typer.Option(help="Keep tokens of at least this times the greatest probability; 0 is off.")
]
Seed = Annotated[
    int | None, typer.Option(help="Makes the draw repeatable; without it the system chooses one.")
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1, what was seen becomes less likely; 1 is off.")
]
PresencePenalty = Annotated[float, typer.Option(help="Subtracted from tokens of the answer; 0 is off.")]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Subtracted for each occurrence in the answer; 0 is off.")
]
Bias = Annotated[list[str], typer.Option(help="ID=VALUE added to a token's score; -inf bans it. Repeatable.")]
Stop = Annotated[list[str], typer.Option(help="End at this text, which is not shown. Repeatable.")]
StopId = Annotated[list[int], typer.Option(help="End at this token id. Repeatable.")]
Deadline = Annotated[
    float | None, typer.Option(help="End after so many seconds; looked at between two steps.")
]
Threads = Annotated[
    int | None, typer.Option(help="Threads to use; 1 is best on a machine that is busy with other things.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")]


def bias_from(options: Sequence[str]) -> dict[int, float]:
    """Token ids and what to add to their scores, from `ID=VALUE`.

    Errors: `BadInputError` for anything else.
    """
    bias: dict[int, float] = {}
    for option in options:
        token_id, _, value = option.partition("=")
        try:
            biased, amount = int(token_id), float(value)
        except ValueError:
            raise BadInputError(
                f"--bias is {option!r:.60}; write ID=VALUE, such as 42=-5 or 42=-inf"
            ) from None
        if math.isnan(amount):
            raise BadInputError(f"--bias is {option!r:.60}; NaN is no bias")
        if biased in bias:
            raise BadInputError(f"--bias {option:.60} names the id {biased} a second time; give it one value")
        bias[biased] = amount
    return bias


def cache_options_from(options: Sequence[str]) -> dict[str, Any]:
    """Names and values of a cache's options, from `NAME=VALUE`; the kind itself judges them.

    Errors: `BadInputError` for anything else, or a name given twice.
    """
    values: dict[str, Any] = {}
    for option in options:
        name, separator, value = option.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not separator:
            raise BadInputError(f"--cache-option is {option!r:.60}; write NAME=VALUE, such as window=64")
        if name in values:
            raise BadInputError(f"--cache-option {option:.60} names {name} a second time; give it one value")
        values[name] = _value(value.strip())
    return values


def _value(text: str) -> Any:
    """A whole number, a number, true, false or none where the text reads so, else the text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def without_effect(settings: Any) -> str | None:
    """A remark on options that change nothing because the plan is greedy, or None."""
    plan = settings.sampling
    named = {
        "--top-k": plan.top_k > 0,
        "--top-p": plan.top_p < 1,
        "--min-p": plan.min_p > 0,
        "--seed": plan.seed is not None,
    }
    idle = [option for option, given in named.items() if given]
    if not plan.is_greedy or not idle:
        return None
    change = "change" if len(idle) > 1 else "changes"
    return f"{', '.join(idle)} {change} nothing at temperature 0; add --temperature 1 to draw"
