"""What a request may ask for. Checked when it is made, before any work is done."""

from dataclasses import dataclass, fields
from typing import Any

from haaw.errors import BadInputError
from haaw.models.protocol import Heads


@dataclass(frozen=True)
class Settings:
    """Limits and form of one request.

    `max_tokens`: at most so many new ids; 0 evaluates the prompt and chooses nothing. `prefill_chunk_tokens`:
    prompt ids taken in one step. `heads`: attention for all heads together, or one by one.
    """

    max_tokens: int = 256
    prefill_chunk_tokens: int = 256
    heads: Heads = "together"

    def __post_init__(self) -> None:
        _whole_number("max_tokens", self.max_tokens, least=0)
        _whole_number("prefill_chunk_tokens", self.prefill_chunk_tokens, least=1)
        if self.heads not in ("together", "separate"):
            raise BadInputError(f'heads is {self.heads!r}; it must be "together" or "separate"')


def _whole_number(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(f"{name} is {value!r}; it must be a whole number from {least} on")


def make_settings(**options: Any) -> Settings:
    """Settings from keyword arguments.

    Errors: `BadInputError` for an unknown name or an impossible value.
    """
    known = [field.name for field in fields(Settings)]
    for name in options:
        if name not in known:
            raise BadInputError(f'unknown setting "{name}"; known: {", ".join(known)}')
    return Settings(**options)
