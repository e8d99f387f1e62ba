"""A link or a control brings a stage into view, and holds it there until the reader scrolls: by whatever means."""

import pytest
from support.pages import settle

pytestmark = pytest.mark.browser

SCROLLS = """() => new Promise((done) => {
  let seen = 0;
  for (const kind of ["scroll", "scrollend"]) addEventListener(kind, () => (seen += 1));
  setTimeout(() => done(seen), 400);
})"""

GROW = "document.querySelector('#start > div').style.paddingBottom = '{}px'"
"""Makes the first stage so much longer."""


def top(page, stage):
    return page.evaluate(f"document.getElementById('{stage}').getBoundingClientRect().top")


@pytest.mark.parametrize("stage", ["start", "cache", "decode", "end"])
def test_a_page_that_a_link_has_moved_lies_still(opened, page_file, stage):
    page = opened(page_file, f"#stage={stage}")
    page.wait_for_timeout(300)  # until the last scroll of its own is told
    before = top(page, stage)
    assert page.evaluate(SCROLLS) == 0
    assert top(page, stage) == before


def test_the_last_stage_is_brought_as_near_as_the_page_reaches(opened, page_file):
    page = opened(page_file, "#stage=end")
    settle(page)
    assert page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY") < 2


def test_a_scroll_that_is_no_wheel_is_the_readers_from_the_first_moment_on(opened, page_file):
    page = opened(page_file, "#stage=cache")
    settle(page)
    before = top(page, "cache")
    page.evaluate("scrollBy(0, 300)")  # as a scroll bar or a search in the page does
    page.wait_for_timeout(300)
    assert top(page, "cache") == pytest.approx(before - 300, abs=1)
    page.evaluate(GROW.format(90))
    page.wait_for_timeout(100)
    assert abs(top(page, "cache") - before) > 200


def test_a_button_does_not_move_between_press_and_release(opened, page_file):
    page = opened(page_file, "#stage=cache")
    button = page.get_by_role("button", name="Open the calculator")
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.wait_for_timeout(100)
    page.mouse.up()
    assert page.locator("dialog.calculator").is_visible()


def test_a_stage_stays_where_it_is_while_stages_before_it_grow(opened, page_file):
    page = opened(page_file, "#stage=cache")
    page.evaluate("document.documentElement.style.overflowAnchor = 'none'")  # not every browser helps
    settle(page)
    before = top(page, "cache")
    for height in (150, 900, 20):
        page.evaluate(GROW.format(height))
        page.wait_for_timeout(100)
        assert top(page, "cache") == pytest.approx(before, abs=2)
    assert page.evaluate("document.documentElement.dataset.state").startswith("#stage=cache&")


def test_a_scroll_of_the_reader_counts_though_a_picture_is_drawn_at_the_same_time(opened, page_file):
    page = opened(page_file, "#stage=cache")
    settle(page)
    before = top(page, "cache")
    page.evaluate(f"() => {{ {GROW.format(90)}; scrollBy(0, 700); }}")
    page.wait_for_timeout(200)
    assert top(page, "cache") < before - 500


@pytest.mark.parametrize("says_when_it_ends", [True, False])
def test_a_ride_ends_at_its_stage_though_stages_before_it_grow(opened, page_file, says_when_it_ends):
    page = opened(page_file, "#stage=tokens", reduced_motion="no-preference")
    page.evaluate("document.documentElement.style.overflowAnchor = 'none'")
    if not says_when_it_ends:
        page.evaluate("addEventListener('scrollend', (event) => event.stopImmediatePropagation(), true)")
    assert page.evaluate(f"""() => new Promise((done) => {{
      addEventListener("scroll", () => {{ {GROW.format(600)}; done(haaw.scrolling.ride !== null); }}, {{ once: true }});
      haaw.store.go({{ stage: "prefill" }});
    }})""")
    page.wait_for_timeout(1600)
    assert top(page, "prefill") == pytest.approx(16, abs=2)
    page.evaluate("scrollBy(0, -200)")
    page.wait_for_timeout(200)
    assert top(page, "prefill") == pytest.approx(216, abs=2)


def test_a_ride_gives_way_to_the_readers_scrolling(opened, page_file):
    page = opened(page_file, "#stage=tokens", reduced_motion="no-preference")
    page.keyboard.press("5")
    page.wait_for_timeout(60)
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
    page.wait_for_timeout(1600)
    assert page.evaluate("scrollY") < 200  # the browser may add a step of the ride
    assert page.evaluate("document.documentElement.dataset.state").startswith("#stage=start&")


def test_a_change_within_the_stage_lets_a_ride_to_it_go_on(opened, page_file):
    page = opened(page_file, "#stage=tokens", reduced_motion="no-preference")
    page.keyboard.press("5")
    under_way = page.evaluate("""() => new Promise((done) => {
      const look = () => {
        const { top } = document.getElementById("prefill").getBoundingClientRect();
        if (top > innerHeight * 0.4) return requestAnimationFrame(look);
        haaw.store.go({ layer: 1 });
        done(haaw.scrolling.ride !== null);
      };
      look();
    })""")
    assert under_way
    page.wait_for_timeout(1500)
    assert top(page, "prefill") == pytest.approx(16, abs=2)
    assert page.evaluate("haaw.scrolling.aim") == "prefill"
