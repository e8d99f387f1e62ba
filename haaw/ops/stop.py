"""Where a debugger stops for `break_at`; apart from `haaw.ops.op`, which debuggers are told to skip."""

import os
import pdb
import sys
from collections.abc import Callable
from typing import Any

SKIPPED = ["haaw.ops.op", "haaw.ops.shapes", "haaw.ops.breakpoints"]


class _Debugger(pdb.Pdb):
    """Python's debugger, which stops on the first line of a function and not on its call as well."""

    def user_call(self, frame: Any, argument_list: None) -> None:
        """Waits for the first line."""


def stop_in(plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs `plain` and stops in it.

    Python's own debugger passes over this module and so stops on its first line. Any other (an IDE's,
    IPython's, one named in `PYTHONBREAKPOINT`) stops here: step into the next line.
    """
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        _Debugger(skip=[*SKIPPED, __name__]).set_trace()
    else:
        breakpoint()
    return plain(*args, **kwargs)
