"""`haaw trace`: looking into a recorded run: what it is of, its tree, its operations, its values; repair and export."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from haaw.cli.output import remark, write, write_json, write_table
from haaw.errors import BadInputError

trace_app = typer.Typer(rich_markup_mode=None)

File = Annotated[Path, typer.Argument(help="A trace (.haaw).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Model = Annotated[
    str | None,
    typer.Option(help="The model that the trace was made with, where its name is not enough to find it."),
]
StepName = Annotated[str | None, typer.Option("--step", help='One step, such as "decode 5".')]
RequestNumber = Annotated[int | None, typer.Option("--request", help="One request, where there are several.")]


@trace_app.callback(invoke_without_command=True)
def trace(context: typer.Context) -> None:
    """Look into a recorded run."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@trace_app.command("info")
def info(
    file: File,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte, and the hash of every value that is kept.")
    ] = False,
    model: Model = None,
    as_json: AsJson = False,
) -> int:
    """Show what a trace is of. Exit status 1 where --verify finds something wrong, 2 for what is no usable trace."""
    from haaw.tracing.trace_display import about, info_text

    with opened(file, model) as found:
        findings = found.verify() if verify else []  # before anything trips over what is damaged
        state = state_of(found)
        if as_json:
            checked = {"damage": [finding._asdict() for finding in findings]} if verify else {}
            said = {} if findings else about(found)
            write_json({"file": found.path.name, "state": state, **said, **checked})
        elif findings:
            write(f"{found.path.name}: {len(findings)} places are damaged\n")
            write("".join(f"  {finding.sentence}\n" for finding in findings[:50]))
        else:
            write(f"{info_text(found)}\n")
            if verify:
                write("\nverified: every byte, every event, and the hash of every value that is kept\n")
        if state != "whole" and not as_json:
            remark(f"note: {sentence_of(found, state)}")
    return 1 if findings else 0


def opened(file: Path, model: str | None = None) -> Any:
    """An open trace."""
    from haaw.loading.traces import open_trace

    return open_trace(file, model)


def state_of(found: Any) -> str:
    """`whole`, `growing` (somebody writes to it now), `cut`, or `damaged` (nothing behind the place is read)."""
    if found.complete:
        return "whole"
    if found.container.cut_at is not None and not found.container.cut_at.is_torn:
        return "damaged"
    from haaw.tracing.container_files import try_lock

    with open(found.path, "rb") as file:
        return "cut" if try_lock(file.fileno()) else "growing"


def sentence_of(found: Any, state: str) -> str:
    """What a trace without an end is, and what to do."""
    from haaw.tracing.trace_display import ends_at

    where = ends_at(found)
    if state == "growing":
        return f"{found.path.name} is being written just now; so far it ends at {where}"
    if state == "damaged":
        return (
            f"{found.path.name} is damaged, and what is shown ends at {where}: {found.container.cut_at} "
            "haaw trace info --verify names every such place, haaw trace repair --out FILE copies what is whole"
        )
    if found.container.complete:
        return f"{found.path.name} is a whole file, but its run did not end properly: it ends at {where}"
    remedy = f"haaw trace repair {quote(str(found.path))}"
    return f"{found.path.name} was cut off: it ends at {where}; give it an end with: {remedy}"


@trace_app.command("tree")
def tree(
    file: File,
    depth: Annotated[int, typer.Option(help="Levels to show.", min=0)] = 2,
    step: StepName = None,
    request: RequestNumber = None,
    as_json: AsJson = False,
) -> None:
    """Show what ran, by stage, step, layer, head and part."""
    from haaw.tracing.steps import find_step

    with opened(file) as found:
        node = found.tree()
        if step is not None:
            one = find_step(found, step, request=request)
            several = found.several_requests and one.request is not None
            for label in ([f"request {one.request}"] if several else []) + [one.stage]:
                node = node[label]
            node = node if one.step is None else node[one.name]
        if as_json:
            write_json(node.to_dict(depth))
        else:
            write("\n".join(node.lines(depth)) + "\n")


@trace_app.command("ops", short_help="List the operations of a step, or sum all up.")
def ops(
    file: File,
    step: StepName = None,
    layer: Annotated[int | None, typer.Option(help="One layer of the step.")] = None,
    request: RequestNumber = None,
    as_json: AsJson = False,
) -> None:
    """List the operations of a step; without one, sum up all operations by name."""
    from haaw.tracing.ops_view import STEP_COLUMNS, SUM_COLUMNS, operations_of_step, sums_by_operation

    with opened(file) as found:
        columns: tuple[str, ...]
        dispensable: tuple[str, ...]
        if step is None:
            if layer is not None:
                raise BadInputError("--layer narrows a step; name one with --step")
            columns, rows = SUM_COLUMNS, sums_by_operation(found, request=request)
            dispensable = ("operations_per_byte", "bytes", "operations")
        else:
            columns, rows = STEP_COLUMNS, operations_of_step(found, step, layer=layer, request=request)
            dispensable = ("inputs", "site", "bytes", "op")
        if as_json:
            write_json(rows)
        else:
            write_table(columns, rows, dispensable=dispensable)


@trace_app.command("value", short_help="Show a value, kept or computed again.")
def value(
    file: File,
    path: Annotated[str, typer.Argument(help='A path, such as "decode 5/layer 3/attention.weights".')],
    head: Annotated[int | None, typer.Option(help="One head of it.")] = None,
    request: RequestNumber = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Show a value: recorded, or computed again with the model, and held against its hash."""
    from haaw.tracing.value_display import value_json

    with opened(file, model) as found:
        made = found.value(path, head, request=request)
        if as_json:
            write_json(value_json(made))
        else:
            write(f"{made}\n")


@trace_app.command("repair", short_help="Give a trace that was cut off its end.")
def repair(
    file: File,
    out: Annotated[
        Path | None,
        typer.Option(help="Copy what is whole into this file, and leave the damaged one as it is."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a trace that was cut off its end, so that ZIP tools and NumPy open it."""
    from haaw.tracing.container import repair as repaired

    report = repaired(file, out)
    if as_json:
        lost = [{"name": each.name, "sentence": each.sentence} for each in report.lost]
        write_json(
            {
                "file": str(report.path),
                "members": report.members,
                "dropped_bytes": report.dropped_bytes,
                "lost": lost,
                "changed": report.changed,
            }
        )
    else:
        write(f"{report}\n")


@trace_app.command("export", short_help="Write values for numpy.load, or the page.")
def export(
    file: File,
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    to: Annotated[str, typer.Option(help="The format: npz, or html as haaw export.")] = "npz",
    step: StepName = None,
    request: RequestNumber = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also what was not kept: computed again, with the model.")
    ] = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Write the values that a trace keeps under their paths, for numpy.load; or the page of one request."""
    from haaw.tracing.export_npz import export_npz

    if to == "html":
        from haaw.cli.view import write_page

        if step is not None or recompute:
            raise BadInputError("--step and --recompute are for npz; an HTML page has all steps")
        write_page(file, out, model=model, request=request, as_json=as_json)
        return
    if to != "npz":
        raise BadInputError(f'--to is {to!r:.40}; the formats are "npz" and "html"')
    with opened(file, model) as found:
        report = export_npz(found, out, step=step, request=request, recompute=recompute)
        if as_json:
            write_json(report._asdict())
        else:
            write(f"{out} has {report.values:,} values, {report.bytes:,} bytes\n")
        if report.left_out and not as_json:
            remark(f"note: {report.left_out:,} values were not kept; --recompute computes them again")
