"""A model with its tokenizer, as a person uses it: text in, text out.

Builds requests; holds no state of theirs. Knows tokenizers and templates only by what they offer.
"""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter_ns
from typing import Any, Literal, Protocol

from haaw.caches.kinds import make_cache, options_of, plan_cache
from haaw.caches.protocol import CacheError, CachePlan, KVCache
from haaw.errors import BadInputError
from haaw.generation.answer import Answer, Delta
from haaw.generation.identity import identity_of
from haaw.generation.phases import PhaseClock
from haaw.generation.preparation import Preparation
from haaw.generation.request import Request
from haaw.generation.settings import Settings, make_settings
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
        """The prompt of a chat, ready for the answer; see `haaw.tokenizers.chat_template.ChatPrompt`."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, with remarks on how it came out.

    `begins`: whether an answer to it begins a text of its own, or goes on in the middle of the prompt's.
    """

    ids: tuple[int, ...]
    begins: Begins
    notes: tuple[str, ...] = ()
    preparation: Preparation | None = field(default=None, repr=False, compare=False)


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

    def facts(self) -> dict[str, Any]:
        """What a trace says about the model: JSON values."""
        transformer, layout = self.transformer, self.transformer.cache_layout
        return {
            "name": self.name,
            "family": transformer.family,
            "context_length_tokens": transformer.context_length_tokens,
            "vocabulary_size": transformer.vocabulary_size,
            "layers": layout.layers,
            "kv_heads": layout.kv_heads,
            "head_dim": layout.head_dim,
            "dtype": layout.dtype,
            "prompt_form": self.prompt_form,
        }

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
        self.plan_cache(checked)  # judged before the work of preparing the prompt
        prepared = self.prepare(prompt, form=form, system=system)
        checked = self._with_facts(checked, len(prepared.ids))
        plan = self.plan_cache(checked)
        recorder = with_breakpoints(chosen_recorder())
        if recorder is not None:
            recorder.know_model(self.facts())
        return Request(
            self.transformer,
            self.tokenizer,
            prepared.ids,
            checked,
            begins=prepared.begins,
            notes=(*prepared.notes, *plan.notes),
            make_cache=lambda: self._make_cache(checked),
            most_positions=plan.most_positions,
            clock=clock,
            recorder=recorder,
            preparation=prepared.preparation,
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
            begins: Begins = "middle" if prompt else "text"
            return self._prompt(self.tokenizer.encode_prompt(prompt), begins, form="raw", text=prompt)
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
        begins = "text" if set(ids) <= {self.tokenizer.bos_id} else "middle"
        return self._prompt(ids, begins, form="ids", text=None)

    def _chat(self, messages: Sequence[Any], system: str | None) -> Prompt:
        if self.template is None:
            raise BadInputError(f'the model "{self.name}" has no chat template; use the raw form')
        first = [] if system is None else [{"role": "system", "content": system}]
        messages = [*first, *messages]
        rendered = self.template.render_to_ids(messages, self.tokenizer)
        return self._prompt(
            rendered.ids,
            "text",
            form="chat",
            text=rendered.text,
            notes=tuple(rendered.warnings),
            roles=tuple(message["role"] for message in messages),
            contents=rendered.contents,
            spans=rendered.tokens,
            templated_ns=rendered.templated_ns,
            tokenised_ns=rendered.tokenised_ns,
        )

    def _prompt(self, ids: Sequence[int], begins: Begins, **how: Any) -> Prompt:
        """A prompt that remembers how it came about."""
        how = {"tokenised_ns": perf_counter_ns()} | how
        preparation = Preparation(ids=tuple(ids), tokenizer=self.tokenizer, **how)
        return Prompt(preparation.ids, begins, preparation.notes, preparation)

    def plan_cache(self, settings: Settings) -> CachePlan:
        """What is known beforehand of the cache that a request with these settings would have.

        Errors: `BadInputError` for options that cannot be, or not with this model.
        """
        try:
            return plan_cache(
                settings.cache,
                self.transformer.cache_layout,
                context_length_tokens=self.transformer.context_length_tokens,
                **settings.cache_options,
            )
        except CacheError as error:
            raise BadInputError(str(error)) from error

    def _with_facts(self, settings: Settings, prompt_tokens: int) -> Settings:
        """Settings whose cache options say what some kinds want to know of the request and the model."""
        known, options = options_of(settings.cache), dict(settings.cache_options)
        if "most_tokens" in known:
            context = self.transformer.context_length_tokens
            last = min(prompt_tokens + settings.max_tokens, context) - 1  # the last id chosen is never run
            options.setdefault("most_tokens", max(1, prompt_tokens, last))
        if options.get("pool") is not None:
            options.setdefault("identity", self.identity)
        return replace(settings, cache_options=options)

    @cached_property
    def identity(self) -> dict[str, str]:
        """What rows of a KV cache depend on beside the tokens; reads all weights when first asked for."""
        return identity_of(self.name, self.transformer)

    def _make_cache(self, settings: Settings) -> KVCache:
        transformer = self.transformer
        return make_cache(
            settings.cache,
            transformer.cache_layout,
            transformer.prototype_Z,
            context_length_tokens=transformer.context_length_tokens,
            **settings.cache_options,
        )


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
