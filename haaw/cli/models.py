"""`haaw models`: which models there are, and getting one."""

from typing import Annotated

import typer

from haaw.cli.output import remark, write_json

models_app = typer.Typer(rich_markup_mode=None)


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List and get models."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@models_app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the models that HAAW knows by name, and which of them are on this machine."""
    from weights_tools.pull import installed_models

    rows = [
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
    if as_json:
        write_json(rows)
        return
    for row in rows:
        print(f"{row['name']:<16} {row['state']:<8} {row['size_bytes'] / 1e6:>7.0f} MB  {row['summary']}")
        print(f"{'':<16} {row['path'] or 'get it with: haaw models pull ' + str(row['name'])}")


@models_app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name from `haaw models list`.")],
    revision: Annotated[str | None, typer.Option(help="For hf: models, a branch, tag or commit.")] = None,
) -> None:
    """Fetch a model into the cache folder; a call that was interrupted goes on where it stopped."""
    from weights_tools.pull import pull_with_bar

    path = pull_with_bar(name, revision=revision)
    remark(f"{name} is ready: {path}")
