"""A Hugging Face `tokenizer.json`, its declared pipeline applied as it is.

The `tokenizers` library encodes (normaliser, pre-tokenizer, model, added tokens); decoding runs the declared
decoder steps on each token's bytes (`json_decoders`), so that a stream and the whole text obey one rule.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.base import with_bos
from haaw.tokenizers.detokenizer import BytesDetokenizer, PieceStream, decode_all
from haaw.tokenizers.json_decoders import Fragment, Step, decoder_steps
from haaw.tokenizers.libraries import library_errors_as_bad_input, need, one_line
from haaw.tokenizers.protocol import Begins, Shown, Special, TextPart, TokenSpan
from haaw.tokenizers.special_split import SpecialSplitter, join_parts
from haaw.tokenizers.vocabulary import check_id, checked_text, end_ids

MOST_JSON_CHARS = 512 * 2**20


class JsonTokenizer:
    """A tokenizer.json with the roles that its companion files name. See `protocol.Tokenizer`.

    `config` is the content of tokenizer_config.json, `end_configs` are contents of config.json and
    generation_config.json: the ids that end an answer are the union of what all of them name.
    """

    def __init__(
        self,
        text: str,
        *,
        config: Mapping[str, Any] | None = None,
        end_configs: Sequence[Mapping[str, Any] | None] = (),
    ) -> None:
        self._declared = _read(text)
        self._library = _load(text, purpose="plain")
        self._added = _added_tokens(self._declared)
        self._control = self._added_ids("special")
        self._user_defined = self._added_ids("user-defined")
        self._hidden = frozenset(self._control.values())
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise BadInputError("tokenizer.json holds an empty vocabulary.")
        self._size: int = max(vocabulary.values()) + 1
        decoder_steps(self._declared.get("decoder"), "text")
        self._roles(config or {}, end_configs)
        self._text_library = lru_cache(maxsize=4)(self._make_text_library)
        self._splitter_for = lru_cache(maxsize=4)(self._make_splitter)
        self.token_bytes = lru_cache(maxsize=65_536)(self._token_bytes)

    def _roles(self, config: Mapping[str, Any], end_configs: Sequence[Mapping[str, Any] | None]) -> None:
        self._bos_id: int | None = self._named(config, "bos_token")
        eos_id = self._named(config, "eos_token")
        own = [] if eos_id is None else [eos_id]
        self._eos_ids = end_ids(self._size, own, *end_configs)
        with library_errors_as_bad_input("tokenizer.json cannot encode"):
            begins = self._library.encode("", add_special_tokens=True).ids
        if self._bos_id is None and begins and begins[0] not in self._eos_ids:
            self._bos_id = begins[0]
        asked = config.get("add_bos_token")
        writes_bos = begins[:1] == [self._bos_id] if begins else False
        self._add_bos = self._bos_id is not None and (asked if isinstance(asked, bool) else writes_bos)

    def _added_ids(self, kind: str) -> dict[str, int]:
        wanted = [t["content"] for t in self._added if bool(t.get("special")) == (kind == "special")]
        ids = {content: self._library.token_to_id(content) for content in wanted}
        return {content: int(token_id) for content, token_id in ids.items() if token_id is not None}

    def _named(self, config: Mapping[str, Any], role: str) -> int | None:
        """The id of a token that the config names by its text, as a string or as {"content": …}."""
        named = config.get(role)
        token = named.get("content") if isinstance(named, Mapping) else named
        if token is None:
            return None
        token_id: int | None = self._library.token_to_id(token) if isinstance(token, str) else None
        if token_id is None:
            shown = one_line(repr(token), most_chars=60)
            raise BadInputError(
                f"tokenizer_config.json names {shown} as {role}, which is not in the vocabulary."
            )
        return token_id

    @property
    def vocabulary_size(self) -> int:
        """How many ids there are."""
        return self._size

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text."""
        return self._bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        return self._eos_ids

    @property
    def add_bos(self) -> bool:
        """Whether a raw prompt begins with BOS, by tokenizer_config.json or else by the post-processor."""
        return self._add_bos

    def special_tokens(self) -> dict[str, int]:
        """Added tokens that are marked as special, by text."""
        return dict(self._control)

    def user_defined_tokens(self) -> dict[str, int]:
        """Added tokens that are not marked as special, by text."""
        return dict(self._user_defined)

    def encode(self, text: str, *, special: Special = "text") -> list[int]:
        """The ids of `text`, without BOS."""
        return self.encode_parts([TextPart(text, special)])

    def encode_prompt(self, text: str, *, special: Special = "text") -> list[int]:
        """The ids of a raw prompt, BOS first where the files ask for it."""
        return with_bos(self.encode(text, special=special), self, special)

    def encode_spans(self, text: str, *, special: Special = "text") -> list[TokenSpan]:
        """As `encode`, with the characters that became each token."""
        return self.encode_parts_spans([TextPart(text, special)])

    def encode_parts(self, parts: Sequence[TextPart], *, markers: frozenset[str] = frozenset()) -> list[int]:
        """The ids of the parts joined; control tokens only from parts that may hold them."""
        return [span.id for span in self.encode_parts_spans(parts, markers=markers)]

    def encode_parts_spans(
        self, parts: Sequence[TextPart], *, markers: frozenset[str] = frozenset()
    ) -> list[TokenSpan]:
        """As `encode_parts`, with spans in the joined text.

        Where nothing is forged the library sees the whole text. Otherwise it sees the stretches between
        control tokens, each behind an anchor token, so that the rules for "after a special token" hold.
        """
        text, markup = join_parts(parts)
        checked_text(text)
        if b"\1" not in markup:
            return self._spans(self._text_library(frozenset())[0], text)
        splitter = self._splitter_for(markers)
        if splitter.first_forged(text, markup) is None:
            return self._spans(self._library, text)
        library, anchor = self._text_library(markers)
        spans: list[TokenSpan] = []
        for run in splitter.split(text, markup):
            if run.token_id is not None:
                spans.append(TokenSpan(run.token_id, run.start, run.end))
                continue
            before = anchor if run.start else ""
            shift = run.start - len(before)
            found = self._spans(library, before + text[run.start : run.end])[1 if before else 0 :]
            spans.extend(TokenSpan(s.id, max(s.start + shift, run.start), s.end + shift) for s in found)
        return spans

    @staticmethod
    def _spans(library: Any, text: str) -> list[TokenSpan]:
        with library_errors_as_bad_input("The text cannot be encoded"):
            encoding = library.encode(text, add_special_tokens=False)
        return [
            TokenSpan(token_id, start, end)
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    def decode(self, ids: Iterable[int], *, special: Shown = "hide", begins: Begins = "text") -> str:
        """The text of all ids at once, by the declared decoder."""
        return decode_all(self._stream(special, begins), ids)

    def detokenizer(self, *, special: Shown = "hide", begins: Begins = "text") -> BytesDetokenizer:
        """A fresh detokenizer whose joined deltas equal `decode`."""
        return BytesDetokenizer(self._stream(special, begins))

    def token_text(self, token_id: int) -> str:
        """The token for display."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id that the vocabulary leaves out."""
        number = check_id(token_id, self._size)
        token: str | None = self._library.id_to_token(number)
        return token

    def is_hidden(self, token_id: int) -> bool:
        """Whether the token leaves no text behind where special tokens are hidden."""
        return token_id in self._hidden

    def _stream(self, special: Shown, begins: Begins) -> PieceStream:
        return _StepStream(self, decoder_steps(self._declared.get("decoder"), begins), special)

    def _token_bytes(self, token_id: int) -> bytes:
        number = check_id(token_id, self._size)
        if number in self._hidden:
            return (self.token(number) or "").encode("utf-8", "replace")
        stream = self._stream("show", "middle")
        return stream.push(number) + stream.finish()

    def _make_text_library(self, markers: frozenset[str]) -> tuple[Any, str]:
        """A library object that reads no special token or marker out of text, and its anchor token."""
        declared = dict(self._declared)
        declared["added_tokens"] = [
            {**token, "special": bool(token.get("special")) or token["content"] in markers}
            for token in self._added
        ]
        library = _load(json.dumps(declared), purpose="text")
        anchor = f"<{secrets.token_hex(16)}>"
        added = need("tokenizers", purpose="A tokenizer.json").AddedToken(
            anchor, special=False, normalized=False
        )
        library.add_tokens([added])
        return library, anchor

    def _make_splitter(self, markers: frozenset[str]) -> SpecialSplitter:
        promoted = {text: i for text, i in self._user_defined.items() if text in markers}
        return SpecialSplitter(
            self._control | promoted,
            strips_before=[t["content"] for t in self._added if t.get("lstrip")],
            strips_after=[t["content"] for t in self._added if t.get("rstrip")],
        )


class _StepStream:
    """Runs the decoder steps over one token after the other."""

    def __init__(self, tokenizer: JsonTokenizer, steps: list[Step], special: Shown) -> None:
        self._tokenizer = tokenizer
        self._steps = steps
        self._special = special

    @property
    def held_bytes(self) -> bytes:
        return b"".join(step.held_bytes for step in reversed(self._steps))

    def push(self, token_id: int) -> bytes:
        token = self._tokenizer.token(token_id)
        if token is None or (self._special == "hide" and self._tokenizer.is_hidden(token_id)):
            return b""
        return self._through([token], self._steps)

    def finish(self) -> bytes:
        out = b""
        for position, step in enumerate(self._steps):
            out += self._through(list(step.finish()), self._steps[position + 1 :])
        return out

    @staticmethod
    def _through(fragments: list[Fragment], steps: Sequence[Step]) -> bytes:
        for step in steps:
            fragments = [out for fragment in fragments for out in step.push(fragment)]
        return b"".join(f.encode("utf-8", "replace") if isinstance(f, str) else f for f in fragments)


def _read(text: str) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > MOST_JSON_CHARS:
        raise BadInputError(f"tokenizer.json must be text of at most {MOST_JSON_CHARS} characters.")
    try:
        declared = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"tokenizer.json is not valid JSON: {one_line(str(error))}") from None
    if not isinstance(declared, dict):
        raise BadInputError("tokenizer.json must hold one JSON object.")
    return declared


def _load(text: str, *, purpose: str) -> Any:
    """The library's tokenizer, without the cutting and padding that the file may ask for."""
    library = need("tokenizers", purpose="A tokenizer.json")
    with library_errors_as_bad_input("tokenizer.json cannot be used"):
        tokenizer = library.Tokenizer.from_str(text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = purpose == "text"
    return tokenizer


def _added_tokens(declared: Mapping[str, Any]) -> list[dict[str, Any]]:
    tokens = declared.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise BadInputError("tokenizer.json: added_tokens must be a list.")
    for token in tokens:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
            raise BadInputError("tokenizer.json: each added token needs a text as its content.")
    return tokens
