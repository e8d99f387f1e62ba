"""The one error of this package. A leaf: it knows no format."""


class FormatError(ValueError):
    """A file is not what it should be, or holds something that is not supported.

    The message is for the person who sees it: the file, what is wrong with which value, what to do.
    """
