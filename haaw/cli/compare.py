"""`haaw compare`: one prompt through several kinds of cache, side by side."""

from typing import Annotated

import typer

from haaw.cli import options
from haaw.cli.output import bar, remark, write, write_json
from haaw.cli.run import load_with_bar, read_prompt, use_threads
from haaw.errors import BadInputError

DEFAULT_CACHES = "none,dynamic,static,sliding,quantised,paged"


def compare(
    prompt: Annotated[str, typer.Argument(help="The prompt, or - to read standard input.")],
    caches: Annotated[
        str, typer.Option(help="Kinds of cache, separated by commas; the first one is the reference.")
    ] = DEFAULT_CACHES,
    cache_option: Annotated[
        list[str],
        typer.Option(help="KIND.NAME=VALUE for one kind, such as sliding.window=64. Repeatable."),
    ] = [],  # noqa: B006
    model: options.Model = "tiny",
    max_tokens: options.MaxTokens = 32,
    raw: Annotated[
        bool | None, typer.Option("--raw/--chat", help="The prompt as it is, or in the chat template.")
    ] = None,
    prefill_chunk: options.PrefillChunk = 512,
    heads: options.Heads = "together",
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> int:
    """Answer a prompt with several kinds of KV cache and compare ids, scores, bytes and times.

    Exit status 1 where the ids of some kind differ from the reference's.
    """
    from haaw.generation.comparing import compare_caches

    use_threads(threads)
    kinds = [kind.strip() for kind in caches.split(",") if kind.strip()]
    by_kind = options_by_kind(cache_option, kinds)
    language_model = load_with_bar(model)
    with bar("comparing", of="caches") as progress:
        comparison = compare_caches(
            language_model,
            read_prompt(prompt),
            kinds,
            cache_options=by_kind,
            progress=progress,
            form="auto" if raw is None else "raw" if raw else "chat",
            max_tokens=max_tokens,
            prefill_chunk_tokens=prefill_chunk,
            heads=heads,
        )
    if as_json:
        write_json(comparison.to_dict())
    else:
        write(f"{comparison}\n")
        remark(f"the answer of the reference ({kinds[0]}): {comparison.rows[0].answer.text!r}")
    return 0 if all(row.same_ids for row in comparison.rows) else 1


def options_by_kind(given: list[str], kinds: list[str]) -> dict[str, dict[str, object]]:
    """`sliding.window=64` and the like, by kind. Errors: `BadInputError` for another form, or a kind not compared."""
    by_kind: dict[str, list[str]] = {}
    for option in given:
        kind, dot, rest = option.partition(".")
        if not dot or kind not in kinds:
            raise BadInputError(
                f"--cache-option is {option!r:.60}; write KIND.NAME=VALUE with one of {', '.join(kinds)}, such as "
                "sliding.window=64"
            )
        by_kind.setdefault(kind, []).append(rest)
    return {kind: options.cache_options_from(rest) for kind, rest in by_kind.items()}
