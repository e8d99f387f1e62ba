"""`haaw models`: which models there are, getting one, looking at one, and training the embedded one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from haaw.cli.output import remark, write, write_json

models_app = typer.Typer(rich_markup_mode=None)


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List, get and look at models."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@models_app.command("list", short_help="Show the models that have a name.")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the models that HAAW knows by name, and which of them are on this machine."""
    rows = known_models()
    if as_json:
        write_json(rows)
        return
    for row in rows:
        print(f"{row['name']:<16} {row['state']:<8} {row['size_bytes'] / 1e6:>7.0f} MB  {row['summary']}")
        print(f"{'':<16} {row['path'] or 'get it with: haaw models pull ' + row['name']}")


def known_models() -> list[dict[str, Any]]:
    """The built-in model, where there is one, and those of the catalog."""
    from haaw.loading import DEFAULT_MODEL
    from haaw.loading.finding import built_in
    from weights_tools.pull import installed_models

    rows: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "state": state,
            "size_bytes": entry.size_bytes,
            "licence": entry.licence,
            "summary": entry.summary,
            "path": str(path) if state == "ready" else None,
        }
        for entry, path, state in installed_models()
    ]
    if (path := built_in()) is not None:
        own = {
            "name": DEFAULT_MODEL,
            "state": "built in",
            "size_bytes": path.stat().st_size,
            "licence": "Apache-2.0",
            "summary": "HAAW's own small model, made to be looked into (haaw models info tiny)",
            "path": str(path),
        }
        rows.insert(0, own)
    return rows


@models_app.command("info", short_help="Show what a model is, and its card.")
def model_info(
    model: Annotated[str, typer.Argument(help="A model's name, file or folder.")] = "tiny",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show what a model is, and its card where one lies beside it."""
    from haaw.cli.run import load_with_bar
    from haaw.loading import find

    rows = load_with_bar(model).describe()
    path = find(model)
    card = path / "README.md" if path.is_dir() else path.with_suffix(".md")
    if as_json:
        write_json({"name": model, **{name: value for name, value in rows if name != "note"}})
        return
    for name, value in rows:
        write(f"{name:<12} {value}\n")
    if card.is_file():
        write("\n" + card.read_text(encoding="utf-8", errors="replace"))


@models_app.command("pull", short_help="Fetch a model into the cache folder.")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name from `haaw models list`.")],
    revision: Annotated[str | None, typer.Option(help="For hf: models, a branch, tag or commit.")] = None,
) -> None:
    """Fetch a model into the cache folder; a call that was interrupted goes on where it stopped."""
    from weights_tools.pull import pull_with_bar

    try:
        path = pull_with_bar(name, revision=revision)
    except KeyboardInterrupt:
        remark("stopped; the same command goes on where it was")
        raise
    remark(f"{name} is ready: {path}")


@models_app.command("train-tiny", short_help="Train the embedded model anew.")
def train_tiny_model(
    folder: Annotated[Path, typer.Option(help="For the checkpoint and the finished files.")] = Path(
        "tiny-training"
    ),
    begin_with: Annotated[
        str | None, typer.Option("--from", help="Begin with this model: tiny, or a file that was made here.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="How long to train.")] = 240.0,
    tokens: Annotated[int | None, typer.Option(help="Train on so many tokens instead.")] = None,
    items: Annotated[int, typer.Option(help="Questions of each sort in the examination.")] = 500,
    stories: Annotated[int, typer.Option(help="Stories to sample for the card.")] = 200,
    threads: Annotated[int | None, typer.Option(help="Threads for PyTorch.")] = None,
) -> int:
    """Train the embedded model anew: tokenizer, training, examination, card and file (extra `train`)."""
    from haaw.loading.finding import find
    from weights_tools.train.tool import Options, TrainingInterruptedError, train_tiny

    options = Options(
        folder=folder,
        begin_with=find(begin_with) if begin_with is not None else None,
        minutes=minutes,
        tokens=tokens,
        items=items,
        stories=stories,
        threads=threads,
    )
    try:
        trained = train_tiny(options)
    except TrainingInterruptedError as stop:
        remark(str(stop))
        return 130
    print(f"{trained.model}\n{trained.card}\n{trained.plot}")
    return 0
