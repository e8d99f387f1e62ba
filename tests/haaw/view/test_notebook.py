"""The widget: the page in a notebook's cell, which asks Python for what it does not bring along."""

import base64
import json
import re
import sys
from typing import Any

import numpy as np
import pytest

import haaw
from haaw.errors import BadInputError, MissingLibraryError
from haaw.tracing.record import record
from haaw.view.bundle import PAGE
from haaw.view.notebook import widget

pytest.importorskip("anywidget")
pytest.importorskip("matplotlib")

PATH = "decode 2/layer 1/attention.weights"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("widget") / "run.haaw"
    model = haaw.load()
    with record(path):
        model.generate("Ella had a red ball.", form="raw", max_tokens=5, seed=1)
    with haaw.open_trace(path, model) as opened:
        yield opened


def asked(view, **question):
    """What the widget answers to a question of its page."""
    said: list[Any] = []
    view.send = said.append
    view._handle_custom_msg({"haaw": "ask", "number": 7, **question}, [])
    assert [(each["haaw"], each["number"]) for each in said] == [("said", 7)]
    return said[0]["said"]


def bundle_in(view):
    found = re.search(r'<script type="application/json" id="bundle">(.*?)</script>', view.page, re.DOTALL)
    return json.loads(found[1])


def test_a_value_that_is_asked_for_is_that_of_the_trace(trace):
    said = asked(widget(trace), what="value", path=PATH, head=None)
    numbers = np.frombuffer(base64.b64decode(said["data"]), "<f4").reshape(said["shape"])
    np.testing.assert_array_equal(numbers, trace.value(PATH).array)


def test_a_step_that_is_asked_for_has_its_operations(trace):
    said = asked(widget(trace), what="step", stage="decode", step=2)
    step = next(each for each in trace.steps("decode") if each.step == 2)
    there = [event for event in map(trace.event, range(step.first, step.end)) if event.kind == "operation"]
    assert [each["op"] for each in said["operations"]] == [event.name for event in there]


@pytest.mark.parametrize(
    "question",
    [
        {"what": "value", "path": "decode 99/nothing"},
        {"what": "value", "path": ["x"]},
        {"what": "value"},
        {"what": "step", "stage": "decode", "step": "2"},
        {"what": "step", "stage": {}, "step": None},
    ],
)
def test_a_question_about_nothing_is_answered_with_a_sentence(trace, question):
    assert asked(widget(trace), **question)["error"].startswith("the trace has no")


def test_what_is_no_question_is_not_answered(trace):
    view = widget(trace)
    answers = []
    view.send = lambda *content: answers.append(content)
    for message in ({}, {"haaw": "said"}, [], "ask", None):
        view._handle_custom_msg(message, [])
    assert answers == []


def test_a_trace_that_was_closed_is_said_to_be(trace, tmp_path):
    with haaw.open_trace(trace.path, haaw.load()) as closed:
        view = widget(closed)
    said = asked(view, what="value", path=PATH)
    assert "open it again" in said["error"]
    assert "image/png" not in view._repr_mimebundle_()[0] or view._picture() is not None


def test_numbers_stay_outside_unless_there_is_room_for_them(trace):
    assert bundle_in(widget(trace))["values"] == {}
    inside = bundle_in(widget(trace, inside_mib=1))
    assert PATH in inside["values"]
    assert "decode 2" in inside["steps"]
    assert "file" not in inside


def test_where_no_widget_runs_there_is_a_picture_with_a_sentence(trace):
    data, metadata = widget(trace)._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in data
    assert metadata["image/png"]["alt"].startswith("Phases of")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"height": 10}, "height is 10; .* from 200"),
        ({"height": "700"}, "height is '700'"),
        ({"inside_mib": 1e9}, "from 0 to 64"),
        ({"request": 4}, "no request 4"),
    ],
)
def test_options_that_make_no_widget_are_errors(trace, options, words):
    with pytest.raises(BadInputError, match=words):
        widget(trace, **options)


def test_without_anywidget_the_error_names_the_extra(trace, monkeypatch):
    monkeypatch.delitem(sys.modules, "haaw.view.notebook_view", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MissingLibraryError, match=r"haaw\[notebooks\]"):
        widget(trace)


NOTEBOOK = """
window.start = async ({ page, height, esm }) => {
  const { default: made } = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const listeners = {};
  const model = {
    get: (name) => ({ page, height })[name],
    on: (name, listener) => (listeners[name] = listener),
    off: (name) => delete listeners[name],
    send: async (message) => listeners["msg:custom"](await window.python(message)),
  };
  window.clean = made.render({ model, el: document.getElementById("cell") });
  window.listeners = listeners;
};
"""
"""As much of a notebook as a widget sees: a model with values, messages, and an element."""


@pytest.mark.browser
def test_the_page_in_a_cell_shows_values_that_it_asked_for(trace, chromium, tmp_path):
    view = widget(trace, height=600)
    heard: list[Any] = []

    def python(message):
        heard.append(message)
        said = asked(view, **{key: value for key, value in message.items() if key not in ("haaw", "number")})
        return {"haaw": "said", "number": message["number"], "said": said}

    from playwright.sync_api import expect

    file = tmp_path / "notebook.html"
    file.write_text(
        '<!doctype html><meta charset="utf-8"><title>n</title><div id="cell"></div>', encoding="utf-8"
    )
    context = chromium.new_context(
        viewport={"width": 1000, "height": 900}, offline=True, reduced_motion="reduce"
    )
    try:
        page = context.new_page()
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.expose_function("python", python)
        page.goto(file.as_uri())
        page.add_script_tag(content=NOTEBOOK)
        esm = (PAGE / "widget.js").read_text(encoding="utf-8")
        page.evaluate("start", {"page": view.page, "height": view.height, "esm": esm})
        frame = page.frame_locator("iframe")
        frame.locator("html[data-warm=true][data-waiting='0']").wait_for(state="attached", timeout=20_000)
        frame.locator("nav.stages a", has_text="Decode").click()
        frame.locator("html[data-state*='stage=decode'][data-waiting='0']").wait_for(state="attached")
        expect(frame.locator("section#decode .waiting")).to_have_count(0)
        assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
        assert page.locator("iframe").bounding_box()["height"] == pytest.approx(602, abs=3)
        assert {each["what"] for each in heard} == {"step", "value"}
        assert "had a red ball" in frame.locator("h1").inner_text()
        assert errors == []
        page.evaluate("clean()")
        assert page.evaluate("Object.keys(listeners)") == []
    finally:
        context.close()
