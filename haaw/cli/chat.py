"""`haaw chat`: a conversation in the terminal. Ctrl-C stops an answer; Ctrl-D or /exit leaves."""

import sys
from collections.abc import Callable

from haaw.cli import options
from haaw.cli.output import complain, remark
from haaw.cli.run import deliver, load_with_bar, use_threads
from haaw.errors import BadInputError, HaawError
from haaw.generation.conversation import ContextFullError, Conversation
from haaw.generation.request import Request

HELP = "/reset forgets the conversation, /retry answers again, /stats counts, /exit leaves; Ctrl-C stops an answer"


def chat(
    model: options.Model = "tiny",
    max_tokens: options.MaxTokens = 512,
    system: options.System = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    stop: options.Stop = [],  # noqa: B006
    cache: options.Cache = "dynamic",
    cache_option: options.CacheOption = [],  # noqa: B006
    threads: options.Threads = None,
) -> int:
    """Hold a conversation: history, /reset, /retry, /stats, /exit."""
    use_threads(threads)
    conversation = Conversation(
        load_with_bar(model),
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        stop=stop,
        cache=cache,
        cache_options=options.cache_options_from(cache_option),
    )
    for note in (*conversation.model.notes, options.without_effect(conversation.settings)):
        if note is not None:
            remark(f"note: {note}")
    remark(HELP)
    read = _reader()
    while True:
        try:
            line = read().strip()
            if line == "/exit":
                return 0
            if line:
                _respond(conversation, line)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            remark("(Ctrl-D or /exit leaves)")


def _respond(conversation: Conversation, line: str) -> None:
    """Carries out a command or asks a question; an error is told and leaves the conversation as it was."""
    try:
        if line == "/reset":
            conversation.reset()
            remark("the conversation is empty again")
        elif line == "/stats":
            remark(_stats(conversation))
        elif line == "/retry":
            request = conversation.retry()
            if request.settings.sampling.is_greedy:
                remark(
                    "note: at temperature 0 the answer stays the same; start with --temperature 1 to vary it"
                )
            _answer(conversation, request)
        elif line == "/help":
            remark(HELP)
        elif line.startswith("/"):
            complain(f"unknown command {line.split()[0]}; {HELP}")
        else:
            _answer(conversation, conversation.ask(line))
    except HaawError as error:
        complain(f"{error} (/reset starts anew)" if isinstance(error, ContextFullError) else str(error))


def _answer(conversation: Conversation, request: Request) -> None:
    for note in request.notes:
        remark(f"note: {note}")
    try:
        deliver(request, as_json=False)
    finally:
        if request.finish is not None:
            conversation.keep(request)


def _stats(conversation: Conversation) -> str:
    """Totals of the conversation, in one line."""
    answers = conversation.answers
    if not answers:
        return "nothing was answered yet"
    new = sum(len(answer.token_ids) for answer in answers)
    decode_s = sum(answer.timing_s["decode"] for answer in answers)
    prefill_s = sum(answer.timing_s["prefill"] for answer in answers)
    context = conversation.model.transformer.context_length_tokens
    used = len(answers[-1].prompt_ids) + len(answers[-1].token_ids)
    count = "1 answer" if len(answers) == 1 else f"{len(answers)} answers"
    return (
        f"{count} · {new} new tokens · prefill {prefill_s:.2f} s · decode {decode_s:.2f} s · "
        f"context {used:,} of {context:,} tokens"
    )


def _reader() -> Callable[[], str]:
    """Reads a line: with history and editing on a terminal, plainly otherwise."""
    if sys.stdin is None:
        raise BadInputError("standard input is closed; a conversation needs it")
    if not sys.stdin.isatty():
        return _piped_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import FormattedText

    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt(FormattedText([("bold", "> ")]))


def _piped_line() -> str:
    try:
        return input()
    except UnicodeDecodeError as error:
        raise BadInputError("standard input is not UTF-8 text; convert it first") from error
