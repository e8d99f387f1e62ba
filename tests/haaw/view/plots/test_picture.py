"""What holds for every picture: nothing global, text that is only text, a sentence, an error without the library."""

import sys

import pytest
from support.tiny_models import NumberText, tiny_llama

import haaw.view
from haaw.errors import MissingLibraryError
from haaw.generation.language_model import LanguageModel
from haaw.memory.plan import Plan
from haaw.memory.presets import PRESETS
from haaw.view.plots.labels import clipped, drawable, token_label

pytest.importorskip("matplotlib")

HOSTILE = [
    "$\\frac{1}{0}$",
    "</script><b>",
    "\u202e\u200frtl",
    "\x1b[31m\n",
    "あ漢",
    "\U0001f600",
    "é",
    "%s{0}\\",
    "_^",
]

PICTURES = {
    "attention": lambda trace: haaw.view.plot_attention(trace, 0, 1, 0),
    "heads": lambda trace: haaw.view.plot_attention_heads(trace, 2, 1),
    "lens": haaw.view.plot_logit_lens,
    "lens of a step": lambda trace: haaw.view.plot_logit_lens(trace, 2),
    "norms": haaw.view.plot_residual_norms,
    "candidates": lambda trace: haaw.view.plot_candidates(trace, 2),
    "cache": haaw.view.plot_cache,
    "phases": haaw.view.plot_phases,
    "value": lambda trace: haaw.view.plot_value(trace, "prefill 0/layer 1/mlp.x"),
    "plan": lambda trace: haaw.view.plot_memory_plan(Plan(PRESETS["gpt2"].shape, 512, name="a_$b^$")),
}


@pytest.mark.parametrize("name", PICTURES)
def test_it_is_drawn_without_a_warning_and_without_pyplot(trace, name):
    had_pyplot = "matplotlib.pyplot" in sys.modules
    figure = PICTURES[name](trace)
    png, facts = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert facts["alt"] == figure.description
    assert len(figure.description) > 30
    assert had_pyplot or "matplotlib.pyplot" not in sys.modules


class Hostile(NumberText):
    """Numbers whose tokens are hostile texts, and one that is 100,000 characters long."""

    def token_bytes(self, token_id):
        text = "x" * 100_000 if token_id == 9 else HOSTILE[token_id % len(HOSTILE)]
        return text.encode()


def test_hostile_tokens_are_text_in_every_picture(record):
    model = LanguageModel("random", tiny_llama(1), Hostile())
    trace = record(model, list(range(10)), max_tokens=4, seed=1, top_k=20)
    for draw in PICTURES.values():
        figure = draw(trace)
        figure._repr_png_()  # a formula that is none, or a character without a picture, would raise or warn
        for text in figure.findobj(lambda each: hasattr(each, "get_parse_math") and "'" in each.get_text()):
            assert not text.get_parse_math()
            assert text.get_text().isprintable() or "\n" in text.get_text()
            assert len(text.get_text()) < 400


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain $x$", "plain $x$"),
        ("a\nb\x1b", "a\\x0ab\\x1b"),
        ("\u202eabc", "\\u202eabc"),
        ("é", "é"),
        ("\ue000", "\\ue000"),
        ("\U0001f9ff", "\\U0001f9ff"),
    ],
)
def test_characters_that_would_not_be_seen_are_spelled_out(text, shown):
    assert drawable(text) == shown


def test_long_tokens_are_cut_and_closed():
    assert clipped("'" + "a" * 100_000 + "'") == "'" + "a" * 16 + "…'"
    assert clipped("' red'") == "' red'"
    assert token_label(None, 7) == "token 7"


def test_the_reader_s_style_is_left_alone(trace):
    from matplotlib import rcParams

    before = dict(rcParams)
    haaw.view.plot_candidates(trace, 2)._repr_png_()
    assert dict(rcParams) == before


def test_without_matplotlib_the_error_names_the_extra(trace, monkeypatch):
    monkeypatch.delitem(sys.modules, "haaw.view.plots.picture", raising=False)
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibraryError, match=r"haaw\[notebooks\]"):
        haaw.view.plot_cache(trace)


def test_the_package_lists_what_it_offers():
    assert set(haaw.view.__all__) <= set(dir(haaw.view))
    assert all(callable(getattr(haaw.view, name)) for name in haaw.view.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plot_everything'"):
        _ = haaw.view.plot_everything
