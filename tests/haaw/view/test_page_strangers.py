"""Text of strangers is text on the page, and what is broken or missing leaves the rest as it is."""

import json

import pytest

from haaw.view.content import Content
from haaw.view.export import bundle_of, export_html, page_html

pytestmark = pytest.mark.browser

STAGES = ["start", "weights", "prompt", "tokens", "prefill", "cache", "decode", "choose", "deliver", "end"]

HOSTILE = (
    "\u202e</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'><!-- "
    "\u202eevil\u2066 &amp; <b>bold</b>"
)


def hostile_file(source, tmp_path, text):
    """The page of a request in which everything that a stranger may write says `text`."""
    content = bundle_of(Content(source))
    story = content["story"]
    messages, parts = [{"role": text, "content": text}], [{"text": text, "role": text}]
    story["prompt"] = {"form": "chat", "text": text, "messages": messages, "parts": parts}
    for token in story["tokens"]:
        token["text"] = text
    story["text"] = text
    story["model"] = {**story["model"], "name": text}
    story["deliveries"] = [
        {**each, "text": text, "held_text": text, "shown_before": 0} for each in story["deliveries"]
    ]
    story["finish"] = {"reason": text, "complete": False, "evidence": {text: text}}
    for step in content["steps"].values():
        for each in step["choice"]["candidates"]:
            each["text"] = text
    path = tmp_path / "hostile.html"
    path.write_text(page_html(content), encoding="utf-8")
    return path


def test_hostile_text_shows_as_text(opened, source, tmp_path):
    page = opened(hostile_file(source, tmp_path, HOSTILE))
    for stage in STAGES:
        page.evaluate(f"haaw.store.go({{ stage: '{stage}', step: 3, token: 2 }}, 'jump')")
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0
    assert "bold" not in page.locator("b").all_text_contents()
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    shown = page.locator("#prompt .prompt-text").inner_text()
    assert "<script>window.hurt = 1</script>" in shown
    isolated = page.evaluate(
        """() => {
          const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          const bare = [];
          while (walk.nextNode()) {
            const { data, parentElement } = walk.currentNode;
            const apart = parentElement.closest("bdi, script, code, th, dd");
            if (/\\u202e/.test(data) && !apart) bare.push(parentElement.outerHTML.slice(0, 200));
          }
          return bare;
        }"""
    )
    assert isolated == []


def test_a_token_of_a_hundred_thousand_characters_is_clipped_and_can_be_seen_whole(opened, source, tmp_path):
    text = "x\u202ey" * 33_333 + "z"
    page = opened(hostile_file(source, tmp_path, text), "#stage=tokens&token=2")
    assert "(100,000 characters)" in page.locator("#tokens .chip").first.inner_text()
    assert page.locator("#tokens .chip").first.evaluate("(chip) => chip.getBoundingClientRect().height") < 200
    for summary in page.locator("#tokens .card summary").all():
        summary.click()
    assert max(map(len, page.locator("#tokens .card bdi").all_text_contents())) == 100_000
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_fault_in_one_part_leaves_the_rest(chromium, source, tmp_path):
    content = bundle_of(Content(source))
    content["story"]["prompt"]["parts"] = None
    content["steps"].pop("decode 4")
    content["values"] = {
        path: value for path, value in content["values"].items() if not path.startswith("decode 5/")
    }
    path = tmp_path / "broken.html"
    path.write_text(page_html(content), encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.locator("html[data-warm=true]").wait_for(state="attached")
    assert "This part cannot be shown" in page.locator("#prompt .gap").inner_text()
    page.evaluate("haaw.store.go({ stage: 'decode', step: 4 }, 'jump')")
    assert "not in this file" in page.locator("#decode .gap").first.inner_text()
    page.evaluate("haaw.store.go({ stage: 'decode', step: 5 }, 'jump')")
    assert "not in this file" in page.locator("#decode .gap").first.inner_text()
    page.evaluate("haaw.store.go({ stage: 'decode', step: 6 }, 'jump')")
    assert page.locator("#decode .looked-at li").count() == 18
    page.close()


def test_a_story_that_lacks_parts_says_which(opened, source, tmp_path):
    content = json.loads(json.dumps(bundle_of(Content(source), room_bytes=0)))
    assert content["values"] == {}
    content.pop("file")
    content["story"]["missing"] = dict.fromkeys(["tokens", "cache", "end"], "This is not in the trace.")
    path = tmp_path / "lacking.html"
    path.write_text(page_html(content), encoding="utf-8")
    page = opened(path, "#stage=cache")
    assert page.locator("#cache .gap").inner_text() == "This is not in the trace."
    assert page.locator("header .gap").inner_text().count("This is not in the trace.") == 3


def test_a_browser_without_modules_sees_a_sentence(page_file):
    html = page_file.read_text(encoding="utf-8")
    before_scripts = html[: html.index("<script")]
    assert "needs a browser that runs JavaScript modules" in before_scripts


def test_an_export_is_the_same_each_time(source):
    content = bundle_of(Content(source), room_bytes=2**20)
    assert page_html(content) == page_html(content)
    sizes = [len(each["data"]) for each in content["values"].values()]
    assert (
        2**19 < sum(sizes) <= 2**20 * 4 / 3 + 4 * len(sizes)
    )  # base64 takes four characters for three bytes


def test_what_has_no_room_is_read_from_the_trace_file(opened, source, tmp_path):
    path = export_html(source, tmp_path / "small.html", room_bytes=20_000)
    page = opened(path, "#stage=decode&step=9&layer=3&look=decode%209/layer%203/mlp.activated")
    assert "run.haaw" in page.locator("dialog.closer .gap").inner_text()
    page.keyboard.press("Escape")
    wrong = tmp_path / "wrong.haaw"
    wrong.write_bytes(b"x" * source.trace.path.stat().st_size)
    page.set_input_files("#trace-file", wrong)
    page.get_by_text("This is not run.haaw: it begins with other bytes.").wait_for()
    page.set_input_files("#trace-file", source.trace.path)
    page.get_by_text("run.haaw is open").wait_for()
    page.evaluate("haaw.store.go({ look: 'decode 9/layer 3/mlp.activated' })")
    page.locator("dialog.closer table").wait_for()
    numbers = page.evaluate("[...haaw.values.value('decode 9/layer 3/mlp.activated').ready.data]")
    assert numbers == source.value("decode 9/layer 3/mlp.activated").array.reshape(-1).tolist()


def test_every_place_in_the_file_holds_the_value(source):
    whole = source.trace.path.read_bytes()
    found = bundle_of(Content(source), room_bytes=0)["file"]["index"]
    assert len(found) > 500
    for path, (offset, dtype, shape, _) in list(found.items())[::7]:
        array = source.value(path).array
        assert (str(array.dtype), list(array.shape)) == (dtype, shape)
        assert whole[offset : offset + array.nbytes] == array.tobytes()


def test_compact_steps_lose_nothing_that_the_page_uses(opened, source, page_file):
    page = opened(page_file)
    told = page.evaluate("haaw.values.step('decode', 4).ready.operations")
    kept = ("op", "layer", "head", "part", "site", "took_ns", "operations", "bytes")
    for ours, theirs in zip(source.operations("decode", 4), told, strict=True):
        assert {name: ours[name] for name in kept} == {name: theirs[name] for name in kept}
        names = ("path", "shape", "axes", "dtype")
        assert [[each[name] for name in names] for each in ours["outputs"]] == [
            [each[name] for name in names] for each in theirs["outputs"]
        ]
