"""`haaw run`: one prompt, one answer, streamed."""

import math
import sys
from functools import partial
from typing import Annotated

import typer

from haaw.cli import options
from haaw.cli.output import bar, remark, write, write_json
from haaw.cli.recording import KeepPolicy, TraceFile, recorded
from haaw.errors import BadInputError
from haaw.generation.answer import Answer, TokenLogProbability
from haaw.generation.language_model import LanguageModel
from haaw.generation.request import Request

EXIT_STATUS = {"deadline": 3, "failed": 3, "cancelled": 130}


def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt, or - to read standard input.")] = None,
    model: options.Model = "tiny",
    max_tokens: options.MaxTokens = 256,
    raw: Annotated[
        bool | None, typer.Option("--raw/--chat", help="The prompt as it is, or in the chat template.")
    ] = None,
    system: options.System = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    bias: options.Bias = [],  # noqa: B006
    stop: options.Stop = [],  # noqa: B006
    stop_id: options.StopId = [],  # noqa: B006
    deadline: options.Deadline = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Show each token's probability and the N most likely (--json: logarithms)."),
    ] = None,
    heads: options.Heads = "together",
    cache: options.Cache = "dynamic",
    cache_option: options.CacheOption = [],  # noqa: B006
    prefill_chunk: options.PrefillChunk = 512,
    threads: options.Threads = None,
    trace: TraceFile = None,
    keep: KeepPolicy = None,
    as_json: options.AsJson = False,
) -> int:
    """Run a prompt through a model and stream the answer to standard output."""
    use_threads(threads)
    language_model = load_with_bar(model)
    if prompt is None:
        raise BadInputError(
            'no prompt was given; write one, as in: haaw run "Once upon a time", or - for standard input'
        )
    ask = partial(
        language_model.request,
        read_prompt(prompt),
        form="auto" if raw is None else "raw" if raw else "chat",
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=options.bias_from(bias),
        stop=stop,
        stop_ids=stop_id,
        deadline_s=deadline,
        logprobs=logprobs,
        heads=heads,
        cache=cache,
        cache_options=options.cache_options_from(cache_option),
        prefill_chunk_tokens=prefill_chunk,
    )
    if trace is not None:
        ask()  # what is impossible is refused before an earlier trace of that name is replaced
    with recorded(trace, keep, language_model) as announce:
        request = ask()
        for note in (*language_model.notes, *request.notes, options.without_effect(request.settings)):
            if note is not None:
                remark(f"note: {note}")
        announce(request)
        answer = deliver(request, as_json=as_json)
    if not as_json:
        for each in answer.log_probabilities:
            remark(log_probability_line(each))
    return EXIT_STATUS.get(answer.finish.reason, 0)


def use_threads(threads: int | None) -> None:
    """Holds everything to so many threads, where the user said so."""
    if threads is not None:
        from haaw.ops.threads import set_threads

        set_threads(threads)


def load_with_bar(model: str) -> LanguageModel:
    """Loads a model behind a progress bar."""
    from haaw.loading import load

    with bar("loading") as progress:
        return load(model, progress=progress)


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`."""
    if prompt != "-":
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInputError("the prompt is not UTF-8 text; convert it first") from error
        return prompt
    if sys.stdin is None:
        raise BadInputError("standard input is closed; there is no prompt to read")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"standard input is not UTF-8 text (byte {error.start}); convert it first"
        ) from error


def deliver(request: Request, *, as_json: bool) -> Answer:
    """Runs a request and shows its text as it comes, or its JSON at the end; Ctrl-C leaves what there is."""
    stream, written = iter(request), 0
    try:
        for delta in stream:
            if not as_json:
                written += len(delta.text)
                write(delta.text)
    except KeyboardInterrupt:
        request.cancel("keyboard")
    finally:
        stream.close()
    request.close()  # the interrupt may have come before the stream began
    answer = request.answer
    if as_json:
        write_json(answer.to_dict())
    else:
        write(answer.text[written:] + "\n")  # an interrupted stream does not hand over what was held back
        remark(summary(answer))
    return answer


def summary(answer: Answer) -> str:
    """One line on how a request went."""
    finish, timing = answer.finish, answer.timing_s
    evidence = ", ".join(f"{name} {_in_one_line(value)}" for name, value in finish.evidence.items())
    parts = [
        f"{finish.reason} ({evidence})",
        f"{len(answer.prompt_ids)} prompt + {len(answer.token_ids)} new tokens",
        f"prefill {timing['prefill']:.2f} s",
        f"decode {timing['decode']:.2f} s",
    ]
    if answer.seed is not None:
        parts.insert(1, f"seed {answer.seed}")
    if len(answer.token_ids) > 1 and timing["decode"] > 0:
        parts.append(f"{(len(answer.token_ids) - 1) / timing['decode']:.1f} tokens/s")
    if not finish.complete:
        parts.append("partial" if finish.reason in EXIT_STATUS else "not ended by the model")
    return "[" + " · ".join(parts) + "]"


def _in_one_line(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value) if str(value).isprintable() else repr(value)


def log_probability_line(token: TokenLogProbability) -> str:
    """A chosen token and the most likely ones with their probabilities, in one line."""

    def shown(each: TokenLogProbability) -> str:
        return (
            f"{each.token_bytes.decode('utf-8', 'backslashreplace')!r} {math.exp(each.log_probability):.3f}"
        )

    others = "  ".join(shown(each) for each in token.top)
    return f"{token.token_id:>6} {shown(token):<24} {others}".rstrip()
