"""Where an operation was called: a module of HAAW, or another file's bare name, and the place of the call."""

from itertools import islice
from types import CodeType

PACKAGE = "haaw"

SiteEntry = tuple[str, int, int, int, int]
"""File, first line, first column, last line, last column."""


def site_entry(code: CodeType, instruction: int) -> SiteEntry:
    """The place of the call at a byte offset of some code."""
    line, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None))
    return file_of(code), line or 0, column or 0, end_line or 0, end_column or 0


def file_of(code: CodeType) -> str:
    """`haaw/models/llama.py` for a module of HAAW; the bare name of any other file, for a path tells of its owner."""
    parts = code.co_filename.replace("\\", "/").split("/")
    if PACKAGE in parts:
        last = len(parts) - 1 - parts[::-1].index(PACKAGE)
        return "/".join(parts[last:])
    return parts[-1]
