"""A model with its tokenizer, as a person uses it: text in, text out.

Builds requests; holds no state of theirs. Knows tokenizers and templates only by what they offer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from haaw.caches.dynamic import DynamicCache
from haaw.caches.protocol import KVCache
from haaw.errors import BadInputError
from haaw.generation.answer import Answer, Delta
from haaw.generation.phases import PhaseClock
from haaw.generation.request import Request, TextSide
from haaw.generation.settings import make_settings
from haaw.models.protocol import Transformer
from haaw.ops.recorder import chosen_recorder

PromptForm = Literal["auto", "chat", "raw"]
Message = Mapping[str, str]


class Tokenizer(TextSide, Protocol):
    """What a language model needs of a tokenizer, beside what a running request needs."""

    def encode(self, text: str, *, special: Literal["text", "parse"] = "text") -> list[int]:
        """Ids of a text; special tokens in it are ordinary text unless they are to be parsed."""

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the start token where the model wants one."""

    def decode(self, ids: Sequence[int], *, special: Literal["hide", "show"] = "hide") -> str:
        """Text of ids, decoded in one go."""


class Template(Protocol):
    """What a language model needs of a chat template."""

    def render_to_ids(self, messages: Sequence[Message], tokenizer: Any) -> Any:
        """Something with `.ids`: the prompt of a chat, ready for the answer."""


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

    def request(
        self, prompt: str | Sequence[Message] | Sequence[int], *, form: PromptForm = "auto", system: str | None = None, **settings: Any
    ) -> Request:
        """A request that is prepared and waits to be run.

        `prompt` is a text, a list of messages (`{"role": …, "content": …}`), or a list of token ids, which
        are taken as they are. Errors: `BadInputError` for whatever cannot be run.
        """
        clock = PhaseClock()
        checked = make_settings(**settings)
        ids = self.prompt_ids(prompt, form=form, system=system)
        return Request(
            self.transformer,
            self.tokenizer,
            ids,
            checked,
            make_cache=self._make_cache,
            clock=clock,
            recorder=chosen_recorder(),
        )

    def generate(self, prompt: str | Sequence[Message] | Sequence[int], **options: Any) -> Answer:
        """The whole answer; options as for `request`."""
        return self.request(prompt, **options).run()

    def stream(self, prompt: str | Sequence[Message] | Sequence[int], **options: Any) -> Iterator[Delta]:
        """The answer in pieces as they come; options as for `request`."""
        return iter(self.request(prompt, **options))

    def prompt_ids(
        self, prompt: str | Sequence[Message] | Sequence[int], *, form: PromptForm = "auto", system: str | None = None
    ) -> list[int]:
        """The token ids that a prompt becomes; parameters as for `request`."""
        if form not in ("auto", "chat", "raw"):
            raise BadInputError(f'form is {form!r}; it must be "auto", "chat" or "raw"')
        if not isinstance(prompt, str) and all(isinstance(part, int) for part in prompt):
            return [int(part) for part in prompt]  # type: ignore[arg-type]
        chat = not isinstance(prompt, str) or (self.prompt_form if form == "auto" else form) == "chat"
        if not chat:
            if system is not None:
                raise BadInputError("a system prompt needs the chat form; this prompt is raw")
            return self.tokenizer.encode_prompt(prompt)  # type: ignore[arg-type]
        if self.template is None:
            raise BadInputError(f'the model "{self.name}" has no chat template; use the raw form')
        messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(prompt)  # type: ignore[arg-type]
        return list(self.template.render_to_ids(messages, self.tokenizer).ids)

    def _make_cache(self) -> KVCache:
        return DynamicCache(self.transformer.cache_layout, self.transformer.prototype_I)
