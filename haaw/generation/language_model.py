"""A model with its tokenizer, as a person uses it: text in, text out.

Builds requests; holds no state of theirs. Knows tokenizers and templates only by what they offer.
"""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from haaw.caches.dynamic import DynamicCache
from haaw.caches.protocol import KVCache
from haaw.errors import BadInputError
from haaw.generation.answer import Answer, Delta
from haaw.generation.phases import PhaseClock
from haaw.generation.request import Request
from haaw.generation.settings import make_settings
from haaw.generation.text_output import Begins, TextSide
from haaw.models.protocol import Transformer
from haaw.ops.breakpoints import with_breakpoints
from haaw.ops.recorder import chosen_recorder

PromptForm = Literal["auto", "chat", "raw"]
Message = Mapping[str, str]
PromptLike = str | Sequence[Message] | Sequence[int]


class Tokenizer(TextSide, Protocol):
    """What a language model needs of a tokenizer, beside what a running request needs."""

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, if there is one."""

    def encode(self, text: str, *, special: Literal["text", "parse"] = "text") -> list[int]:
        """Ids of a text; special tokens in it are ordinary text unless they are to be parsed."""

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the start token where the model wants one."""

    def decode(self, ids: Sequence[int], *, special: Literal["hide", "show"] = "hide") -> str:
        """Text of ids, decoded in one go."""


class Template(Protocol):
    """What a language model needs of a chat template."""

    def render_to_ids(self, messages: Sequence[Message], tokenizer: Any) -> Any:
        """Something with `.ids` and `.warnings`: the prompt of a chat, ready for the answer."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, with remarks on how it came out.

    `begins`: whether an answer to it begins a text of its own, or goes on in the middle of the prompt's.
    """

    ids: tuple[int, ...]
    begins: Begins
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LanguageModel:
    """A transformer, its tokenizer and its chat template.

    `prompt_form` is what "auto" means for this model: "chat" or "raw". `notes` are remarks made at loading.
    """

    name: str
    transformer: Transformer
    tokenizer: Tokenizer
    template: Template | None = None
    prompt_form: Literal["chat", "raw"] = "raw"
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name!r}, {self.transformer.family}, {self._size()}>"

    def _size(self) -> str:
        values = sum(math.prod(array.shape) for array in self.transformer.named_weights().values())
        return (
            f"{values / 1e6:,.1f} million values, context {self.transformer.context_length_tokens:,} tokens"
        )

    def describe(self) -> list[tuple[str, str]]:
        """What a person wants to know of it first, as names and values."""
        layout = self.transformer.cache_layout
        return [
            ("family", self.transformer.family),
            ("size", self._size()),
            ("vocabulary", f"{self.transformer.vocabulary_size:,} tokens"),
            ("KV cache", f"{layout.bytes_per_position:,} bytes a token, {layout.layers} layers"),
            ("prompts", self.prompt_form),
            *(("note", note) for note in self.notes),
        ]

    def _repr_html_(self) -> str:
        from haaw.generation.display import table

        return table(self.name, self.describe())

    def request(
        self, prompt: PromptLike, *, form: PromptForm = "auto", system: str | None = None, **settings: Any
    ) -> Request:
        """A request that is prepared and waits to be run.

        `prompt` is a text, a list of messages (`{"role": …, "content": …}`), or a list of token ids, which
        are taken as they are. Errors: `BadInputError` for whatever cannot be run.
        """
        clock = PhaseClock()
        checked = make_settings(**settings)
        prepared = self.prepare(prompt, form=form, system=system)
        return Request(
            self.transformer,
            self.tokenizer,
            prepared.ids,
            checked,
            begins=prepared.begins,
            notes=prepared.notes,
            make_cache=self._make_cache,
            clock=clock,
            recorder=with_breakpoints(chosen_recorder()),
        )

    def generate(self, prompt: PromptLike, **options: Any) -> Answer:
        """The whole answer; options as for `request`."""
        return self.request(prompt, **options).run()

    def stream(self, prompt: PromptLike, **options: Any) -> Iterator[Delta]:
        """The answer in pieces as they come; options as for `request`."""
        return iter(self.request(prompt, **options))

    def prepare(self, prompt: PromptLike, *, form: PromptForm = "auto", system: str | None = None) -> Prompt:
        """The token ids that a prompt becomes; parameters as for `request`."""
        if form not in ("auto", "chat", "raw"):
            raise BadInputError(f'form is {form!r}; it must be "auto", "chat" or "raw"')
        if isinstance(prompt, str):
            if (self.prompt_form if form == "auto" else form) == "chat":
                return self._chat([{"role": "user", "content": prompt}], system)
            if system is not None:
                raise BadInputError("a system prompt needs the chat form, and this prompt is raw")
            return Prompt(tuple(self.tokenizer.encode_prompt(prompt)), "middle" if prompt else "text")
        parts = _parts(prompt)
        if all(isinstance(part, Mapping) for part in parts) and parts:
            if form == "raw":
                raise BadInputError(
                    "messages need the chat form; a raw prompt is a text or a list of token ids"
                )
            return self._chat(parts, system)
        if system is not None or form == "chat":
            raise BadInputError(
                "token ids are taken as they are; a chat or system prompt needs text or messages"
            )
        ids = tuple(_token_id(part) for part in parts)
        return Prompt(ids, "text" if set(ids) <= {self.tokenizer.bos_id} else "middle")

    def _chat(self, messages: Sequence[Any], system: str | None) -> Prompt:
        if self.template is None:
            raise BadInputError(f'the model "{self.name}" has no chat template; use the raw form')
        first = [] if system is None else [{"role": "system", "content": system}]
        rendered = self.template.render_to_ids([*first, *messages], self.tokenizer)
        return Prompt(tuple(rendered.ids), "text", tuple(rendered.warnings))

    def _make_cache(self) -> KVCache:
        return DynamicCache(self.transformer.cache_layout, self.transformer.prototype_Z)


def _parts(prompt: Any) -> list[Any]:
    try:
        if not isinstance(prompt, bytes | bytearray | Mapping):
            return list(prompt)
    except TypeError:
        pass
    raise BadInputError(f"{_FORMS}, and {prompt!r:.60} is none of them")


def _token_id(part: Any) -> int:
    try:
        if not isinstance(part, bool):
            return operator.index(part)
    except TypeError:
        pass
    raise BadInputError(f"{_FORMS}, and {part!r:.60} is no token id")


_FORMS = "a prompt is a text, a list of messages or a list of token ids"
