import random

import pytest

from weights_tools.train.checker import check_story
from weights_tools.train.documents import STORY_MARK, cut_story, make_document, text_of
from weights_tools.train.items import STORY_SORTS, exam, list_items, story_items, sum_items
from weights_tools.train.packing import make_batch
from weights_tools.train.questions import questions_about


@pytest.mark.parametrize("sort", STORY_SORTS)
def test_items_are_answered_by_reading_their_story_back(sort):
    """The checker reads the story from its text alone; its world must give the same answer."""
    for item in story_items(sort, 40):
        answers = {
            one.text: one.answer
            for one in questions_about(check_story(item.context.removeprefix(f"{STORY_MARK} ")).world)
        }
        assert answers[item.question] == item.answer


def test_sums_are_right_by_arithmetic():
    digits = [item for item in sum_items(200) if any(letter.isdigit() for letter in item.question)]
    assert digits
    for item in digits:
        left, right = item.answer.rstrip(".").split(" = ")
        assert eval(left, {}) == int(right)


def test_the_next_name_of_a_list_is_the_one_that_came_next_before():
    for item in list_items(100):
        first, second = item.context.split(". ")
        shown = second.rstrip(",").split(", ")
        assert first.split(", ")[: len(shown) + 1] == [*shown, item.answer]


def test_no_item_has_a_story_of_the_training_text():
    contexts = {item.context for items in exam(30).values() for item in items if item.context}
    rng = random.Random("haaw tiny 7 step 0")
    trained = [make_document("story and questions", rng).pieces[0][0] for _ in range(2000)]
    assert not any(context in text for context in contexts if len(context) > 60 for text in trained)


def test_items_are_as_hard_as_the_training_text():
    """An examination of easier worlds would flatter: stories are cut as in training, nothing is left out."""
    rng = random.Random(5)
    usual = sum(len(text_of(cut_story(rng)).split()) for _ in range(600)) / 600
    asked = sum(len(item.context.split()) for item in story_items("where is the person", 300)) / 300
    assert asked > 0.85 * usual


def test_the_same_call_gives_the_same_exam():
    assert exam(5) == exam(5)


def test_a_batch_depends_on_seed_and_step_alone(tokenizer):
    one, same, later = (make_batch(1, step, tokenizer, 2, 64) for step in (3, 3, 4))
    assert all((a == b).all() for a, b in zip(one, same, strict=True))
    assert not (one[0] == later[0]).all()
    # Targets are the inputs shifted by one.
    assert (one[0][:, 1:] == one[1][:, :-1]).all()
