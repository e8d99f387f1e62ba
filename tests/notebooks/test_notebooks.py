"""The notebooks run from top to bottom, as they stand, on the built-in model; no Jupyter is needed for that."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent.parent / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_something(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "notebooks are kept without outputs"
    names: dict[str, object] = {}
    for cell in cells:
        module = ast.parse("".join(cell["source"]))
        last = module.body.pop() if isinstance(module.body[-1], ast.Expr) else None
        exec(compile(module, path.name, "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            assert shown is not None
            assert getattr(shown, "_repr_html_", shown.__repr__)()
