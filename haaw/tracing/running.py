"""Running one recorded operation: found by its name, given what the file says, and whatever it raises told apart."""

from collections.abc import Mapping
from typing import Any

from haaw.errors import BadInputError, HaawError
from haaw.ops.op import Op
from haaw.ops.vocabulary import all_operations
from haaw.tracing.container import TraceDamagedError


class NotRecordedError(HaawError):
    """What a computation starts from is not in the trace."""


class CannotRunError(TraceDamagedError):
    """An operation does not take what the trace says that it was given."""


def operation(name: str) -> Op:
    """An operation of this HAAW by name. Errors: `BadInputError` for one that it does not have."""
    found = all_operations().get(name)
    if found is None:
        raise BadInputError(
            f'this HAAW has no operation "{name}", which the trace has; use the version that made it'
        )
    return found


def run_plain(op: Op, arguments: Mapping[str, Any], file_name: str, event: int) -> Any:
    """Runs an operation on what a file says that it was given. Errors: `CannotRunError`, whatever it raises."""
    try:
        return op.plain(**arguments)
    except HaawError:
        raise
    except Exception as error:
        raise CannotRunError(
            f"{op.name} cannot be run on what event {event} of {file_name} holds ({type(error).__name__}: "
            f"{error!s:.200}); the file is damaged, or of another version"
        ) from error
