"""Chat templates: messages to the text and the ids that a model was trained on.

The template is a program from the model's file and runs in `chat_sandbox`; messages are a person's text and
may not forge control tokens (`forgery`). Knows no tokenizer beyond the protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter_ns
from typing import Any, Literal

from haaw.errors import BadInputError
from haaw.tokenizers.chat_markup import (
    ChatJob,
    MessageSpan,
    markup_of,
    message_spans,
    parts_of,
    places_of,
)
from haaw.tokenizers.chat_messages import checked_messages, checked_value
from haaw.tokenizers.forgery import map_strings
from haaw.tokenizers.libraries import need, one_line
from haaw.tokenizers.protocol import Tokenizer, TokenSpan
from haaw.tokenizers.vocabulary import checked_text

MOST_SOURCE_CHARS = 1_000_000


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered chat: its text, its ids, which characters became which id, and where each message lies.

    `messages` and `contents` (role, first character, end) are empty where the template rewrites contents, so
    that no span would be exact. The last two say when the text and the ids were there (`time.perf_counter_ns`).
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[TokenSpan, ...]
    messages: tuple[MessageSpan, ...]
    warnings: tuple[str, ...]
    contents: tuple[tuple[str, int, int], ...] = ()
    templated_ns: int = field(default=0, compare=False)
    tokenised_ns: int = field(default=0, compare=False)


class ChatTemplate:
    """One chat template with the token names that it may write.

    Raises BadInputError for a source that is no template, and from `render` for one that fails, refuses the
    messages or exceeds its budget; the message carries the template's own.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        other_tokens: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(source, str):
            raise BadInputError(f"A chat template must be a string, not {type(source).__name__}.")
        if len(source) > MOST_SOURCE_CHARS:
            raise BadInputError(
                f"The chat template has {len(source)} characters; allowed are {MOST_SOURCE_CHARS}."
            )
        self.source = source
        names = {**(other_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._names = {name: token for name, token in names.items() if token is not None}
        need("jinja2", purpose="A chat template")
        from haaw.tokenizers.chat_sandbox import ChatSandbox

        self._sandbox = ChatSandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:
            raise BadInputError(f"The chat template is not valid: {_described(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: Literal["yes", "no"] = "yes",
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as text. `variables` are further names that the template may use."""
        return self._job(messages, tools, add_generation_prompt, variables).text

    def render_to_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: Literal["yes", "no"] = "yes",
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """The chat as ids: what the template writes may be control tokens, what a message holds may not.

        Text between two control tokens is encoded as one run. BOS is the template's business: none is added.
        Raises BadInputError also where the template rewrites a message that holds control tokens, so that the
        two cannot be told apart.
        """
        job = self._job(messages, tools, add_generation_prompt, variables)
        templated_ns = perf_counter_ns()
        markers = frozenset(token for token in tokenizer.user_defined_tokens() if token in self.source)
        markup, warnings = markup_of(job, frozenset(tokenizer.special_tokens()), markers)
        tokens = tokenizer.encode_parts_spans(parts_of(job.text, markup), markers=markers)
        ids = tuple(token.id for token in tokens)
        tokenised_ns = perf_counter_ns()
        places = places_of(job)
        return ChatPrompt(
            text=job.text,
            ids=ids,
            tokens=tuple(tokens),
            messages=message_spans(tokens, messages, places),
            warnings=(*warnings, *_bos_warnings(ids, tokenizer)),
            contents=tuple(
                (messages[index]["role"], start, end)
                for index, (start, end) in sorted(places.items(), key=lambda item: item[1])
            ),
            templated_ns=templated_ns,
            tokenised_ns=tokenised_ns,
        )

    def _job(
        self, messages: Any, tools: Any, generation: str, variables: Mapping[str, Any] | None
    ) -> ChatJob:
        checked_messages(messages)
        checked_value(tools, "The list of tools")
        if generation not in ("yes", "no"):
            raise BadInputError(f"add_generation_prompt must be 'yes' or 'no', not {generation!r}.")
        prompt = {"documents": None, "add_generation_prompt": generation == "yes"}
        values = {**self._names, **prompt, **(variables or {})}
        now = datetime.now()
        text = self._run(messages, tools, values, now)
        return ChatJob(
            messages,
            tools,
            text,
            text + self.source,
            lambda other, tools: self._run(other, tools, values, now),
        )

    def _run(self, messages: Any, tools: Any, values: Mapping[str, Any], now: datetime) -> str:
        """Run the template on values that were checked; BadInputError with the template's own message."""
        from haaw.tokenizers.chat_sandbox import TemplateRefusal

        self._sandbox.start(now)
        plain = map_strings(messages, str), map_strings(tools, str)
        try:
            text = self._template.render(**{**values, "messages": plain[0], "tools": plain[1]})
        except TemplateRefusal as error:
            raise BadInputError(
                f"The model's chat template refuses these messages: {one_line(str(error))}"
            ) from error
        except Exception as error:
            raise BadInputError(f"The model's chat template failed: {_described(error)}") from error
        return checked_text(text, what="The rendered chat")


def _bos_warnings(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    bos_id = tokenizer.bos_id
    if bos_id is None:
        return []
    if list(ids[:2]) == [bos_id, bos_id]:
        return [f"The prompt begins with two BOS tokens (id {bos_id}); the chat template writes both."]
    if tokenizer.add_bos and list(ids[:1]) != [bos_id]:
        return [f"The chat template writes no BOS (id {bos_id}), though the tokenizer asks for one."]
    return []


def _described(error: BaseException) -> str:
    """The template's own message, with its line where it has one."""
    if isinstance(error, RecursionError):
        return "it nests or calls itself too deeply."
    if isinstance(error, MemoryError):
        return "it needs too much memory."
    line = getattr(error, "lineno", None)
    shown = one_line(str(error)) or type(error).__name__
    return f"{shown} (line {line})" if line else shown
