"""What readers follow in the facts of a trace must be there and of the right kind; all else may be anything."""

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and all(character < "\u0100" for character in value)


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_token(value: Any) -> bool:
    """Id, bytes, and where its characters begin and end in the prompt."""
    checks = (_is_whole, _is_bytes, _or_none(_is_whole), _or_none(_is_whole))
    return (
        isinstance(value, list)
        and len(value) >= len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=False))
    )


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


CHECKS: dict[str, dict[str, Check]] = {
    "prepared": {"text": _or_none(_is_text)},
    "tokenised": {"tokens": _list_of(_is_token)},
    "settings": {"asked": _is_object},
    "delta": {"text": _is_text, "token_id": _or_none(_is_whole), "bytes": _is_bytes},
    "text_anew": {"text": _is_text, "token_ids": _list_of(_is_whole)},
    "degraded": {"now": _is_text, "budget_bytes": _is_number},
    "phases": {"spent_s": _are_numbers},
    "journey": {"start_ns": _or_none(_is_number), "took_ns": _or_none(_is_number)},
}
"""By the kind of a fact: its fields that readers follow."""


def wrong_field(kind: str, facts: Mapping[str, Any]) -> str | None:
    """The first field that a fact lacks, or that holds something else; None if all is well."""
    for field, check in CHECKS.get(kind, {}).items():
        if field not in facts or not check(facts[field]):
            return field
    return None
