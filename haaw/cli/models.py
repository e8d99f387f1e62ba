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

    models = installed_models()
    if as_json:
        write_json(
            [
                {
                    "name": model.entry.name,
                    "state": model.state,
                    "size_bytes": model.entry.size_bytes,
                    "licence": model.entry.licence,
                    "summary": model.entry.summary,
                    "path": str(model.path) if model.state == "ready" else None,
                }
                for model in models
            ]
        )
        return
    for entry, path, state in models:
        print(f"{entry.name:<16} {state:<8} {entry.size_bytes / 1e6:>7.0f} MB  {entry.summary}")
        print(f"{'':<16} {path if state == 'ready' else f'get it with: haaw models pull {entry.name}'}")


@models_app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name from `haaw models list`.")],
    revision: Annotated[str | None, typer.Option(help="For hf: models, a branch, tag or commit.")] = None,
) -> None:
    """Fetch a model into the cache folder; a call that was interrupted goes on where it stopped."""
    from weights_tools.pull import pull_with_bar

    path = pull_with_bar(name, revision=revision)
    remark(f"{name} is ready: {path}")
