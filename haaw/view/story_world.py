"""What was there before the request: the machine, the start-up, the model, and the operations that it is made of."""

import ast
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.ops.op import OPS

if TYPE_CHECKING:
    from haaw.view.story import Facts


def model_of(manifest: Mapping[str, Any], query_heads: int) -> dict[str, Any]:
    """The model's sizes as the trace states them, and its arrays with their bytes."""
    model = dict(manifest.get("model") or {})
    weights = []
    for name, each in (manifest.get("weights") or {}).items():
        dtype = np.dtype(each["dtype"])
        size = math.prod(each["shape"]) * dtype.itemsize
        weights.append({"name": name, "shape": list(each["shape"]), "dtype": str(dtype), "bytes": size})
    return {"query_heads": query_heads} | model | {"weights": weights}


def machine_of(manifest: Mapping[str, Any]) -> list[list[str]]:
    """What the last bits of every number depend on, as names and values."""
    known = dict(manifest.get("fingerprint") or {})
    blas = [f"{each.get('internal_api')} {each.get('version')}" for each in known.get("blas") or []]
    rows = [
        ("Python", known.get("python")),
        ("NumPy", known.get("numpy")),
        ("matrix products", ", ".join(blas)),
        ("threads", known.get("threads")),
        ("processor", known.get("machine")),
        ("system", known.get("system")),
    ]
    return [[name, str(value)] for name, value in rows if value]


def startup_of(facts: "Facts") -> list[dict[str, Any]]:
    """What happened before, in order; `depth` counts the entries that an entry lies within."""
    found: list[dict[str, Any]] = []
    open_until: list[int] = []
    for each in facts.all("journey"):
        start, took = each.get("start_ns"), each.get("took_ns")
        if start is None or took is None:
            continue
        while open_until and start >= open_until[-1]:
            open_until.pop()
        found.append({"what": each["name"], "start_ns": start, "took_ns": took, "depth": len(open_until)})
        if took:
            open_until.append(start + took)
        if up_s := (each.get("facts") or {}).get("up_s"):
            found[-1]["up_ns"] = round(up_s * 1e9)
    return found


def used_ops(names: Iterable[str], sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Card and source of every operation that ran; the source is that of the trace, where it holds it."""
    recorded = _functions(sources, frozenset(names))
    return {name: _described(name, recorded.get(name)) for name in sorted(names)}


def _described(name: str, code: str | None) -> dict[str, Any]:
    op = OPS.get(name)
    if op is None:
        return {"meaning": "", "formula": "", "source": "", "code": code or ""}
    card = op.card
    if code is None:
        try:
            code = _without_decorator(inspect.getsource(op.plain))
        except (OSError, TypeError):
            code = ""
    return {"meaning": card.meaning, "formula": card.formula, "source": card.source, "code": code}


def _functions(sources: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    """The text of the functions `names`, without their decorators."""
    found: dict[str, str] = {}
    for file, text in sources.items():
        if not file.startswith(("haaw/ops/", "haaw/caches/")) or not any(
            f"def {name}(" in text for name in names
        ):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        lines = text.splitlines()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                found[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def _without_decorator(code: str) -> str:
    at = code.find("\ndef ")
    return code if code.startswith("def ") or at < 0 else code[at + 1 :]
