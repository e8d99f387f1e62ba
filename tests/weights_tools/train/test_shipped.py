"""The model file that HAAW ships, examined with HAAW itself (no PyTorch needed)."""

from pathlib import Path

import pytest

import haaw
from weights_tools.train.items import story_items
from weights_tools.train.tokenizer import load_tokenizer, split_words

FOLDER = Path(haaw.__file__).parent / "data"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "tiny.gguf").is_file(), reason="no embedded model in this checkout"
)


@pytest.fixture(scope="module")
def tiny():
    return haaw.load(str(FOLDER / "tiny.gguf"))


def test_it_is_small_and_has_a_card():
    assert (FOLDER / "tiny.gguf").stat().st_size <= 6_000_000
    card = (FOLDER / "tiny.md").read_text()
    assert "Apache-2.0" in card
    assert "## Figures" in card


def test_its_tokenizer_reads_as_sentencepiece_does(tiny):
    """Written back as a SentencePiece model, as a training that begins with this file does."""
    pytest.importorskip("torch")
    from weights_tools.train.beginning import read_beginning

    again = load_tokenizer(read_beginning(FOLDER / "tiny.gguf").tokenizer_model)
    assert tiny.transformer.vocabulary_size == again.get_piece_size()
    assert split_words(again) == []
    for text in (
        "Once upon a time",
        "The story: Mia was in the park.",
        "Question: Who has the ball? Answer:",
        "é🎈",
    ):
        assert tiny.tokenizer.encode(text) == again.encode(text)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Question: What is 7 + 5? Answer:", " 7 + 5 = 12."),
        (
            "Question: What is the KV cache? Answer:",
            " The KV cache keeps the keys and values of all tokens read so far.",
        ),
        ("Mia, Tom, Anna, Ben, Leo, Rosa. Mia, Tom, Anna,", " Ben, Leo, Rosa."),
    ],
)
def test_it_says_what_it_learned(tiny, prompt, answer):
    assert tiny.generate(prompt, max_tokens=25).text.startswith(answer)


def test_a_story_comes_to_its_end(tiny):
    told = tiny.generate("Once upon a time", max_tokens=300)
    assert told.finish.reason == "eos"
    assert told.text.endswith("The end.")


@pytest.mark.parametrize(("sort", "at_least"), [("where is the person", 27), ("name", 28), ("count", 28)])
def test_it_answers_questions_about_worlds_it_has_not_seen(tiny, sort, at_least):
    """The card says 99 % and more; of 30 items a few may fail."""
    # Turn tokens typed as text are text in HAAW, so only the plain forms.
    items = [item for item in story_items(sort, 60, seed="shipped") if item.form != "turns"][:30]
    right = 0
    for item in items:
        prompt, answer = item.ids(tiny.tokenizer)
        said = tiny.generate(prompt, max_tokens=len(answer))
        right += list(said.token_ids) == answer
    assert right >= at_least
