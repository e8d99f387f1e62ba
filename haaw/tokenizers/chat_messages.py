"""What a list of messages must be before a template sees it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.libraries import one_line
from haaw.tokenizers.vocabulary import checked_text

MOST_MESSAGE_CHARS = 10_000_000
DEEPEST_NESTING = 50
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def checked_messages(messages: Any) -> None:
    """BadInputError unless `messages` is a list of mappings with a role and contents that can be rendered."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise BadInputError(f"Messages must be a list of role and content, not {type(messages).__name__}.")
    total = 0
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadInputError(f"Message {index} must be a mapping, not {type(message).__name__}.")
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise BadInputError(
                f"Message {index} has the role {one_line(repr(role), most_chars=60)}; a role is one word, "
                "such as 'system', 'user' or 'assistant'."
            )
        total += checked_value(message, f"Message {index}")
    if total > MOST_MESSAGE_CHARS:
        raise BadInputError(
            f"The messages have {total} characters together; allowed are {MOST_MESSAGE_CHARS}."
        )


def checked_value(value: Any, what: str, depth: int = DEEPEST_NESTING) -> int:
    """The number of characters in `value`; BadInputError for what no template can render."""
    if depth == 0:
        raise BadInputError(f"{what} is nested more than {DEEPEST_NESTING} levels deep.")
    if isinstance(value, str):
        return len(checked_text(value, what=what))
    if isinstance(value, Mapping):
        return sum(checked_value(inner, what, depth - 1) for inner in value.values())
    if isinstance(value, list | tuple):
        return sum(checked_value(inner, what, depth - 1) for inner in value)
    if value is None or isinstance(value, bool | int | float):
        return 0
    raise BadInputError(
        f"{what} holds a {type(value).__name__}; allowed are text, numbers, lists and mappings."
    )
