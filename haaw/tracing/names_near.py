"""What a person may have meant by a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: object, known: Iterable[str]) -> str:
    """`; did you mean "…"?` for the known name that is most alike, else nothing."""
    found = get_close_matches(str(name)[:60], list(known), n=1, cutoff=0.6)
    return f'; did you mean "{found[0]}"?' if found else ""
