"""`haaw.view.widget`: the page that follows a request, in a cell of a notebook (anywidget, extra `notebooks`)."""

from typing import TYPE_CHECKING

from haaw.errors import BadInputError, MissingLibraryError

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace
    from haaw.view.notebook_view import NotebookView

HEIGHTS = (200, 4000)
MOST_MIB = 64


def widget(
    trace: "Trace", *, request: int | None = None, height: int = 720, inside_mib: float = 0
) -> "NotebookView":
    """The page of one request as a widget; arrays come from Python as they are looked at, so keep the trace open.

    `height` in pixels. With `inside_mib`, the steps and so many MiB of numbers go into the notebook, and can be
    looked at without a kernel. Where widgets do not run, a picture of the phases stands in its place. Errors:
    `BadInputError` for a request that is not there, `MissingLibraryError` without anywidget.
    """
    if isinstance(height, bool) or not isinstance(height, int) or not HEIGHTS[0] <= height <= HEIGHTS[1]:
        raise BadInputError(
            f"height is {height!r:.40}; it is a number of pixels from {HEIGHTS[0]} to {HEIGHTS[1]:,}"
        )
    if (
        isinstance(inside_mib, bool)
        or not isinstance(inside_mib, int | float)
        or not 0 <= inside_mib <= MOST_MIB
    ):
        raise BadInputError(f"inside_mib is {inside_mib!r:.40}; it is a number from 0 to {MOST_MIB}")
    try:
        from haaw.view.notebook_view import NotebookView
    except ImportError as error:
        raise MissingLibraryError("a widget needs anywidget: pip install 'haaw[notebooks]'") from error
    from haaw.view.source import TraceSource

    return NotebookView(TraceSource(trace, request), height=height, room_bytes=round(inside_mib * 2**20))
