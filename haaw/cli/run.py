"""`haaw run`: one prompt, one answer, streamed."""

import sys
from typing import Annotated

import typer

from haaw.cli.output import bar, remark, write, write_json
from haaw.errors import BadInputError
from haaw.generation.answer import Answer
from haaw.generation.language_model import LanguageModel
from haaw.generation.request import Request

EXIT_STATUS = {"deadline": 3, "failed": 3, "cancelled": 130}


def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt, or - to read standard input.")] = None,
    model: Annotated[str, typer.Option(help="A model's name (see `haaw models list`), or a file.")] = "tiny",
    max_tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 256,
    raw: Annotated[
        bool | None, typer.Option("--raw/--chat", help="The prompt as it is, or in the chat template.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt (chat only).")] = None,
    heads: Annotated[str, typer.Option(help="Attention heads: together or separate.")] = "together",
    prefill_chunk: Annotated[int, typer.Option(help="Prompt tokens taken in one step.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
) -> int:
    """Run a prompt through a model and stream the answer to standard output."""
    language_model = load_with_bar(model)
    if prompt is None:
        raise BadInputError('no prompt was given; write one, as in: haaw run "Once upon a time", or - for standard input')
    form = {None: "auto", True: "raw", False: "chat"}[raw]
    request = language_model.request(
        read_prompt(prompt),
        form=form,
        system=system,
        max_tokens=max_tokens,
        heads=heads,
        prefill_chunk_tokens=prefill_chunk,
    )
    for note in (*language_model.notes, *request.notes):
        remark(f"note: {note}")
    answer = deliver(request, as_json=as_json)
    return EXIT_STATUS.get(answer.finish.reason, 0)


def load_with_bar(model: str) -> LanguageModel:
    """Loads a model behind a progress bar."""
    from haaw.loading import load

    with bar("loading") as progress:
        return load(model, progress=progress)


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`."""
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"standard input is not UTF-8 text (byte {error.start}); convert it first") from error


def deliver(request: Request, *, as_json: bool) -> Answer:
    """Runs a request and shows its text as it comes, or its JSON at the end; Ctrl-C leaves what there is."""
    try:
        for delta in request:
            if not as_json:
                write(delta.text)
    except KeyboardInterrupt:
        pass
    answer = request.answer
    if as_json:
        write_json(answer.to_dict())
    else:
        write("\n")
        remark(summary(answer))
    return answer


def summary(answer: Answer) -> str:
    """One line on how a request went."""
    finish, timing = answer.finish, answer.timing_s
    evidence = ", ".join(f"{name} {value}" for name, value in finish.evidence.items())
    parts = [
        f"{finish.reason} ({evidence})",
        f"{len(answer.prompt_ids)} prompt + {len(answer.token_ids)} new tokens",
        f"prefill {timing['prefill']:.2f} s",
        f"decode {timing['decode']:.2f} s",
    ]
    if len(answer.token_ids) > 1 and timing["decode"] > 0:
        parts.append(f"{(len(answer.token_ids) - 1) / timing['decode']:.1f} tokens/s")
    if not finish.complete:
        parts.append("partial" if finish.reason in EXIT_STATUS else "not ended by the model")
    return "[" + " · ".join(parts) + "]"
