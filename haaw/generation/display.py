"""How a model, a request and an answer show themselves in a notebook: small HTML, all of a stranger's text escaped."""

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from haaw.generation.answer import Answer
from haaw.generation.phases import PHASES

PART_OF_A_CHARACTER = "<small>▸</small>"
_SURE = "31, 119, 180"
_ROW = '<tr><th style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>'


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A captioned table of names and values."""
    body = "".join(_ROW.format(escape(name), escape(str(value))) for name, value in rows)
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def fragments(token_bytes: Sequence[bytes]) -> list[str]:
    """The text that each token completes; a token that ends within a character has none yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = len(token_bytes) - 1
    return [decoder.decode(piece, final=number == last) for number, piece in enumerate(token_bytes)]


def coloured_tokens(answer: Answer) -> str:
    """The answer's tokens one by one: the surer the model was, the stronger the blue; below 10 % dotted as well."""
    chances = [math.exp(each.log_probability) for each in answer.log_probabilities]
    spans = []
    for number, (token_id, text) in enumerate(
        zip(answer.token_ids, fragments(answer.token_bytes), strict=True)
    ):
        label, style = f"token {token_id}", ""
        if number < len(chances):
            label += f", probability {chances[number]:.3f}"
            style = f"background: rgba({_SURE}, {0.45 * chances[number]:.2f});"
            style += "text-decoration: underline dotted;" if chances[number] < 0.1 else ""
        shown = escape(text) if text else PART_OF_A_CHARACTER
        spans.append(f'<span title="{label}" style="{style}">{shown}</span>')
    return f'<div style="white-space: pre-wrap">{"".join(spans)}</div>'


def phase_bar(timing_s: Mapping[str, float]) -> str:
    """The phases of a request as one bar, with their seconds in words."""
    total_s = max(timing_s["total"], 1e-9)
    shades = ("#4c78a8", "#b279a2", "#f58518", "#54a24b", "#9d755d")
    pieces = "".join(
        f'<span title="{phase} {timing_s[phase]:.3f} s" style="height:0.8em;'
        f'width:{100 * timing_s[phase] / total_s:.2f}%;background:{shade}"></span>'
        for phase, shade in zip(PHASES, shades, strict=True)
    )
    words = " · ".join(
        f'<span style="color:{shade}">■</span> {phase} {timing_s[phase]:.3f} s'
        for phase, shade in zip(PHASES, shades, strict=True)
    )
    return f'<div style="width:100%;display:flex">{pieces}</div><div>{words}</div>'


def answer_html(answer: Answer) -> str:
    """Tokens, phases and end state of an answer."""
    finish = answer.finish
    evidence = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in finish.evidence.items()
    )
    state = "complete" if finish.complete else "partial" if finish.reason != "length" else "cut at the limit"
    usage = f"{answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} new"
    end = f"<div><b>{escape(finish.reason)}</b> ({escape(evidence)}), {state} · {usage}</div>"
    legend = "the surer the model was of a token, the stronger the blue; dotted: below 10 %; ▸: part of a character"
    if not answer.log_probabilities:
        legend = "logprobs=0 colours the tokens by probability"
    hint = f"<div><small>{legend}</small></div>"
    return coloured_tokens(answer) + phase_bar(answer.timing_s) + end + hint
