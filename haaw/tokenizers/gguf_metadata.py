"""Reading single values of a model file's metadata, each checked for its type and range.

Knows nothing of what they mean. A NumPy array or scalar is read as Python values.
"""

import operator
from collections.abc import Mapping
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.libraries import one_line

MOST_TOKENS = 4_000_000


def metadata_array(metadata: Mapping[str, Any], key: str, *, required: str) -> list[Any]:
    """A metadata array as a list of Python values; empty if it is absent and not required."""
    value = metadata.get(key)
    if value is None:
        if required == "yes":
            raise BadInputError(f"The model file has no {key}, so it holds no tokenizer that can be used.")
        return []
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise BadInputError(f"{key} must be an array, not {type(value).__name__}.")
    if len(value) > MOST_TOKENS:
        raise BadInputError(f"{key} has {len(value)} entries; allowed are at most {MOST_TOKENS}.")
    return list(value.tolist()) if hasattr(value, "tolist") else list(value)


def metadata_id(metadata: Mapping[str, Any], key: str, vocabulary_size: int) -> int | None:
    """A token id named by the metadata, checked against the vocabulary, or None."""
    value = metadata.get(key)
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        raise BadInputError(
            f"{key} must be a token id, not {one_line(repr(value), most_chars=80)}."
        ) from None
    if not 0 <= number < vocabulary_size:
        raise BadInputError(f"{key} is {number}, outside the vocabulary of {vocabulary_size} tokens.")
    return number


def metadata_flag(metadata: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A true-or-false value of the metadata, or the default where the file is silent."""
    value = metadata.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or type(value).__name__ == "bool_" or type(value).__name__ == "bool":
        return bool(value)
    raise BadInputError(f"{key} must be true or false, not {one_line(repr(value), most_chars=80)}.")


def metadata_text(metadata: Mapping[str, Any], key: str) -> str | None:
    """A string of the metadata, or None where the file has none."""
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise BadInputError(f"{key} must be a string, not {type(value).__name__}.")
