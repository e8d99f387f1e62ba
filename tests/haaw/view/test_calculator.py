"""The calculator page: its arithmetic is Python's, it needs no network, and everything works by keyboard and link."""

import importlib.util
import json
import re
import shutil
import time
from fractions import Fraction

import pytest

from haaw.memory import KINDS, PRESETS, CacheShape, Plan
from haaw.memory.arithmetic import kinds_of
from haaw.memory.sizes import size_text
from haaw.view.calculator import calculator_html, setting_of

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = "</script><script>alert(1)</script><b>x</b>\u202e"


def test_the_page_is_one_file_that_reaches_for_nothing():
    html = calculator_html()
    assert not re.search(r"\b(?:src|action)\s*=", html)
    assert re.findall(r'href="([^"]*)"', html) == ["#results", "#"]
    assert not re.search(r"<[^>]+\son[a-z]+\s*=", html), "no inline event handlers"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", html)
    assert "default-src 'none'" in html
    assert not re.search(r"^\s*import\b", html, re.MULTILINE)


def test_text_from_a_model_cannot_leave_its_place():
    plan = Plan(CacheShape(2, 2, 8), assumptions=(HOSTILE,))
    html = calculator_html(plan)
    assert html.count("</script>") == calculator_html().count("</script>")
    data = re.search(r'id="calculator-data">(.*?)</script>', html, re.DOTALL)[1]
    assert json.loads(data)["assumptions"] == [HOSTILE]


def test_the_page_knows_every_preset():
    data = json.loads(re.search(r'id="calculator-data">(.*?)</script>', calculator_html(), re.DOTALL)[1])
    assert [preset["name"] for preset in data["presets"]] == list(PRESETS)


# In a browser.


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("needs Playwright (extra `test`) and Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page from a file; in the end nothing was asked of the network and nothing complained."""
    seen: list[str] = []
    contexts = []

    def open_page(plan=None, fragment="", *, width=1280, height=900, recorded=None, **options):
        path = tmp_path / "calculator.html"
        path.write_text(calculator_html(plan, recorded=recorded), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.append(str(error)))
        address = path.as_uri() + fragment
        page.on("request", lambda request: request.url.startswith(path.as_uri()) or seen.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []


def random_plan(rng) -> Plan:
    letters = "".join(rng.choice(["f", "w", "-"], size=rng.integers(0, 7), p=[0.4, 0.4, 0.2]))
    layers = int(rng.integers(1, 130))
    latent = int(rng.choice([0, 0, 0, 0, 512, 100]))
    window = int(rng.integers(1, 9000)) if "w" in letters or (not letters and rng.random() < 0.3) else None
    letters = letters if set(letters) != {"-"} else ""
    try:
        shape = CacheShape(
            layers, int(rng.integers(1, 65)), int(rng.choice([1, 6, 7, 48, 64, 80, 96, 128, 256])),
            float(rng.choice([8, 4, 2, 1, 0.5, 0.5625, 1.0625])), window=window, pattern=letters,
            latent_width=latent, rope_width=int(rng.choice([0, 64])) if latent else 0,
            sinks=int(rng.choice([0, 0, 4, 100])), block_size=int(rng.choice([1, 7, 16, 256])),
        )  # fmt: skip
    except ValueError:  # a pattern whose layers with a cache come after the last one
        return random_plan(rng)
    context = int(rng.integers(1, 20_000))
    return Plan(
        shape, context, int(rng.integers(1, 60)), str(rng.choice(["needed", *kinds_of(shape)])),
        capacity=context + int(rng.integers(0, 9000)) if rng.random() < 0.4 else None,
        weights_bytes=int(rng.integers(0, 50 * 2**30)),
        memory_bytes=int(rng.integers(1, 2**37)) if rng.random() < 0.7 else None,
    )  # fmt: skip


def answers_of(plan: Plan) -> dict:
    """What the page should say, in the words of Python's arithmetic."""
    figures = [
        {
            "name": figure.name,
            "value": float(Fraction(figure.value)),
            "unit": figure.unit,
            "formula": figure.formula,
            "numbers": figure.numbers,
        }
        for figure in plan.figures()
    ]
    kinds = [
        {
            "kind": part.kind,
            "useful_bytes": part.useful_bytes,
            "allocated_bytes": part.allocated_bytes,
            "metadata_bytes": part.metadata_bytes,
            "total_bytes": part.total_bytes,
            "outside_bytes": part.outside_bytes,
            "resident_bytes": part.resident_bytes,
            "waste_bytes": part.waste_bytes,
            "formula": part.formula,
            "numbers": part.numbers,
            "note": part.note,
        }
        for part in plan.kinds()
    ]
    return {
        "problem": None,
        "figures": figures,
        "kinds": kinds,
        "size": size_text(int(plan.total_bytes.value)),
    }


@pytest.mark.browser
def test_500_random_settings_equal_the_arithmetic_in_python(opened, rng):
    plans = [random_plan(rng) for _ in range(500)]
    page = opened()
    told = page.evaluate(
        """settings => settings.map(setting => {
            const { figuresOf, inKind, kindsOf, problemOf, size } = globalThis.haawCalculator;
            const figures = figuresOf(setting);
            const kinds = kindsOf(setting).map(kind => inKind(setting, kind)).map(
                ({ utilisation, ...rest }) => rest);
            const total = figures.find(figure => figure.name === "cache and weights").value;
            return { problem: problemOf(setting), figures, kinds, size: size(total) };
        }).map(each => JSON.stringify(each))""",
        [setting_of(plan) for plan in plans],
    )
    for plan, answer in zip(plans, told, strict=True):
        assert json.loads(answer) == answers_of(plan), setting_of(plan)


def until(holds) -> None:
    """Waits for what the page does a moment later."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def headline(page) -> dict[str, str]:
    cards = page.locator("#headline > div").all()
    return {card.get_attribute("data-figure"): card.inner_text().split("\n")[-1] for card in cards}


@pytest.mark.browser
def test_the_reference_case_is_on_the_page(opened):
    page = opened(fragment="#layers=32&sequences=2")
    assert headline(page)["a token"] == "131,072 bytes"
    assert headline(page)["a sequence needs"] == "1,073,741,824 bytes"
    assert headline(page)["all sequences take"] == "2,147,483,648 bytes"
    assert "2 · 32 · 8 · 128 · 2 = 131,072 bytes" in page.inner_text("#formulas")


@pytest.mark.browser
def test_the_presets_show_the_figures_of_python(opened):
    page = opened()
    for name, preset in PRESETS.items():
        page.select_option("#preset", name)
        plan = Plan(preset.shape, preset.context, weights_bytes=preset.weights_bytes)
        assert headline(page)["a sequence needs"] == f"{plan.per_sequence.value:,} bytes"
        assert headline(page)["cache and weights"] == f"{plan.total_bytes.value:,} bytes"
        assert preset.source in page.inner_text("#preset-source")
        shown = page.evaluate(
            "[...document.querySelectorAll('#kinds tr')].map(row => [row.dataset.kind, "
            "...[...row.querySelectorAll('[data-bytes]')].map(cell => Number(cell.dataset.bytes))])"
        )
        assert shown == [
            [part.kind, part.useful_bytes, part.allocated_bytes, part.metadata_bytes] for part in plan.kinds()
        ]


@pytest.mark.browser
def test_the_keyboard_alone_reaches_and_changes_everything(opened):
    page = opened()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if reached[-1] == "context-slider":
            page.keyboard.press("End")
    fields = {*setting_of(Plan(CacheShape(1, 1, 1))), "preset", "context-slider", "sequences-slider"}
    assert fields | {"skip", "scroll", "link"} <= set(reached)
    assert page.input_value("#context") == "1048576"
    assert headline(page)["a sequence needs"] == f"{1048576 * 131_072:,} bytes"
    page.fill("#context", "100")
    assert page.get_attribute("#context-slider", "aria-valuetext") == "100"
    assert int(page.input_value("#context-slider")) == 106  # 16 · log2(100) = 106.3


@pytest.mark.browser
def test_tiles_grow_with_the_context_and_tell_useful_from_unused(opened):
    page = opened(fragment="#layers=32&cache=dynamic&context=64")

    def counts():
        return [page.locator(f"#tiles .tile-{kind}").count() for kind in ("useful", "unused")]  # fmt: skip

    assert counts() == [64, 0]
    page.fill("#context", "65")  # 128 are allocated: tiles of twice the size, half of them unused
    assert "One tile is 256 KiB" in page.inner_text("#tiles-sentence")
    assert counts() == [33, 32]
    page.fill("#context", "96")
    assert counts() == [48, 16]
    page.fill("#sequences", "3")
    assert counts() == [144, 48]
    page.fill("#sequences", "30")
    assert "24 more look the same" in page.inner_text("#tiles-sentence")


@pytest.mark.browser
def test_a_link_keeps_the_whole_setting(opened, rng):
    page = opened()
    for plan in (random_plan(rng) for _ in range(20)):
        setting = setting_of(plan)
        kept = page.evaluate(
            """setting => globalThis.haawCalculator.settingFromHash(globalThis.haawCalculator.hashOf(setting))""",
            setting,
        )
        assert kept == {"read": setting, "left": []}
    page.fill("#layers", "7")
    until(lambda: "layers=7" in page.evaluate("location.hash"))
    page.reload()
    assert page.input_value("#layers") == "7"
    page.evaluate("location.hash = '#layers=9&kv_heads=1'")
    until(lambda: page.input_value("#layers") == "9")
    assert headline(page)["a token"] == f"{2 * 9 * 1 * 128 * 2:,} bytes"


@pytest.mark.browser
def test_what_a_link_has_that_the_page_does_not_know_is_named(opened):
    page = opened(fragment="#layers=3&moon=full&kv_heads=two&__proto__=1")
    assert page.input_value("#layers") == "3"
    assert "moon, kv_heads, __proto__" in page.inner_text("#remark")


BAD = [
    ("layers", "0", "layers is 0"),
    ("layers", "", "layers is NaN"),
    ("kv_heads", "-3", "kv heads is -3"),
    ("head_dim", "1.5", "a whole number"),
    ("bytes_per_element", "0.1", "multiple of 1/32"),
    ("context", "99999999999", "context is"),
    ("pattern", "wx", "pattern"),
    ("capacity", "5", "smaller than the context"),
]


@pytest.mark.browser
def test_a_bad_number_is_named_and_the_rest_still_works(opened):
    page = opened()
    for field, value, says in BAD:
        good = page.input_value(f"#{field}")
        page.fill(f"#{field}", value)
        assert says in page.inner_text("#problem")
        assert page.get_attribute(f"#{field}", "aria-invalid") == "true"
        assert page.is_hidden("#figures")
        page.fill(f"#{field}", good)
        assert page.is_hidden("#problem")
        assert headline(page)["a token"] == "131,072 bytes"


@pytest.mark.browser
def test_hostile_text_shows_as_text(opened):
    page = opened(Plan(CacheShape(2, 2, 8), assumptions=(HOSTILE,)))
    assert HOSTILE in page.inner_text("#assumptions")
    assert page.locator("#assumptions b").count() == 0
    page.goto(page.url.split("#")[0] + "#pattern=<b>x</b>&<i>y</i>=1")
    page.reload()
    assert "<i>y</i>" in page.inner_text("#remark")
    assert page.locator("#results b, #results i").count() == 0


@pytest.mark.browser
def test_a_memory_that_is_too_small_is_said(opened):
    page = opened(fragment="#layers=32&sequences=2&memory_bytes=1073741824")
    assert "1.00 GiB too much: it does not fit" in page.inner_text("#memory")
    assert headline(page)["largest context"] == "4,096 positions"
    page.fill("#memory_bytes", "3")
    assert "1.00 GiB stay free" in page.inner_text("#memory")


@pytest.mark.browser
def test_nothing_is_wider_than_the_window_and_text_stands_out_in_any_scheme(opened):
    page = opened(fragment="#layers=32&cache=paged&memory_bytes=9000000000")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (320, 640, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        for selector in ("#headline dt", ".numbers", "#link", "label", ".hint", "#assumptions"):
            assert contrast(page, selector) >= 4.5, (scheme, selector)


@pytest.mark.browser
def test_every_field_has_a_label_and_forced_colours_keep_useful_and_unused_apart(opened):
    page = opened(fragment="#layers=32&cache=dynamic&context=65", forced_colors="active")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select')]"
        ".filter(each => !each.labels.length && !each.getAttribute('aria-label')).map(each => each.id)"
    )
    assert unnamed == []
    useful = page.evaluate("getComputedStyle(document.querySelector('.tile-useful')).fill")
    hatch = page.evaluate("getComputedStyle(document.querySelector('.hatch')).stroke")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert len({useful, hatch, paper}) == 3


@pytest.mark.browser
def test_a_line_holds_a_trace_against_the_arithmetic(opened):
    shape = CacheShape(2, 2, 8, 4)
    recorded = {
        "setting": setting_of(Plan(shape)),
        "kind": "dynamic",
        "context": 70,
        "allocated_bytes": 128 * 256,
    }
    assert "gives 32,768: equal." in opened(recorded=recorded).inner_text("#assumptions")
    wrong = recorded | {"allocated_bytes": 5}
    assert "NOT equal" in opened(recorded=wrong).inner_text("#assumptions")


def contrast(page, selector: str) -> float:
    """Of an element's text against the nearest background that is not transparent (WCAG 2.2, relative luminance)."""
    colours = page.evaluate(
        """selector => {
            const own = document.querySelector(selector);
            let behind = own;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
            return [getComputedStyle(own).color, getComputedStyle(behind).backgroundColor];
        }""",
        selector,
    )
    luminances = []
    for colour in colours:
        channels = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_the_kinds_of_the_page_are_those_of_python():
    html = calculator_html()
    assert f"KINDS = {json.dumps(list(KINDS))}" in html
