"""Values of a trace under their paths in one `.npz` file, written one by one so that they need not fit in memory."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.outputs import named_outputs
from haaw.tracing.paths import Found
from haaw.tracing.steps import StepLike, find_step, the_request
from haaw.tracing.values import of_output

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace


class Exported(NamedTuple):
    """How many values a file got, their bytes, and how many were left out since they were not kept."""

    values: int
    bytes: int
    left_out: int


def export_npz(
    trace: "Trace",
    out: Path,
    *,
    step: StepLike | None = None,
    request: int | None = None,
    recompute: bool = False,
) -> Exported:
    """Writes what was kept, or with `recompute` everything, of one step or of all. An unfinished file does not stay.

    Errors: `BadInputError` where `out` is there already or cannot be written, or a value cannot be computed.
    """
    number = the_request(trace, request) if request is not None else None
    steps = trace.steps(request=number) if step is None else [find_step(trace, step, request=request)]
    try:
        target = zipfile.ZipFile(out, "x", zipfile.ZIP_STORED, allowZip64=True)
    except FileExistsError:
        raise BadInputError(f"{out} exists already; give another path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{out} cannot be written: {reason}; give another path") from None
    values = nbytes = left_out = 0
    try:
        with target:
            for each in steps:
                for named in named_outputs(trace, each):
                    if not recompute and not named.event.outputs[named.output].is_kept:
                        left_out += 1
                        continue
                    made = of_output(trace, Found(named.path, named.event, named.output, None)).array
                    with target.open(f"{named.path}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, np.ascontiguousarray(made), allow_pickle=False)
                    values += 1
                    nbytes += int(made.nbytes)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    return Exported(values, nbytes, left_out)
