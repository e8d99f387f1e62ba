"""How this package reaches the libraries it builds on, and what it makes of their errors.

Knows nothing about tokens. Each library is imported at its first use, so that importing the package costs
nothing and the embedded model needs SentencePiece only.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from haaw.errors import BadInputError, MissingLibraryError


def need(module: str, *, purpose: str) -> Any:
    """Import `module`, or say in one sentence how to install it.

    Raises MissingLibraryError that names the library, what it is for and the command that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise MissingLibraryError(
            f"{purpose} needs the library {library}, which is not installed; install it with: "
            f"pip install {library}"
        ) from error


@contextmanager
def library_errors_as_bad_input(what: str) -> Iterator[None]:
    """Turn whatever a library raises inside the block into one BadInputError that begins with `what`.

    A Rust panic arrives as a BaseException of its own and is turned too.
    """
    try:
        yield
    except (BadInputError, MissingLibraryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadInputError(f"{what}: {one_line(str(error)) or type(error).__name__}") from error


def one_line(text: str, *, most_chars: int = 300) -> str:
    """`text` on one line and cut, so that a hostile file cannot flood a message."""
    shown = " ".join(text[: 4 * most_chars].split())
    return shown if len(shown) <= most_chars else shown[: most_chars - 1] + "…"
