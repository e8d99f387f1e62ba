"""What the results of an operation are called at the call: the variables on the left, without their suffixes."""

import ast
from collections.abc import Mapping

from haaw.ops.shapes import suffix

Place = tuple[int, int, int, int]
"""First line, first column, last line and last column of a call."""


class CallNames:
    """Looks up names in the source texts that a trace carries; each text is parsed once, when it is first asked for."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._calls: dict[str, dict[Place, tuple[str, ...]]] = {}

    def at(self, file: str, place: Place) -> tuple[str, ...]:
        """The names of the results of the call at a place; empty where they are given none."""
        if file not in self._calls:
            self._calls[file] = _named_calls(self._sources.get(file, ""))
        return self._calls[file].get(place, ())


def _named_calls(text: str) -> dict[Place, tuple[str, ...]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    calls: dict[Place, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = _names(targets[0]) if len(targets) == 1 else ()
        for call in _calls_giving(node.value):
            place = call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0
            calls[place] = names
    return calls


def _calls_giving(value: ast.expr | None) -> list[ast.Call]:
    """The calls whose result is the value of an expression: the call itself, or either arm of a choice."""
    if isinstance(value, ast.Call):
        return [value]
    if isinstance(value, ast.IfExp):
        return [*_calls_giving(value.body), *_calls_giving(value.orelse)]
    return []


def _names(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (bare(target.id),)
    if isinstance(target, ast.Tuple) and all(isinstance(each, ast.Name) for each in target.elts):
        return tuple(bare(each.id) for each in target.elts if isinstance(each, ast.Name))
    return ()


def bare(name: str) -> str:
    """A name without its shape suffix: `bare("query_THC") == "query"`."""
    letters = suffix(name)
    return name if letters is None else name[: -len(letters) - 1]
