"""One HTML file that follows a request, with everything in it: it works from a disk, with the network off."""

import base64
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from haaw.errors import HaawError
from haaw.view.bundle import PAGE, bundle
from haaw.view.calculator import calculator_parts
from haaw.view.content import Content, to_json, value_json
from haaw.view.source import TraceSource

ROOM_BYTES = 24 * 2**20
"""So many bytes of numbers are put into one file; what is left out says so on the page."""

FIRST_BYTES = 65_536


def export_html(source: TraceSource, out: str | Path, *, room_bytes: int = ROOM_BYTES) -> Path:
    """Writes the page for a request of a trace to `out` and returns its path.

    Values go in until `room_bytes` are used: attention weights of all steps first, then the others in their order.
    """
    out = Path(out)
    content = Content(source)
    out.write_text(page_html(bundle_of(content, room_bytes=room_bytes)), encoding="utf-8")
    return out


def bundle_of(content: Content, *, room_bytes: int = ROOM_BYTES) -> dict[str, Any]:
    """The story with its steps, as many values as there is room for, and where in the trace file the others lie."""
    story = content.story
    steps = {
        f"{each['stage']} {each['step']}": content.step(each["stage"], each["step"])
        for each in story["steps"]
    }
    values, index = _values(content, steps, room_bytes)
    written = {"story": story, **compact(steps), "values": values, "calculator": calculator_parts()}
    if index:
        written["file"] = {**_fingerprint(content.source.trace.path), "index": index}
    return written


def _values(
    content: Content, steps: dict[str, Any], room_bytes: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values by path, and for those that found no room offset, dtype, shape and axes of what the file keeps."""
    wanted = [
        (op["op"] != "softmax", output)
        for step in steps.values()
        for op in step["operations"]
        for output in op["outputs"]
    ]
    wanted.sort(key=lambda each: each[0])  # stable: within each group the order of the run stays
    values: dict[str, Any] = {}
    index: dict[str, Any] = {}
    used = 0
    for _, output in wanted:
        path, shape = output["path"], output["shape"]
        used += 4 * math.prod(shape)
        if used <= room_bytes:
            try:
                values[path] = value_json(content.source.value_of(output))
            except (HaawError, LookupError):
                continue
        elif (place := content.source.place_in_file(output)) is not None:
            index[path] = [place[0], output["dtype"], shape, output["axes"]]
    return values, index


def compact(steps: dict[str, Any]) -> dict[str, Any]:
    """Steps with what their operations share written once, since a long answer repeats it for every token.

    `templates`: operation, layer, head, part, call site, and per output name, shape, axes and dtype. A row of a step:
    template, nanoseconds, operations, bytes. A step's `prefix` stands before the names of its outputs.
    """
    templates: dict[str, int] = {}
    written: dict[str, Any] = {}
    for name, step in steps.items():
        paths = [output["path"] for op in step["operations"] for output in op["outputs"]]
        prefix = paths[0][: paths[0].index(name) + len(name)] if paths else name
        rows = []
        for op in step["operations"]:
            outputs = [
                [each["path"].removeprefix(prefix), *(each[key] for key in ("shape", "axes", "dtype"))]
                for each in op["outputs"]
            ]
            template = to_json([op["op"], op["layer"], op["head"], op["part"], op["site"], outputs])
            number = templates.setdefault(template, len(templates))
            rows.append([number, op["took_ns"], op["operations"], op["bytes"]])
        rest = {key: step[key] for key in ("choice", "why_no_choice", "held") if key in step}
        written[name] = {"prefix": prefix, "rows": rows, **rest}
    return {"templates": [json.loads(template) for template in templates], "steps": written}


def _fingerprint(path: Path) -> dict[str, Any]:
    """Name and size of the trace file, and a sum of its first bytes (FNV-1a), to know it again."""
    with open(path, "rb") as file:
        start = file.read(FIRST_BYTES)
    total = 0x811C9DC5
    for each in start:
        total = ((total ^ each) * 0x01000193) & 0xFFFFFFFF
    return {"name": path.name, "bytes": path.stat().st_size, "first": len(start), "sum": total}


def page_html(content: dict[str, Any]) -> str:
    """The page with its script, its style and its content inside, and a policy that allows nothing else."""
    script, style = "\n" + bundle(), "\n" + (PAGE / "page.css").read_text(encoding="utf-8")
    charset = '<meta charset="utf-8">'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    for old, new in (
        (charset, f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="page/page.css">', f"<style>{style}</style>"),
        ('<script type="module" src="page/main.js"></script>\n', ""),
        ("</body>", f'{_data(content)}\n<script type="module">{script}</script>\n</body>'),
    ):
        if html.count(old) != 1:
            raise HaawError(f"the page's index.html does not have {old!r} exactly once")
        html = html.replace(old, new)
    return html


def _data(content: dict[str, Any]) -> str:
    """JSON in an element that runs nothing. A `<` is written as an escape, so no text can close the element."""
    text = to_json(content).replace("<", "\\u003c")
    return f'<script type="application/json" id="bundle">{text}</script>'


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
