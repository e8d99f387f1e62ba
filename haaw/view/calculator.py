"""The memory calculator as one HTML file that needs no network: page, style, arithmetic and presets put together."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from haaw.memory.plan import Plan
from haaw.memory.presets import PRESETS
from haaw.memory.shape import CacheShape

OPTIONAL = ("window", "capacity", "memory_bytes")
"""None in Python, 0 in a link."""


def calculator_html(plan: Plan | None = None, *, recorded: Mapping[str, Any] | None = None) -> str:
    """The page, opened on a plan (the reference case without one).

    `recorded` adds a line that holds a trace against the arithmetic: `setting` (as `setting_of` gives it), `kind`,
    `context` and the `allocated_bytes` of one sequence.
    """
    html, style, *scripts = map(_file, (".html", ".css", "_arithmetic.js", "_drawing.js", ".js", "_page.js"))
    data = {
        "presets": preset_settings(),
        "setting": None if plan is None else setting_of(plan),
        "assumptions": [] if plan is None else list(plan.assumptions),
        "recorded": None if recorded is None else dict(recorded),
    }
    parts = {
        "/* calculator.css */": style,
        '<script type="application/json" id="calculator-data">{}': (
            '<script type="application/json" id="calculator-data">' + _as_script(data)
        ),
        "/* calculator.js */": "\n".join(map(_without_imports, scripts)),
    }
    for place, content in parts.items():
        before, _, after = html.partition(place)
        html = before + content + after
    return html


def calculator_parts() -> dict[str, Any]:
    """What the page that follows a request needs to open the calculator: `html`, `css`, and the presets as `data`."""
    _, _, behind = _file(".html").partition("<main>")
    main, _, _ = behind.partition("</main>")
    return {"html": main, "css": _file(".css"), "data": {"presets": preset_settings()}}


def preset_settings() -> list[dict[str, Any]]:
    """The presets as the page knows them."""
    return [
        {
            "name": preset.name,
            "title": preset.title,
            "source": preset.source,
            "setting": {
                **shape_setting(preset.shape),
                "context": preset.context,
                "weights_bytes": preset.weights_bytes,
            },
        }
        for preset in PRESETS.values()
    ]


def setting_of(plan: Plan) -> dict[str, Any]:
    """A plan as the page's setting: plain numbers and texts, 0 for None."""
    own = {name: getattr(plan, name) for name in ("context", "sequences", "weights_bytes")}
    own |= {name: getattr(plan, name) or 0 for name in ("capacity", "memory_bytes")}
    return {**shape_setting(plan.shape), "sinks": plan.shape.sinks, "block_size": plan.shape.block_size} | {
        **own,
        "cache": plan.kind,
    }


def shape_setting(shape: CacheShape) -> dict[str, Any]:
    """The part of a setting that is the model's own."""
    names = ("layers", "kv_heads", "head_dim", "pattern", "latent_width", "rope_width")
    element = float(shape.bytes_per_element)
    return {
        **{name: getattr(shape, name) for name in names},
        "window": shape.window or 0,
        "bytes_per_element": int(element) if element.is_integer() else element,
    }


def _file(name: str) -> str:
    return (files("haaw.view") / "page" / f"calculator{name}").read_text(encoding="utf-8")


def _as_script(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element that it stands in, nor begin a comment there."""
    return json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")


def _without_imports(script: str) -> str:
    """A script without its imports: in one file, what it imports stands before it."""
    lines = script.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("import "))
