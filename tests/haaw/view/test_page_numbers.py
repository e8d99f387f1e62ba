"""What the page shows is what the trace holds: numbers are read back from the page."""

import random

import pytest

from haaw.view.content import Content

pytestmark = pytest.mark.browser


def test_ten_random_states_show_the_numbers_of_the_trace(opened, page_file, source):
    page = opened(page_file)
    generator = random.Random(11)
    content = Content(source)
    for _ in range(10):
        step, layer, head = generator.randrange(1, 10), generator.randrange(4), generator.randrange(4)
        go(page, stage="decode", step=step, layer=layer, head=head)
        weights = source.value(f"decode {step}/layer {layer}/attention.weights").array[head, 0]
        shown = page.locator("#decode .looked-at small").all_inner_texts()
        assert shown == [percent(float(each)) for each in weights]
        column = page.locator(f"#decode figure[data-key=decode-heads] tbody tr > :nth-child({3 + head})")
        assert column.all_text_contents() == shown

        name = generator.choice(["attention.normed", "attention.mixed", "mlp.activated", "attention.rotated"])
        path = f"decode {step}/layer {layer}/{name}"
        page.evaluate("(look) => haaw.store.go({ look })", path)
        array = source.value(path).array
        cells = page.locator("dialog.closer table tbody td").all_inner_texts()
        plane = array if array.ndim < 3 else array[head] if array.shape[0] > 1 else array[0]
        expected = plane.reshape(-1) if plane.shape[0] == 1 else plane[:24, :12].reshape(-1)
        assert [number(text) for text in cells] == pytest.approx(
            expected[: len(cells)].tolist(), rel=6e-4, abs=1e-12
        )

        go(page, stage="choose", step=step)
        choice = content.step("decode", step)["choice"]
        assert page.locator("#choose .candidates .tabular").all_inner_texts() == [
            percent(each["probability"]) for each in choice["candidates"]
        ]
        go(page, stage="cache", step=step)
        size = content.story["cache_sizes"][step]
        assert page.locator("#cache dd").all_inner_texts()[:2] == [str(size["length"]), str(size["capacity"])]


def go(page, **place):
    page.evaluate("(place) => haaw.store.go({ ...place, look: null }, 'jump')", place)


def percent(share):
    """The page's own writing of a share, said again."""
    if 0 < share < 0.0001:
        return "< 0.01 %"
    value = share * 100
    return f"{value:.0f} %" if value >= 99.95 else f"{value:.1f} %" if value >= 10 else f"{value:.2f} %"


def number(text):
    if "×" in text:
        mantissa, power = text.replace("−", "-").split(" × 10")
        return float(mantissa) * 10.0 ** int(power.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")))
    return float(text.replace("−", "-"))


def test_any_number_of_a_value_can_be_reached(opened, page_file, source):
    page = opened(page_file, "#stage=decode&step=3&look=decode%203/output.logits")
    logits = source.value("decode 3/output.logits").array[0]
    page.locator("dialog.closer").get_by_label("from column").fill("1700")
    page.keyboard.press("Enter")
    assert "column=1700" in page.evaluate("document.documentElement.dataset.state")
    cells = page.locator("dialog.closer table tbody td").all_inner_texts()
    assert [number(text) for text in cells] == pytest.approx(logits[1700:].tolist(), rel=6e-4)
    page.evaluate("haaw.store.go({ look: 'prefill 0/layer 1/attention.scores', head: 2 })")
    page.evaluate("haaw.store.go({ row: 5, column: 3 })")
    scores = source.value("prefill 0/layer 1/attention.scores").array[2]
    cells = page.locator("dialog.closer table tbody td").all_inner_texts()
    shown = [float("-inf") if text == "−∞" else number(text) for text in cells]
    assert shown == pytest.approx(scores[5:, 3:].reshape(-1).tolist(), rel=6e-4)
