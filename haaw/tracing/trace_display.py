"""A trace as it shows itself in a notebook, and `haaw trace info`: what it is of, and how to go on."""

from html import escape
from typing import TYPE_CHECKING, Any

from haaw.tracing.display import counted, duration, html_table, printable
from haaw.tracing.estimate import in_words
from haaw.tracing.steps import requests_of, step_name, step_of
from haaw.tracing.text_view import prompt_text, text_at

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

HOW_TO_GO_ON = (
    'trace.value("decode 1/layer 0/attention.weights", head=0)',
    'trace.attention("decode 1", layer=0)',
    'trace.candidates("decode 1")',
    "trace.tree()",
    "trace.replay()",
)

RECORDED_TIMES = "Times hold the work of the recorder too: most of queue and deliver is that."


def about(trace: "Trace") -> dict[str, Any]:
    """What a trace is of, as JSON values."""
    manifest, requests = trace.manifest, requests_of(trace)
    model = manifest["model"]
    return {
        "file": trace.path.name,
        "bytes": trace.container.size_bytes,
        "schema": manifest["schema"],
        "haaw": manifest.get("haaw"),
        "model": {key: model.get(key) for key in ("name", "family", "layers", "dtype", "digest")},
        "keep": manifest["policy"],
        "complete": trace.complete,
        "ends_at": ends_at(trace),
        "events": len(trace),
        "steps": len(trace.steps()),
        "took_ns": sum(step.took_ns for step in trace.steps()),
        "degraded": [
            {**(event.facts or {}), "from": step_name(trace, step_of(trace, event.number))}
            for event in trace.facts("degraded")
        ],
        "requests": [_request(trace, number) for number in requests],
        "phases": [phase.to_dict() for phase in trace.phases()],
    }


def _request(trace: "Trace", number: int) -> dict[str, Any]:
    finish = trace.facts("finish", request=number)
    return {
        "number": number,
        "prompt": prompt_text(trace, request=number),
        "text": text_at(trace, request=number),
        "steps": {stage: len(trace.steps(stage, request=number)) for stage in ("prefill", "decode")},
        "finish": finish[-1].facts if finish else None,
    }


def ends_at(trace: "Trace") -> str | None:
    """Where a trace that was not ended properly ends; None for one that was."""
    steps = trace.steps()
    if trace.complete:
        return None
    return f"event {len(trace)}, in {steps[-1].name}" if steps else "its beginning"


def html(trace: "Trace") -> str:
    """Model, prompt, answer, phases, how to go on."""
    said = about(trace)
    model = said["model"]
    state = "complete" if said["complete"] else f"not ended: it ends at {said['ends_at']}"
    rows: list[list[object]] = [
        ["model", f"{model['name']} ({model['family']})"],
        ["file", f"{said['file']}, {in_words(said['bytes'])}, {state}"],
        ["keeps", said["keep"].get("level", "?")],
        ["events", f"{said['events']:,} in {said['steps']:,} steps, {duration(said['took_ns'])}"],
    ]
    for each in said["requests"]:
        number = f" {each['number']}" if len(said["requests"]) > 1 else ""
        rows.append([f"prompt{number}", _short(each["prompt"] or "(token ids)")])
        rows.append([f"answer{number}", _short(each["text"])])
        if each["finish"]:
            rows.append([f"end{number}", each["finish"].get("reason", "?")])
    on = "".join(f"<div><code>{escape(line)}</code></div>" for line in HOW_TO_GO_ON)
    phases = trace.phases()._repr_html_()
    return f"{html_table('trace', ('', ''), rows)}{phases}<div><small>how to go on:</small></div>{on}"


def _short(text: str, most: int = 400) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def info_text(trace: "Trace") -> str:
    """The same in plain text."""
    said = about(trace)
    model, level = said["model"], said["keep"].get("level", "?")
    rules = "; ".join(said["keep"].get("rules", ()))
    lines = [
        f"{said['file']}: {in_words(said['bytes'])}, {said['events']:,} events in {said['steps']:,} steps",
        f"model    {model['name']} ({model['family']}), weights {str(model['digest'])[:16]}…",
        f"made by  HAAW {said['haaw']}, schema {said['schema']}",
        f"keeps    {level}{'; ' + rules if rules else ''}",
    ]
    for fall in said["degraded"]:
        lines.append(
            f"         {fall['now']} from {fall['from']} on, for the budget of {in_words(fall['budget_bytes'])}"
        )
    for each in said["requests"]:
        number = f" {each['number']}" if len(said["requests"]) > 1 else ""
        end = each["finish"].get("reason", "?") if each["finish"] else "not ended"
        counts = ", ".join(counted(count, f"{stage} step") for stage, count in each["steps"].items())
        lines.append(f"request{number}: {counts}, {end}")
        lines.append(f"  prompt {_short(each['prompt'] or '(token ids)', 200)!r}")
        lines.append(f"  answer {_short(each['text'], 200)!r}")
    return "\n".join([*map(printable, lines), "", str(trace.phases()), RECORDED_TIMES])
