"""The errors that HAAW raises on purpose. A leaf: every package may import it."""


class HaawError(Exception):
    """Base of every error that HAAW raises on purpose.

    The message is for the person who sees it, in one sentence or two: what was wrong, the value,
    what is allowed, what to do. The command line prints it without a traceback and exits with 2.
    """


class BadInputError(HaawError, ValueError):
    """An argument, option, prompt or file is not usable as it stands."""


class MissingLibraryError(HaawError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""
