"""The page's modules as one script: `file://` allows no external modules, so an export carries them inline.

A module of the page imports names from its neighbours and exports functions, classes and constants, one a
declaration; nothing else. Each becomes a function that is called once and returns what it exports, behind the
modules that it imports. The code itself stays as it is, word for word.
"""

import re
from pathlib import Path

from haaw.errors import HaawError

PAGE = Path(__file__).parent / "page"

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


class BundleError(HaawError):
    """The page's modules cannot be put into one script. A fault of the page, not of a trace."""


def bundle(main: str = "main.js", folder: Path = PAGE) -> str:
    """`main` and all that it imports, in one script."""
    order: list[str] = []
    _visit(main, folder, order, ())
    script = "\n".join(_wrapped(name, (folder / name).read_text(encoding="utf-8")) for name in order)
    if re.search(r"^\s*(import\b(?!\()|export\b)", script, re.MULTILINE):
        raise BundleError("a module uses a form of import or export that the bundler does not know")
    return script


def _wrapped(name: str, source: str) -> str:
    exported = [each for _, each in _EXPORT.findall(source)]
    inside = _IMPORT.sub(lambda found: f"const {{{_renamed(found[1])}}} = {_variable(found[2])};", source)
    inside = _EXPORT.sub(r"\1", inside).strip()
    return f"// {name}\nconst {_variable(name)} = (() => {{\n{inside}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _renamed(names: str) -> str:
    return names.replace(" as ", ": ")


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


def _visit(name: str, folder: Path, order: list[str], above: tuple[str, ...]) -> None:
    """Appends `name` behind everything that it imports."""
    if name in order:
        return
    if name in above:
        raise BundleError(f"the modules {' -> '.join([*above, name])} import each other in a ring")
    source = (folder / name).read_text(encoding="utf-8")
    for _, other in _IMPORT.findall(source):
        _visit(other, folder, order, (*above, name))
    order.append(name)
