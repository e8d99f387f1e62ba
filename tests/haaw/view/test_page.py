"""The page in a browser: from a file, with the network off, every way to move leads to the same picture."""

import random

import pytest
from support.pages import settle

pytestmark = pytest.mark.browser

STAGES = ["start", "weights", "prompt", "tokens", "prefill", "cache", "decode", "choose", "deliver", "end"]

PICTURE = """() => {
  const stage = haaw.store.shown.stage;
  const parts = ["header.top", ".stages", ".transport", "#" + stage];
  const roots = parts.map((part) => document.querySelector(part));
  const text = roots.map((root) => root.outerHTML.replaceAll(' open=""', "")).join("\\n");
  let hash = 5381;
  for (let i = 0; i < text.length; i++) hash = ((hash * 33) ^ text.charCodeAt(i)) | 0;
  for (const canvas of document.getElementById(stage).querySelectorAll("canvas")) {
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    for (let i = 0; i < pixels.length; i++) hash = ((hash * 33) ^ pixels[i]) | 0;
  }
  return document.documentElement.dataset.state + " " + hash + " " + text.length;
}"""
"""The state, and a hash of all that shows it: the head, the list, the controls and the stage with its pixels."""


def state(page):
    return page.evaluate("document.documentElement.dataset.state")


def test_it_needs_no_network_and_complains_of_nothing(opened, page_file):
    page = opened(page_file)
    for number in "1234567890":
        page.keyboard.press(number)
        settle(page)
    assert page.title().startswith("HAAW")


def test_the_first_picture_comes_within_a_second(opened, page_file):
    page = opened(page_file)
    ready = page.evaluate("performance.getEntriesByName('first picture')[0].startTime")
    assert ready < 1000
    assert page_file.stat().st_size < 8e6


def test_every_stage_is_reached_by_key_button_link_list_and_scrolling_alike(opened, page_file):
    page = opened(page_file)

    def picture(go):
        page.keyboard.press("Home")
        settle(page)
        go()
        settle(page)
        return page.evaluate(PICTURE)

    def press_next(stage):
        for _ in range(len(STAGES) + 2):
            if f"stage={stage}&" in state(page):
                return
            page.get_by_role("button", name="Next").click()

    for number, stage in enumerate(STAGES):
        by_key = picture(lambda number=number: page.keyboard.press(str((number + 1) % 10)))
        assert f"stage={stage}&" in by_key
        item = page.locator(f".stages li:nth-child({number + 1}) a")
        assert picture(item.click) == by_key
        assert picture(lambda stage=stage: page.evaluate(f"location.hash = '#stage={stage}'")) == by_key
        assert picture(lambda stage=stage: scroll_to(page, stage)) == by_key
        if stage != "end":  # its first place by button is behind all steps
            by_button = picture(lambda stage=stage: press_next(stage))
            step = by_key.split("step=")[1].split("&")[0]
            if f"step={step}&" not in by_button:
                page.evaluate(f"haaw.store.go({{ step: {step} }})")
                by_button = page.evaluate(PICTURE)
            assert by_button == by_key


def scroll_to(page, stage):
    """As a reader with a wheel: down in small pieces until the stage is reached."""
    page.mouse.move(640, 400)
    for _ in range(120):
        if f"stage={stage}&" in state(page):
            return
        page.mouse.wheel(0, 420)
        settle(page)
    raise AssertionError(f"scrolling never came to {stage}; it ended at {state(page)}")


def test_scrolling_alone_tells_the_whole_story_and_back(opened, page_file):
    page = opened(page_file)
    page.evaluate("""() => {
      window.met = [];
      haaw.store.listen(() => {
        const stage = haaw.store.shown.stage;
        if (met.at(-1) !== stage) met.push(stage);
      });
    }""")
    page.mouse.move(640, 400)
    for direction in (1, -1):
        for _ in range(60):
            page.mouse.wheel(0, 250 * direction)
            settle(page)
    assert page.evaluate("met") == [*STAGES[1:], *STAGES[-2::-1]]


def test_two_hundred_random_walks_return_the_same_pictures(opened, page_file):
    page = opened(page_file)
    generator = random.Random(5)

    def somewhere():
        return {
            "stage": generator.choice(STAGES),
            "step": generator.randrange(10),
            "layer": generator.randrange(4),
            "head": generator.randrange(4),
            "token": generator.choice([None, generator.randrange(12)]),
        }

    walks = [[somewhere() for _ in range(2)] for _ in range(200)]
    places = [place for there, on in walks for place in (there, on, there)]
    walk = f"(places) => places.map((place) => {{ haaw.store.go(place, 'jump'); return ({PICTURE})(); }})"
    seen = {}
    for picture in page.evaluate(walk, places):
        where, _, hashed = picture.partition(" ")
        assert seen.setdefault(where, hashed) == hashed, where
    assert len(set(seen.values())) > 200


def test_a_link_gives_the_picture_that_walking_gives(opened, page_file):
    page = opened(page_file)
    page.evaluate("haaw.store.go({ stage: 'decode', step: 5, layer: 3, head: 1 }, 'jump')")
    settle(page)
    walked = page.evaluate(PICTURE)
    fresh = opened(page_file, "#stage=decode&step=5&layer=3&head=1")
    settle(fresh)
    assert fresh.evaluate(PICTURE) == walked


@pytest.mark.parametrize(
    "link",
    [
        "#stage=nowhere",
        "#stage=decode&step=99999999&layer=77&head=-3",
        "#step=x&layer=",
        "#%",
        "#stage=decode&look=nothing",
        "#stage=tokens&token=4000",
        "#look=decode%205/output.logits",
        "#&&&==",
    ],
)
def test_an_odd_link_leads_to_a_place_that_exists(opened, page_file, link):
    page = opened(page_file, link)
    settle(page)
    assert page.evaluate("STAGES => STAGES.includes(haaw.store.shown.stage)", STAGES)
    assert page.locator(".stage").count() == 10


def test_keys_change_step_layer_and_head(opened, page_file):
    page = opened(page_file, "#stage=decode&step=5&layer=1&head=1")
    for key, end in (
        ("Shift+ArrowRight", "step=6&layer=1&head=1"),
        ("Shift+ArrowUp", "step=6&layer=2&head=1"),
        ("h", "step=6&layer=2&head=2"),
        ("Shift+H", "step=6&layer=2&head=1"),
        ("Shift+ArrowDown", "step=6&layer=1&head=1"),
        ("Shift+ArrowLeft", "step=5&layer=1&head=1"),
    ):
        page.keyboard.press(key)
        assert state(page) == f"#stage=decode&{end}"
    page.keyboard.press("ArrowRight")
    assert state(page).startswith("#stage=choose&step=5")
    page.keyboard.press("ArrowLeft")
    assert state(page).startswith("#stage=decode&step=5")
    page.keyboard.press("End")
    assert state(page).startswith("#stage=end")
    page.keyboard.press("?")
    assert page.locator("dialog.help").is_visible()


def test_playing_says_its_speed_and_goes_on_and_stops(opened, page_file):
    page = opened(page_file, "#stage=decode&step=5")
    page.get_by_role("button", name="Play").click()
    assert page.locator(".speed").inner_text().startswith("1 s of this = ")
    page.locator("html:not([data-state*='stage=decode'])").wait_for(state="attached", timeout=4000)
    page.get_by_role("button", name="Pause").click()
    stopped = state(page)
    page.wait_for_timeout(1400)
    assert state(page) == stopped


def test_focus_stays_on_what_was_used(opened, page_file):
    page = opened(page_file, "#stage=decode&step=5&layer=1&head=1")
    more = page.locator("#decode").get_by_role("button", name="layer: one more")
    more.click()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer: one more"
    page.keyboard.press("Enter")
    assert "layer=3" in state(page)
