"""`break_at`: stops an ordinary debugger inside an operation, with its arrays in hand."""

import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from haaw.arrays import Array
from haaw.errors import BadInputError
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope
from haaw.ops.stop import stop_in
from haaw.ops.vocabulary import all_operations

STAGES = ("prefill", "decode")
COUNTED = ("step", "layer", "head")
_ACTIVE: list["Breakpoint"] = []


class Breakpoint:
    """A place to stop at, for every request made until `clear()` or the end of its `with` block."""

    def __init__(self, op: str | None, where: Mapping[str, Any]) -> None:
        self.op = op
        self.where = dict(where)
        self.hits = 0

    def matches(self, op: Op, scope: Scope) -> bool:
        """Whether an operation in a scope is the place."""
        return self.op in (None, op.name) and all(
            getattr(scope, name) == value for name, value in self.where.items()
        )

    def clear(self) -> None:
        """Stops no more."""
        if self in _ACTIVE:
            _ACTIVE.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        if error is None and not self.hits:
            warnings.warn(f"never reached: {self!r}", stacklevel=2)

    def __repr__(self) -> str:
        place = ", ".join(f"{name}={value!r}" for name, value in self.where.items())
        state = "set" if self in _ACTIVE else "cleared"
        return f"<breakpoint {self.op or 'any op'} ({place}) {state}, {self.hits} hits>"


def break_at(op: str | None = None, **where: Any) -> Breakpoint:
    """Stops a debugger in each operation that fits, as in `break_at(op="softmax", layer=3, step=2)`.

    `where` may name stage ("prefill" or "decode"), step, layer, head (with heads="separate") and part.
    Holds for requests made afterwards, in any thread, until `clear()` or the end of a `with` block, which warns
    where it was never reached. Errors: `BadInputError` for an unknown operation or an impossible place.
    """
    if op is not None and op not in all_operations():
        raise BadInputError(f'there is no operation "{op}"; there are: {", ".join(sorted(all_operations()))}')
    known = [name for name in Scope._fields if name not in ("sequence", "request")]  # there is one of each
    for name in where:
        if name not in known:
            raise BadInputError(f'a breakpoint has no place "{name}"; it may have: {", ".join(known)}')
        if name == "stage" and where[name] not in STAGES:
            raise BadInputError(f"stage is {where[name]!r:.40}; it is one of {', '.join(STAGES)}")
        if name in COUNTED and (type(where[name]) is not int or where[name] < 0):
            raise BadInputError(f"{name} is {where[name]!r:.40}; it is a whole number from 0 on")
    point = Breakpoint(op, where)
    _ACTIVE.append(point)
    return point


def with_breakpoints(recorder: Recorder | None) -> Recorder | None:
    """`recorder`, wrapped so that it stops at the breakpoints that are set; itself where none is."""
    return _Stopping(recorder) if _ACTIVE else recorder


class _Stopping(Recorder):
    """A recorder that stops at breakpoints and passes everything on to another, if there is one."""

    def __init__(self, inner: Recorder | None) -> None:
        self._inner = inner

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        if points := [point for point in _ACTIVE if point.matches(op, scope)]:
            for point in points:
                point.hits += 1
            plain = op.plain
            op = Op(op.name, lambda *a, **k: stop_in(plain, a, k), op.parameters, op.out, op.writes, op.card)
        if self._inner is None:
            return op.plain(*args, **kwargs)
        return self._inner.run(op, args, kwargs, scope)

    def declare(self, name: str, array: Array, scope: Scope) -> None:
        if self._inner is not None:
            self._inner.declare(name, array, scope)

    def know_weights(self, weights: Mapping[str, Array]) -> None:
        if self._inner is not None:
            self._inner.know_weights(weights)

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        if self._inner is not None:
            self._inner.emit(kind, facts, scope)

    def number_request(self) -> int | None:
        return None if self._inner is None else self._inner.number_request()

    def know_model(self, facts: Mapping[str, Any]) -> None:
        if self._inner is not None:
            self._inner.know_model(facts)

    @property
    def closed(self) -> bool:
        return self._inner is not None and self._inner.closed

    def postpone(self, work: Callable[[], None]) -> bool:
        return self._inner is not None and self._inner.postpone(work)

    def begin_step(self, scope: Scope) -> None:
        if self._inner is not None:
            self._inner.begin_step(scope)

    def end_step(self, scope: Scope) -> None:
        if self._inner is not None:
            self._inner.end_step(scope)
