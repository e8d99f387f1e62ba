"""Text in pictures. Tokens are strangers' text: nothing in them is markup, and every character can be seen."""

from functools import lru_cache
from typing import Any

from haaw.tracing.display import token_text

PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}
"""For every text that is drawn: a dollar sign is a dollar sign."""

MOST_CHARACTERS = 18


def drawable(text: str, most: int | None = None) -> str:
    """Text with every character spelled out that the fonts do not have or that would not be seen; cut if long."""
    families = _families()
    shown = "".join(each if _is_seen(each, families) else _spelled(each) for each in text[:most])
    if most is None or (len(shown) <= most and len(text) <= most):
        return shown
    return f"{shown[: most - 1]}…"


def clipped(label: str, most: int = MOST_CHARACTERS) -> str:
    """A token's label, drawable, and short enough for an axis."""
    shown = drawable(label, most)
    is_open = shown.endswith("…") and label[:1] in ("'", '"') and label[-1:] == label[:1]
    return shown + label[0] if is_open else shown


def token_label(token_bytes: bytes | None, token_id: int) -> str:
    """The token as a short quoted text; its id where nobody knows its bytes."""
    return clipped(token_text(token_bytes)) if token_bytes is not None else f"token {token_id}"


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _families() -> tuple[str, ...]:
    from matplotlib import rcParams

    return tuple(rcParams["font.family"])


@lru_cache(maxsize=4096)
def _is_seen(character: str, families: tuple[str, ...]) -> bool:
    if character.isascii():
        return character.isprintable()
    return character.isprintable() and any(font.get_char_index(ord(character)) for font in _fonts(families))


@lru_cache(maxsize=4)
def _fonts(families: tuple[str, ...]) -> list[Any]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return [get_font(findfont(FontProperties(family=[family]))) for family in families]
