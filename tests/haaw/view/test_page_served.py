"""The page that `haaw view` serves: it shows what the exported file shows, and what arrives late moves nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.pages import settle

from haaw.view.server import TraceServer

pytestmark = pytest.mark.browser

WAITED_FOR = """() => new Promise((done) => {
  const look = () => (document.documentElement.dataset.waiting === "0" ? done() : requestAnimationFrame(look));
  requestAnimationFrame(look);
})"""


@pytest.fixture
def served(chromium: Any, server: TraceServer) -> Iterator[Any]:
    """Opens the served page at a link, and waits for its numbers; in the end nothing complained."""
    seen: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))

    def open_page(link: str) -> Any:
        page.goto(server.address + link)
        page.locator("html[data-warm=true]").wait_for(state="attached")
        page.evaluate(WAITED_FOR)
        return page

    yield open_page
    context.close()
    assert seen == []


def places(page: Any) -> dict[str, float]:
    """Where each stage begins in the page."""
    found: dict[str, float] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('section.stage')]"
        ".map((each) => [each.id, each.getBoundingClientRect().top + scrollY]))"
    )
    return found


@pytest.mark.parametrize("stage", ["prefill", "decode", "choose", "cache"])
def test_the_served_page_shows_what_the_file_shows(served, opened, page_file, stage):
    link = f"#stage={stage}&step=3&layer=1&head=1"
    page, file = served(link), opened(page_file, link)
    settle(page)
    assert page.inner_text(f"#{stage}") == file.inner_text(f"#{stage}")


def test_what_arrives_late_moves_nothing(served):
    page = served("#stage=decode&step=3&layer=1&head=1")
    held: list[Any] | None = []
    for what in ("step", "value"):
        page.route(f"**/{what}?*", lambda route: route.continue_() if held is None else held.append(route))
    before = places(page)
    page.evaluate("location.hash = '#stage=decode&step=4&layer=1&head=1'")
    settle(page)
    assert "on their way" in page.inner_text("#decode")
    assert places(page) == before
    waiting, held = held, None
    for route in waiting:
        route.continue_()
    page.evaluate(WAITED_FOR)
    settle(page)
    assert "on their way" not in page.inner_text("#decode")
    assert page.get_attribute("#decode", "style") is None
    assert places(page) == before
