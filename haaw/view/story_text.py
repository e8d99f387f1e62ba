"""The text side of a story: the prompt and its roles, tokens, and what was handed over when."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from haaw.view.story import Facts

TokenBytes = Callable[[int], bytes | None]


class Token(TypedDict):
    """A token: its own bytes (hexadecimal), their text, and the characters of the prompt that became it."""

    id: int
    text: str
    bytes: str
    whole: bool
    start: int | None
    end: int | None


class Prompt(TypedDict):
    """The prompt as text; in a chat with its messages, and the rendered text cut by who wrote it."""

    form: str
    text: str
    messages: list[dict[str, str]]
    parts: list[dict[str, Any]]


class Delivery(TypedDict):
    """What one step handed over, and what it held back: bytes of an unfinished character, text of a stop string."""

    step: int
    token_id: int | None
    text: str
    shown_before: int
    held_bytes: str
    held_text: str
    at_ns: int


def token_list(facts: "Facts") -> list[Token]:
    """The tokens of the prompt."""
    tokenised = facts.first("tokenised") or {}
    columns = tokenised.get("columns", ())
    rows = [dict(zip(columns, row, strict=True)) for row in tokenised.get("tokens", ())]
    return [_token(row["id"], row["bytes"].encode("latin-1"), row["start"], row["end"]) for row in rows]


def answer_tokens(facts: "Facts") -> list[Token]:
    """The tokens of the answer."""
    deltas = [each for each in facts.all("delta") if each["token_id"] is not None]
    return [_token(each["token_id"], each["bytes"].encode("latin-1"), None, None) for each in deltas]


def token_texts(facts: "Facts", token_bytes: TokenBytes) -> Callable[[int], str]:
    """The text of any id: from the vocabulary where it is at hand, else for ids that occur in this request."""
    seen = {each["id"]: each["text"] for each in [*token_list(facts), *answer_tokens(facts)]}

    def text_of(token_id: int) -> str:
        if token_id in seen:
            return seen[token_id]
        own_bytes = token_bytes(token_id)
        return f"#{token_id}" if own_bytes is None else readable(own_bytes)[0]

    return text_of


def _token(token_id: int, own_bytes: bytes, start: int | None, end: int | None) -> Token:
    text, whole = readable(own_bytes)
    return {
        "id": token_id,
        "text": text,
        "bytes": own_bytes.hex(),
        "whole": whole,
        "start": start,
        "end": end,
    }


def readable(own_bytes: bytes) -> tuple[str, bool]:
    """The text of a token's bytes, and whether they are whole characters; parts of one are written as <E2 98>."""
    try:
        return own_bytes.decode("utf-8"), True
    except UnicodeDecodeError:
        return f"<{own_bytes.hex(' ').upper()}>", False


def prompt_of(facts: "Facts") -> Prompt:
    """The prompt's text and, in a chat, whose words are whose; `role` None is what the template wrote."""
    prepared = facts.first("prepared") or {}
    text, form = str(prepared.get("text") or ""), str(prepared.get("form", "raw"))
    if form != "chat":
        return {
            "form": form,
            "text": text,
            "messages": [],
            "parts": [{"text": text, "role": "prompt"}] if text else [],
        }
    parts: list[dict[str, Any]] = []
    at = 0
    for role, start, end in prepared.get("contents", ()):
        parts += [{"text": text[at:start], "role": None}, {"text": text[start:end], "role": role}]
        at = end
    parts = [part for part in [*parts, {"text": text[at:], "role": None}] if part["text"]]
    messages = [{"role": part["role"], "content": part["text"]} for part in parts if part["role"] is not None]
    return {"form": form, "text": text, "messages": messages, "parts": parts}


def deliveries(facts: "Facts") -> list[Delivery]:
    """One a delta, in order, with what was held back when it left."""
    found: list[Delivery] = []
    held: dict[str, Any] = {}
    shown = 0
    for row in facts.rows:
        if row["kind"] == "held":
            held = row["facts"]
        if row["kind"] != "delta":
            continue
        delta = row["facts"]
        last = found[-1]["step"] if found else 0
        found.append(
            {
                "step": row["step"] if row["stage"] == "decode" else 0 if row["stage"] == "prefill" else last,
                "token_id": delta["token_id"],
                "text": delta["text"],
                "shown_before": shown,
                "held_bytes": str(held.get("undecoded", "")).encode("latin-1").hex(),
                "held_text": str(held.get("withheld", "")),
                "at_ns": int(row["start_ns"]),
            }
        )
        shown += len(delta["text"])
    return found
