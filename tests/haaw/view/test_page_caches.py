"""Every kind of cache on the page, and the calculator that opens from it: what is shown is what the run had."""

import re

import pytest
from support.story_fixture import recorded

from haaw.memory.plan import Plan
from haaw.memory.shape import CacheShape
from haaw.view.content import Content
from haaw.view.export import export_html
from haaw.view.server import TraceServer

pytestmark = pytest.mark.browser

CACHES = {
    "static": {"capacity": 40},
    "concatenated": {},
    "paged": {"block_size": 5},
    "sliding": {"window": 9, "sinks": 2},
    "quantised": {"group": 4},
    "offloaded": {"first_capacity": 8},
    "none": {},
}
AXE = "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations.map((each) => each.help)"


def recorded_with(folder, kind, **settings):
    wanted = {"max_tokens": 8, "prefill_chunk_tokens": 7, **settings}
    return recorded(folder, cache=kind, cache_options=CACHES.get(kind, {}), **wanted)


def numbers(text):
    return [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", text)]


@pytest.mark.parametrize("kind", CACHES)
def test_the_cache_that_is_shown_is_the_one_of_the_run(tmp_path, opened, axe, kind):
    source = recorded_with(tmp_path, kind)
    page = opened(export_html(source, tmp_path / "page.html"), "#stage=cache&step=5&layer=2")
    story = Content(source).story
    size = next(each for each in story["cache_sizes"] if each["step"] == 5)
    grown = page.locator("#cache figure").last
    assert numbers(grown.locator("figcaption").inner_text())[-3:] == [
        size["length"],
        size["useful_bytes"],
        size["allocated_bytes"],
    ]
    for row, each in zip(grown.locator("tbody tr").all(), story["cache_sizes"], strict=True):
        names = ("step", "length", "capacity", "useful_bytes", "allocated_bytes")
        assert numbers(" ".join(row.locator("th, td").all_text_contents())) == [each[name] for name in names]
    assert page.locator("#cache .gap, #decode .gap").count() == 0
    page.evaluate(axe)
    assert page.evaluate(AXE) == []


def test_the_block_table_is_that_of_the_cache(tmp_path, opened):
    source = recorded_with(tmp_path, "paged")
    page = opened(export_html(source, tmp_path / "page.html"), "#stage=cache&step=5")
    size = next(each for each in Content(source).story["cache_sizes"] if each["step"] == 5)
    rows = page.locator("#cache figure").first.locator("tbody tr").all()
    assert [int(row.locator("td").first.text_content()) for row in rows] == size["blocks"]
    filled = [int(row.locator("td").nth(2).text_content()) for row in rows]
    assert sum(filled) == size["length"]
    assert filled == [5, 5, 5, 2]


def test_a_ring_shows_each_position_in_its_row(tmp_path, opened):
    source = recorded_with(tmp_path, "sliding")
    page = opened(export_html(source, tmp_path / "page.html"), "#stage=cache&step=5&layer=1")
    cells = page.locator("#cache figure").nth(1).locator("tbody td").all_text_contents()
    # 17 positions, 2 sinks, a window of 9: 8 … 16 are held, position p in row 2 + (p - 2) mod 9
    rows = {0: 0, 1: 1} | {2 + (position - 2) % 9: position for position in range(8, 17)}
    assert [int(each) for each in cells] == [rows[row] for row in range(11)]


def test_attention_in_a_ring_is_shown_over_the_positions_that_it_holds(tmp_path, opened):
    source = recorded_with(tmp_path, "sliding")
    page = opened(export_html(source, tmp_path / "page.html"), "#stage=decode&step=5&layer=1&head=0")
    pattern = source.trace.attention("decode 5", 1)
    shown = page.locator("#decode [data-key=decode-heads] tbody tr").all()
    for position, row in enumerate(shown):
        said = row.locator("td").nth(1).text_content()
        if position in pattern.key_positions:
            weight = pattern.weights_HTS[0, 0, pattern.key_positions.index(position)]
            assert float(said.strip("<% ")) == pytest.approx(100 * weight, abs=0.06)
        else:
            assert said == "not held"


def test_without_a_cache_a_step_shows_its_last_row(tmp_path, opened):
    source = recorded_with(tmp_path, "none")
    page = opened(export_html(source, tmp_path / "page.html"), "#stage=decode&step=3&layer=1&head=0")
    # chunks of 7 positions: the last of the 15 is alone in the third pass
    weights_S = source.value("decode 3/layer 1/attention.weights#3").array[0, -1]
    shown = page.locator("#decode [data-key=decode-heads] tbody tr").all()
    assert len(shown) == len(weights_S)
    for row, weight in zip(shown, weights_S, strict=True):
        assert float(row.locator("td").nth(1).text_content().strip("<% ")) == pytest.approx(
            100 * weight, abs=0.06
        )
    assert "all 15 positions" in page.locator("#decode").inner_text()


def opened_calculator(page):
    page.get_by_role("button", name="Open the calculator").click()
    page.locator("dialog.calculator #headline div").first.wait_for()
    return page.locator("dialog.calculator")


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged", "sliding"])
def test_the_calculator_opens_with_the_run_and_its_figure_is_what_was_allocated(tmp_path, opened, axe, kind):
    source = recorded_with(tmp_path, kind)
    page = opened(export_html(source, tmp_path / "page.html"), "#stage=cache")
    story = Content(source).story
    line = page.locator(".recorded-line").inner_text()
    assert line.endswith(": equal.")
    assert numbers(line)[0] == story["release"]["bytes"]
    dialog = opened_calculator(page)
    assert [dialog.locator(f"#{name}").input_value() for name in ("layers", "kv_heads", "head_dim", "context")] == [
        "6", "2", "64", str(story["release"]["positions"]),
    ]  # fmt: skip
    chosen = dialog.locator("tr[aria-current] td").nth(1).get_attribute("data-bytes")
    assert int(chosen) == story["release"]["bytes"]
    page.evaluate(axe)
    assert page.evaluate(AXE) == []
    before = page.evaluate("location.hash")
    dialog.locator("#context").fill("30")
    options = {"window": 9, "sinks": 2} if kind == "sliding" else {"block_size": 5}
    capacity = {"static": 40, "sliding": 512}.get(kind)
    plan = Plan(CacheShape(6, 2, 64, 4, **options), 30, 1, kind, capacity=capacity)
    allocated = dialog.locator(f"[data-kind={kind}] td").nth(1).get_attribute("data-bytes")
    assert int(allocated) == plan.in_kind(kind, 30).allocated_bytes
    page.keyboard.press("Escape")
    assert page.evaluate("location.hash") == before


def test_a_run_that_is_not_calculated_says_why_and_the_calculator_opens_with_its_model(tmp_path, opened):
    page = opened(export_html(recorded_with(tmp_path, "quantised"), tmp_path / "page.html"), "#stage=cache")
    assert "group=4" in page.locator(".recorded-line").inner_text()
    assert opened_calculator(page).locator("#layers").input_value() == "6"


def test_haaw_view_serves_the_calculator_too(tmp_path, chromium):
    import threading

    with TraceServer(recorded_with(tmp_path, "dynamic", keep="replayable")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_page()
        seen = []
        page.on("console", lambda message: seen.append(message.text))
        page.goto(f"{server.address}#stage=cache")
        page.locator("html[data-warm=true]").wait_for(state="attached")
        page.wait_for_load_state("networkidle")  # what arrives late moves the button
        assert opened_calculator(page).locator("#kv_heads").input_value() == "2"
        assert seen == []
        page.close()
        server.shutdown()
