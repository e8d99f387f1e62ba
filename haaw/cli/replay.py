"""`haaw trace replay`: runs recorded operations again, or a learner's function in their place."""

import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from haaw.cli.output import bar, write, write_json
from haaw.cli.trace import AsJson, File, Model, RequestNumber, opened
from haaw.errors import BadInputError


def replay(
    file: File,
    op: Annotated[str | None, typer.Option(help="Only this operation, such as softmax.")] = None,
    using: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="Your own function in the place of --op, judged call by call."
        ),
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage: prefill or decode.")] = None,
    step: Annotated[int | None, typer.Option(help="Only steps of this number.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, where heads were run one by one.")] = None,
    request: RequestNumber = None,
    model: Model = None,
    as_json: AsJson = False,
) -> int:
    """Run operations again and compare them with what was recorded, bit for bit.

    Exit status 1 where anything differs that should not.
    """
    # What a learner's function prints is no part of the JSON.
    with redirect_stdout(sys.stderr) if as_json else nullcontext(), opened(file, model) as trace:
        function = None if using is None else function_from(using)
        if model is not None:
            trace.weights()  # a model that was named, and is not the one of the trace, is refused
        # Without the weights everything is replayed that can be, and the report says what could not.
        with bar("replaying", of="steps") as progress:
            report = trace.replay(
                op,
                using=function,
                request=request,
                stage=stage,
                step=step,
                layer=layer,
                head=head,
                progress=progress,
            )
    if as_json:
        write_json(report.to_dict())
    else:
        write(f"{report}\n")
    return 0 if report.ok else 1


def function_from(place: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names; the file is run, as it is the user's own, and may import its neighbours.

    Errors: `BadInputError` for another form, a file that is not there or fails, or a name that it does not have.
    """
    path, colon, name = place.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise BadInputError(f"--using is {place!r:.80}; write FILE.py:NAME, such as my_ops.py:my_softmax")
    if not Path(path).is_file():
        raise BadInputError(f"--using names {path}, and there is no such file")
    # Under a name and behind everything else on the path, so that a file json.py or haaw.py takes nobody's place.
    spec = importlib.util.spec_from_file_location(f"_learner_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInputError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise BadInputError(f"{path} has no function {name}")
    found: Callable[..., Any] = function
    return found
