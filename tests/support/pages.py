"""What tests of pages in a browser share."""

from typing import Any


def settle(page: Any) -> None:
    """Waits until what has just happened is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
