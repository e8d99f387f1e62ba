"""The `haaw` command: gathers the subcommands and turns errors into one line and an exit status.

Exit status: 0 for a natural end, `length` or `context`; 1 for a difference found; 2 for bad input; 3 for
`deadline` or `failed`; 130 for `cancelled`.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from haaw import __version__
from haaw.cli.chat import chat
from haaw.cli.compare import compare
from haaw.cli.memory import memory
from haaw.cli.models import models_app
from haaw.cli.output import complain
from haaw.cli.replay import replay
from haaw.cli.run import run
from haaw.cli.trace import trace_app
from haaw.cli.view import export, view
from haaw.errors import HaawError

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What a wrong command line raises; Typer offers no public name for it."""

app = typer.Typer(
    name="haaw",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", short_help="Run a prompt through a model.")(run)
app.command("chat")(chat)
app.command("compare", short_help="Compare kinds of KV cache on the same prompt.")(compare)
app.command("memory", short_help="Work out the bytes of a KV cache.")(memory)
app.add_typer(models_app, name="models")
trace_app.command("replay", short_help="Run operations again and compare, bit for bit.")(replay)
app.add_typer(trace_app, name="trace")
app.command("view", short_help="Follow one request of a trace in the browser.")(view)
app.command("export", short_help="Write that page as one HTML file.")(export)


@app.callback(invoke_without_command=True)
def haaw(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """How an AI answer works: real language models from scratch in NumPy, every step open to view."""
    if version:
        print(f"haaw {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal's encoding lacks is spelled out
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        pass
    except SystemExit as stop:  # Typer's own answer to a closed output is status 1
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
    # Whoever read the output has had enough of it, as in `haaw run … | head`; what is left goes nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _dispatch(arguments: Sequence[str] | None) -> int:
    try:
        status = typer.main.get_command(app)(
            args=None if arguments is None else list(arguments), prog_name="haaw", standalone_mode=False
        )
    except HaawError as error:
        return complain(str(error))
    except USAGE_ERROR as error:
        return complain(_usage_message(error))
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        raise
    except FileNotFoundError as error:
        return complain(
            f"there is no {error.filename or 'such file'}, or no folder to put it into; check the path"
        )
    except OSError as error:
        complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 3
    except MemoryError:
        return complain("there is not enough memory for this; use a smaller model or a shorter prompt")
    return status if isinstance(status, int) else 0


def _usage_message(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f"; see: {context.command_path} --help"
    return str(error.format_message()).rstrip(".") + hint  # type: ignore[attr-defined]
