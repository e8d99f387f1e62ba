"""A recorded request, its page, and a browser, shared by the tests of the page."""

import importlib.util
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from support.story_fixture import recorded

from haaw.view.export import export_html
from haaw.view.server import TraceServer
from haaw.view.source import TraceSource

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    return recorded(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="session")
def page_file(source: TraceSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_html(source, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="session")
def server(source: TraceSource) -> Iterator[TraceServer]:
    server = TraceServer(source)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("needs Playwright (extra `test`) and Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which axe-playwright-python carries."""
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page from a file with the network off; in the end nothing was asked for and nothing complained."""
    seen: list[str] = []
    contexts = []

    def open_page(file: Path, link: str = "", *, width: int = 1280, height: int = 900, **options: Any) -> Any:
        options = {"offline": True, "reduced_motion": "reduce", **options}
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(file.as_uri()) or seen.append(request.url))
        page.goto(file.as_uri() + link)
        page.locator("html[data-warm=true]").wait_for(state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []
