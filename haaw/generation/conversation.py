"""A conversation: the messages so far, and requests for the next answer. Needs a model with a chat template."""

from typing import Any
from weakref import WeakKeyDictionary

from haaw.errors import BadInputError
from haaw.generation.answer import Answer
from haaw.generation.language_model import LanguageModel
from haaw.generation.request import PromptTooLongError, Request
from haaw.generation.settings import make_settings
from haaw.generation.text_output import TextOutput


class ContextFullError(BadInputError):
    """The history and the question together have more tokens than the model's context holds."""


class Conversation:
    """Keeps the history; each answer is a request of its own over the whole of it.

    `settings` are those of `LanguageModel.request`, less `form` and `choice`. Errors: `BadInputError` for a
    model without a template, or settings that could not be used.
    """

    def __init__(self, model: LanguageModel, *, system: str | None = None, **settings: Any) -> None:
        if model.template is None:
            raise BadInputError(
                f'the model "{model.name}" has no chat template, so it cannot hold a conversation'
            )
        if set_here := settings.keys() & {"form", "choice"}:
            raise BadInputError(f"{' and '.join(sorted(set_here))}: set by the conversation itself")
        self.settings = make_settings(**settings)
        self.settings.check_vocabulary(model.transformer.vocabulary_size)
        model.plan_cache(self.settings)  # refuses caches that could not be made
        TextOutput(model.tokenizer, self.settings)  # refuses stop texts that could not be found
        self.model = model
        self.messages: list[dict[str, str]] = []
        self.answers: list[Answer] = []
        self._system = system
        checked = {name: getattr(self.settings, name) for name in ("stop", "stop_ids", "tool_call_markers")}
        self._options = settings | {name: checked[name] for name in checked if name in settings}
        self._attempt = 0
        self._asked: WeakKeyDictionary[Request, tuple[list[dict[str, str]], int]] = WeakKeyDictionary()

    def ask(self, question: str) -> Request:
        """The request for the answer to a question; `keep` its outcome, or ask again.

        Errors: `ContextFullError` when the history has outgrown the context. Nothing is changed by then.
        """
        return self._request([*self.messages, {"role": "user", "content": question}], attempt=0)

    def retry(self) -> Request:
        """The request for another answer to the last question; with a seed, the next choice under it.

        Errors: `BadInputError` when nothing was asked yet.
        """
        if not self.messages:
            raise BadInputError("nothing was asked yet, so there is nothing to try again")
        return self._request(self.messages[:-1], attempt=self._attempt + 1)

    def _request(self, messages: list[dict[str, str]], *, attempt: int) -> Request:
        context = self.model.transformer.context_length_tokens
        full = ContextFullError(
            f"the conversation has outgrown the model's context of {context:,} tokens; "
            "reset it, or ask something shorter"
        )
        try:
            request = self.model.request(
                messages, form="chat", system=self._system, choice=attempt, **self._options
            )
        except PromptTooLongError as error:
            raise full from error
        if len(request.prompt_ids) == context:  # runs, but leaves no room for an answer
            raise full
        self._asked[request] = messages, attempt
        return request

    def keep(self, request: Request) -> Answer:
        """Takes the outcome of a finished request into the history, also a partial one.

        Errors: `BadInputError` for a request that is not of this conversation, or has not ended.
        """
        if request not in self._asked:
            raise BadInputError("this request is not of this conversation; keep one that ask or retry gave")
        answer = request.answer
        messages, self._attempt = self._asked[request]
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        self.answers.append(answer)
        return answer

    def reset(self) -> None:
        """Forgets all messages; the system prompt stays."""
        self.messages, self.answers, self._attempt = [], [], 0
