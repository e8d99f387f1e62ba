"""What the modules of this package share: the error of a failed fetch, the progress callback."""

from typing import Protocol

from haaw.errors import HaawError


class PullError(HaawError):
    """A model could not be fetched: network, index, disk, or a file that is not what it should be."""


class Progress(Protocol):
    """Called as work goes on: the phase in words, the bytes done in it, and its total if that is known."""

    def __call__(self, phase: str, done_bytes: int, total_bytes: int | None) -> None:
        """Take one report."""


def silent(phase: str, done_bytes: int, total_bytes: int | None) -> None:
    """Report nothing (the default progress callback)."""


def megabytes(size_bytes: int) -> str:
    """Write a size for a person: `98.4 MB`, in millions of bytes, whole bytes below 10,000."""
    return f"{size_bytes} bytes" if size_bytes < 10_000 else f"{size_bytes / 1e6:,.1f} MB"
