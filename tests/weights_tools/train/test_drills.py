import random
import re

import pytest

from weights_tools.train import drills
from weights_tools.train.asking import KEY_WEIGHT, Asked, question_pieces
from weights_tools.train.checker import check_story
from weights_tools.train.documents import LATE_MIXTURE, cut_story, make_document, text_of
from weights_tools.train.questions import questions_about
from weights_tools.train.teller import world_after


def answers_read_from(text):
    """What is so after a text, found by the checker from the text alone."""
    return {one.text: one.answer for one in questions_about(check_story(text).world)}


@pytest.mark.parametrize("sort", LATE_MIXTURE)
def test_every_document_has_text(sort):
    """One in some ten thousand rooms had no thing in it, and ended a training of 42 minutes."""
    rng = random.Random(7)
    for _ in range(3000):
        document = make_document(sort, rng)
        assert document.random_tokens or all(text for text, _ in document.pieces)
        assert document.random_tokens or document.pieces


def test_a_room_without_things_gets_one(monkeypatch):
    chosen = []

    def choice(self, options):
        picked = "go" if "go" in options and len(chosen) < 40 else plain(self, options)
        chosen.append(picked)
        return picked

    plain = random.Random.choice
    monkeypatch.setattr(random.Random, "choice", choice)
    assert drills.exchanges(random.Random(8))


def test_exchanges_are_answered_by_reading_them_back():
    rng = random.Random(1)
    asked = 0
    for _ in range(150):
        told = ""
        for beats, questions in drills.exchanges(rng):
            told += " " + text_of(beats)
            read = answers_read_from(told)
            for one in questions:
                assert read[one.text] == one.answer, (told, one)
                asked += 1
    assert asked > 1000


def test_first_holders_are_answered_by_reading_them_back():
    rng = random.Random(2)
    for _ in range(150):
        beats, questions = drills.first_holders(rng)
        read = answers_read_from(text_of(beats))
        for one in questions:
            assert read[one.text] == one.answer
        assert len(questions) == len(check_story(text_of(beats)).world.holder_of)


def test_in_the_drills_the_thing_decides_who_has_it():
    """What the drills are for: in most stories whoever holds anything is the answer, in the drills hardly ever."""
    rng = random.Random(3)
    stories = [world_after(cut_story(rng)) for _ in range(400)]
    single = [len(set(world.holder_of.values())) == 1 for world in stories if world.holder_of]
    assert sum(single) > 0.6 * len(single)
    worlds = [world_after(drills.first_holders(rng)[0]) for _ in range(400)]
    assert all(len(set(world.holder_of.values())) >= 2 for world in worlds)


def test_pairs_are_asked_for_in_either_direction_and_another_order():
    rng = random.Random(4)
    turned = []
    for _ in range(200):
        pieces = drills.pair_list(rng)
        told = [tuple(pair.split()) for pair in pieces[0][0].strip(" .").split(", ")]
        shown = [text.strip() for text, _ in pieces[1::3]]
        sought = [text.strip() for text, _ in pieces[2::3]]
        asked = list(zip(shown, sought, strict=True))
        assert sorted(asked) == sorted(told) or sorted((b, a) for a, b in asked) == sorted(told)
        turned.append(sorted(asked) != sorted(told))
    assert 50 < sum(turned) < 150


def test_a_list_of_holders_is_asked_about_truly():
    rng = random.Random(5)
    for _ in range(300):
        drilled = drills.holder_list(rng)
        # The first piece tells, the rest asks.
        told = drilled[0][0]
        asked = "".join(text for text, _ in drilled[1:])
        pairs = re.findall(r"The (\w+) is with (\w+)\.", asked) or re.findall(r"(\w+) (\w+),", asked)
        assert len(pairs) >= 2
        for thing, name in pairs:
            assert re.search(rf"\b{name} [^.,]*\b{thing}\b", told), (told, thing, name)


def test_the_deciding_word_is_a_piece_of_its_own(tokenizer):
    """Splitting the answer there changes no token, so that asking by hand gives what was trained."""
    rng = random.Random(6)
    sorts = set()
    for _ in range(300):
        for one in questions_about(world_after(cut_story(rng))):
            pieces = question_pieces([one.asked], "plain")[1:]
            assert [text for text, weight in pieces if weight == KEY_WEIGHT] == [f" {one.key}"]
            ids = [each for text, _ in pieces for each in tokenizer.encode(text)]
            assert ids == tokenizer.encode(f" {one.answer}")
            sorts.add(one.sort)
    assert len(sorts) >= 10


@pytest.mark.parametrize(
    ("form", "laid_out"),
    [
        ("plain", " S. Question: Q? Answer: It is red. Question: P? Answer: No."),
        ("lines", " S.\n Question: Q?\n Answer: It is red.\n Question: P?\n Answer: No."),
        ("turns", "<|user|> S. Q?<|assistant|> It is red.<|end|><|user|> P?<|assistant|> No.<|end|>"),
    ],
)
def test_questions_are_laid_out_in_three_forms(form, laid_out):
    pieces = question_pieces([Asked("Q?", "It is red.", "red"), Asked("P?", "No.")], form, "S.")
    assert "".join(text for text, _ in pieces) == laid_out
