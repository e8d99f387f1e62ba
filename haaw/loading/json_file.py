"""Small files from strangers: read up to a limit, and JSON without anything ambiguous in it."""

import json
from pathlib import Path
from typing import Any

from haaw.errors import BadInputError

LARGEST_JSON_BYTES = 64 * 2**20
LARGEST_TOKENIZER_BYTES = 512 * 2**20


def read_bytes(path: Path, *, most_bytes: int) -> bytes | None:
    """A file's content; None where there is no such file.

    Errors: `BadInputError` where it is no regular file, too large, or cannot be read.
    """
    try:
        if not path.exists():
            return None
        if not path.is_file():  # a pipe or a device could block for ever
            raise BadInputError(f"{path.name} is not a regular file")
        if (size := path.stat().st_size) > most_bytes:
            raise BadInputError(f"{path.name} has {size} bytes; at most {most_bytes} are accepted")
        return path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path.name} cannot be read: {error.strerror or error}") from error


def read_text(path: Path, *, most_bytes: int) -> str | None:
    """A file's content as UTF-8; None where there is no such file."""
    data = read_bytes(path, most_bytes=most_bytes)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path.name} is not UTF-8 text (byte {error.start}); fetch it again") from None


def read_json_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is no such file.

    Errors: `BadInputError` for anything else: another value, a name that occurs twice, NaN or Infinity, deep
    nesting, text that is not UTF-8.
    """
    text = read_text(path, most_bytes=LARGEST_JSON_BYTES)
    if text is None:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_unambiguous, parse_constant=_refuse_constant)
    except RecursionError:
        raise BadInputError(f"{path.name} is not usable: it is nested too deeply") from None
    except ValueError as error:
        raise BadInputError(f"{path.name} is not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInputError(f"{path.name} must hold one JSON object, not a {type(value).__name__}")
    return value


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the name {key!r:.80} occurs twice")
        table[key] = value
    return table


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
