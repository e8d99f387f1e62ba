"""The decorator `@op`, alone in its module so that a debugger can be told to walk past it.

With nobody listening, calling an operation costs one `ContextVar` look-up more than the plain function.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, ParamSpec, TypeVar

from haaw.ops.card import Card
from haaw.ops.recorder import LISTENING
from haaw.ops.shapes import checked

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of the vocabulary: its plain function, and what its arguments and results are called."""

    name: str
    plain: Callable[..., Any] = field(repr=False)
    parameters: tuple[str, ...]
    out: tuple[str, ...]
    writes: str | None
    card: Card = field(repr=False)

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """What a call gave for a parameter, by position or by name; None if nothing."""
        slot = self.parameters.index(name)
        return args[slot] if slot < len(args) else (kwargs or {}).get(name)


OPS: dict[str, Op] = {}
"""Every operation by name."""

_get = LISTENING.get
frame_at = sys._getframe


def op(
    *, out: str | tuple[str, ...] = (), writes: str | None = None, card: Card
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a plain function an operation that recorders see.

    `out` names the results with their shape suffixes. `writes` names the one argument that the
    operation changes in place (only in `haaw.caches`). The plain function stays reachable as `.op.plain`.
    Errors: `TypeError` where a name is taken twice or a parameter is missing.
    """
    results = (out,) if isinstance(out, str) else out

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        parameters = tuple(inspect.signature(function).parameters)
        if name in OPS or (writes is not None and writes not in parameters):
            raise TypeError(f"operation {name}: taken twice, or it has no parameter {writes!r}")
        plain: Callable[P, R] = function
        if os.environ.get("HAAW_CHECK_SHAPES") == "1":
            plain = checked(name, parameters, results, function)
        this = Op(name, plain, parameters, results, writes, card)
        OPS[name] = this

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            __debuggerskip__ = False  # that it is a local name lets IPython's debugger pass over this frame
            listening = _get()
            if listening is None:
                return plain(*args, **kwargs)
            held = listening.held
            if held is None:
                answer: R = listening.recorder.run(this, args, kwargs, listening.scope)
                return answer
            # Between two matrix products each line of Python is read from memory: the fewer, the better.
            scope = listening.scope
            start = perf_counter_ns()
            result = plain(*args, **kwargs)
            end = perf_counter_ns()
            caller = frame_at(1)
            held.extend((
                this, args, kwargs or None, scope, result, start, end, caller.f_code, caller.f_lasti
            ))  # fmt: skip
            if end > held.due_ns:
                listening.recorder.look(end)
            return result

        run.op = this  # type: ignore[attr-defined]
        return run

    return decorate
