"""All operations by name, also those of modules that nobody has imported yet."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from haaw.ops.op import OPS, Op

PACKAGES = ("haaw.ops", "haaw.caches")
"""Where operations are defined; looked at by name, since this module may not depend on caches."""


def all_operations() -> Mapping[str, Op]:
    """Every operation of HAAW, and those that the program at hand has defined."""
    _import_all()
    return OPS


@cache
def _import_all() -> None:
    for name in PACKAGES:
        for module in iter_modules(import_module(name).__path__):
            import_module(f"{name}.{module.name}")
