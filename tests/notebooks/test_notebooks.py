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
    if "haaw.view" in path.read_text():
        pytest.importorskip("matplotlib")
        pytest.importorskip("anywidget")
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
            ways = (getattr(shown, name, None) for name in ("_repr_html_", "_repr_png_", "__repr__"))
            assert any(way() for way in ways if way is not None)
