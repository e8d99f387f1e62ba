"""Where a debugger stops for `break_at`; apart from `haaw.ops.op`, which debuggers are told to skip."""

import os
import pdb
import sys
from collections.abc import Callable
from typing import Any

SKIPPED = ["haaw.ops.op", "haaw.ops.shapes", "haaw.ops.breakpoints"]


def stop_in(plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs `plain` and stops in it.

    Python's own debugger stops on its first line. Any other (an IDE's, IPython's, one named in
    `PYTHONBREAKPOINT`) stops here: step into the next line.
    """
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        return pdb.Pdb(skip=SKIPPED).runcall(plain, *args, **kwargs)
    breakpoint()
    return plain(*args, **kwargs)
