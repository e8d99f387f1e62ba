"""The page is for everyone: keyboard, screen reader, dark and light, forced colours, narrow and large."""

import pytest

pytestmark = pytest.mark.browser

STAGES = ["start", "weights", "prompt", "tokens", "prefill", "cache", "decode", "choose", "deliver", "end"]

RUN_AXE = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  const where = (node) => node.html.slice(0, 160) + " " + (node.any[0]?.message ?? "");
  return violations.map((each) => `${each.id}: ${each.help} ` + each.nodes.slice(0, 3).map(where).join(" | "));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_stage(opened, page_file, axe, scheme):
    page = opened(page_file, color_scheme=scheme)
    page.evaluate(axe)
    for stage in STAGES:  # every stage is in the page, and the state marks one
        page.evaluate(f"haaw.store.go({{ stage: '{stage}', step: 4, layer: 1, token: 2 }}, 'jump')")
    for stage in ("tokens", "decode"):
        page.evaluate(f"haaw.store.go({{ stage: '{stage}' }}, 'jump')")
        assert page.evaluate(RUN_AXE) == []
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(RUN_AXE) == []
    page.evaluate("haaw.store.go({ look: 'decode 4/layer 1/attention.weights' })")
    assert page.evaluate(RUN_AXE) == []
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.evaluate(RUN_AXE) == []


def test_axe_finds_nothing_with_forced_colours(opened, page_file, axe):
    page = opened(page_file, "#stage=choose&step=3", forced_colors="active")
    page.evaluate(axe)
    assert page.evaluate(RUN_AXE) == []


@pytest.mark.parametrize("width", [320, 640, 1600])
def test_no_stage_is_wider_than_the_window(opened, page_file, width):
    page = opened(page_file, "#stage=decode&step=9", width=width, height=700)
    for stage in STAGES:
        page.evaluate(f"haaw.store.go({{ stage: '{stage}', token: 1 }}, 'jump')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, stage
    page.evaluate("haaw.store.go({ look: 'prefill 0/layer 1/attention.weights' })")
    box = page.locator("dialog.closer").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_it_can_be_read_at_twice_the_size_of_letters(opened, page_file):
    page = opened(page_file, "#stage=decode&step=4", width=640, height=800)
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    assert page.evaluate("document.documentElement.scrollWidth") <= 640


def test_every_picture_has_a_sentence_of_its_numbers(opened, page_file):
    page = opened(page_file, "#stage=decode&step=4")
    captions = page.locator("figure > figcaption").all_inner_texts()
    assert len(captions) == page.locator("figure").count() > 12
    assert all(any(letter.isdigit() for letter in caption) for caption in captions)
    assert page.locator("canvas:not([aria-label])").count() == 0


def test_the_keyboard_alone_reaches_and_uses_every_kind_of_control(opened, page_file):
    page = opened(page_file, "#stage=decode&step=4&layer=1")
    page.locator("#decode button.head").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("haaw.store.shown.head") == 0
    page.locator("#decode .strip").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog.closer").is_visible()
    assert page.evaluate("document.querySelector('dialog.closer').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.locator("html:not([data-state*='look='])").wait_for(state="attached")
    assert page.evaluate("haaw.store.state.look") is None
    assert page.evaluate("document.activeElement.className") == "strip"


def test_focus_can_be_seen_on_everything_that_takes_it(opened, page_file):
    page = opened(page_file, "#stage=decode&step=4")
    # From the first one on: where Tab begins in a page that a link has scrolled is the browser's affair.
    page.locator("summary, a[href], button, input").first.focus()
    seen = []
    while "BODY" not in seen and len(seen) < 300:  # BODY comes behind the last one
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
              const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
              return [document.activeElement.nodeName, `${outlineStyle} ${outlineWidth}`];
            }"""
        )
        seen.append(name)
        assert outline == "solid 3px" or name == "BODY", name
    assert seen[-1] == "BODY"
    assert {"A", "BUTTON", "INPUT", "SUMMARY"} <= set(seen)
    assert len(seen) > 60


def test_single_keys_can_be_turned_off(opened, page_file):
    page = opened(page_file, "#stage=decode&step=4")
    page.keyboard.press("?")
    page.get_by_label("Keys that are a single letter").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    assert page.evaluate("haaw.store.shown.stage") == "decode"


def test_the_sign_of_a_number_does_not_hang_on_its_colour(opened, page_file):
    """A negative cell has a dash: its middle has another colour than its corner, and only there."""
    page = opened(page_file, "#stage=decode&step=4&layer=1")
    differs = page.evaluate(
        """() => {
          const canvas = [...document.querySelectorAll("#decode .strip canvas")][0];
          const context = canvas.getContext("2d");
          const value = haaw.values.value("decode 4/embedding.x").ready.data;
          const same = (a, b) => [0, 1, 2].every((i) => a[i] === b[i]);
          return Array.from(value.slice(0, 64), (each, i) => {
            const corner = context.getImageData(i * 8 + 1, 1, 1, 1).data;
            const middle = context.getImageData(i * 8 + 3, 3, 1, 1).data;
            return [each < 0, !same(corner, middle)];
          });
        }"""
    )
    assert all(negative == marked for negative, marked in differs)
    assert {negative for negative, _ in differs} == {True, False}
