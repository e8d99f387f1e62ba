"""`haaw view` and `haaw export`: the page that follows one request, served from this machine or as one file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from haaw.cli.output import remark, write_json
from haaw.errors import BadInputError

File = Annotated[Path, typer.Argument(help="A trace (.haaw).")]
Model = Annotated[
    str | None,
    typer.Option(help="The model that the trace was made with, where its name is not enough to find it."),
]
RequestNumber = Annotated[int | None, typer.Option("--request", help="One request, where there are several.")]


def view(
    file: File,
    model: Model = None,
    request: RequestNumber = None,
    port: Annotated[int, typer.Option(help="The port; 0 takes any free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> int:
    """Follow one request of a trace on a page, from the prompt to the answer."""
    from haaw.view.server import TraceServer

    with _opened(file, model) as trace, TraceServer(_source(trace, request), port=port) as server:
        remark(f"haaw view: {server.address}")
        remark("Ctrl-C ends it; the address works on this machine only.")
        if browser:
            import webbrowser

            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def export(
    file: File,
    html: Annotated[Path, typer.Option("--html", help="Where to write the page.")],
    model: Model = None,
    request: RequestNumber = None,
    room: Annotated[
        int, typer.Option("--room", help="MiB of numbers that go into the file.", min=0, max=512)
    ] = 24,
) -> None:
    """Write the page of one request as one HTML file that needs no network."""
    write_page(file, html, model=model, request=request, room=room)


def write_page(
    file: Path,
    html: Path,
    *,
    model: str | None = None,
    request: int | None = None,
    room: int = 24,
    as_json: bool = False,
) -> None:
    """What `haaw export FILE --html OUT` and `haaw trace export FILE --to html OUT` do."""
    from haaw.view.export import export_html

    if html.resolve() == file.resolve():
        raise BadInputError(
            f"the page would take the place of the trace itself, {file}; give it a name of its own"
        )
    with _opened(file, model) as trace:
        source = _source(trace, request)
        export_html(source, html, room_bytes=room * 2**20)
    if source.differing:
        remark(
            f"note: {source.differing:,} values were computed again here and differ in their last bits from what ran; "
            "the page says so beside each"
        )
    size = html.stat().st_size
    if as_json:
        write_json({"html": str(html), "bytes": size})
    remark(f"the page is in {html} ({size / 2**20:.1f} MiB); open it in a browser, it needs no network")


def _opened(file: Path, model: str | None) -> Any:
    from haaw.loading.traces import open_trace

    return open_trace(file, model)


def _source(trace: Any, request: int | None) -> Any:
    from haaw.view.source import TraceSource

    return TraceSource(trace, request)
