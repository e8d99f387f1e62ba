import hashlib
import itertools
import random
import re

import pytest

from weights_tools.train.checker import check_story
from weights_tools.train.documents import documents
from weights_tools.train.questions import questions_about
from weights_tools.train.sentences import CLOSING, SAID
from weights_tools.train.shapes import SHAPES, SIGNATURES
from weights_tools.train.stories import tell_story
from weights_tools.train.teller import SLOT, world_after
from weights_tools.train.world import RULES, World


def test_there_are_at_least_forty_shapes_of_stories():
    assert len(SHAPES) >= 40


def test_every_kind_of_event_has_a_rule_a_sentence_and_a_signature():
    assert set(RULES) == set(SAID) == set(SIGNATURES)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_can_be_told_with_any_cast(shape):
    for seed in range(25):
        story = tell_story(random.Random(seed), shape)
        assert story.text.endswith(CLOSING)


def test_the_vocabulary_has_several_hundred_words():
    rng = random.Random(1)
    text = " ".join(tell_story(rng).text for _ in range(800))
    assert len(set(re.findall(r"[a-z]+", text.lower()))) > 300


def test_stories_differ():
    rng = random.Random(2)
    assert len({tell_story(rng).text for _ in range(500)}) == 500


def test_the_checker_raises_no_false_alarm():
    seed = random.randrange(10**9)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(1500):
        story = tell_story(rng).text
        verdict = check_story(story)
        assert verdict.broken is None, (verdict.broken, verdict.sentence, story)
        assert verdict.closed


def test_the_checker_reads_back_the_state_that_the_teller_had():
    rng = random.Random(3)
    for _ in range(200):
        story = tell_story(rng)
        told, read = world_after(story.beats), check_story(story.text).world
        for part in (
            "kind_of",
            "place_of",
            "holder_of",
            "lies_in",
            "colour_of",
            "count_of",
            "lost_by",
            "day",
        ):
            assert getattr(told, part) == getattr(read, part), (part, story.text)


OPENING = (
    "Once upon a time there was a girl named Mia. Mia was in the park. A boy named Tom was in the barn. "
)


@pytest.mark.parametrize(
    ("rest", "broken"),
    [
        ("Mia gave the ball to Tom.", "Mia does not have the ball"),
        ("Mia had a red ball. Mia gave the ball to Tom.", "Mia and Tom are apart"),
        ("Mia went to the park.", "Mia is already in the park"),
        ("Now Tom was in the park.", "Tom is in the barn, not in the park"),
        ("Anna went to the park.", "Anna was never introduced"),
        ("Tom smiled. She went to the cave.", 'Tom is not "She"'),
        ("Mia had a red ball. The ball was blue.", "the ball is not blue"),
        ("Mia had a red ball. Mia had a blue ball.", "a second ball"),
        ("Mia had seven nuts. Mia found two more nuts. Now Mia had eight nuts.", "the total is 9, not eight"),
        ("Mia had seven nuts. Mia ate two nuts. Now Mia had six nuts.", "the total is 5, not six"),
        ("Mia was sad because she had lost the ball.", "Mia did not lose the ball"),
        ("It was a rainy day. It was a sunny day.", "it is rainy"),
        ("It was Monday. The next day was Friday.", "after Monday comes Tuesday"),
        ("A girl named Dan was in the park.", "Dan cannot be a girl"),
        ("A cat named Mia was in the park.", "Mia was introduced before"),
        ("Mia had a red ball. Mia left the ball in the cave.", "Mia is not in the cave"),
        (
            "Mia had a red ball. Mia left the ball in the park. Tom took the ball.",
            "the ball is not where Tom is",
        ),
        ("Mia lay down and slept. Mia smiled.", "Mia is asleep"),
        ("Mia had a red pie. Mia ate the pie. Mia still had the pie.", "Mia does not have the pie"),
        ("Mia flew to the moon.", "not a sentence of this world"),
        ("And that was that. The end. Mia smiled.", "the story goes on after its end"),
        ("Mia smiled.", "no closing words"),
        (
            '"May I have the ball?" asked Tom. "No," said Mia. "I want to keep it."',
            "Mia does not have the ball",
        ),
    ],
)
def test_the_checker_finds_a_broken_rule(rest, broken):
    assert check_story(OPENING + rest).broken == broken


def test_a_broken_event_leaves_the_state_as_it_was():
    verdict = check_story(OPENING + "Mia had a red ball. Mia gave the ball to Tom.")
    assert verdict.world.holder_of == {"ball": "Mia"}


def test_answers_follow_from_a_story_worked_out_by_hand():
    text = OPENING + (
        "Mia had a red ball. Tom came to Mia in the park. Mia gave the ball to Tom. Tom went to the cave. "
        "He left the ball in the cave. He had seven nuts. He ate two nuts. Now Tom had five nuts. The end."
    )
    world = check_story(text.removesuffix(" The end.")).world
    answers = {question.text: question.answer for question in questions_about(world)}
    assert answers["Where is Tom?"] == "Tom is in the cave."
    assert answers["Where is Mia?"] == "Mia is in the park."
    assert answers["Where is the ball?"] == "The ball is in the cave."
    assert answers["How many nuts does Tom have?"] == "Tom has five nuts."
    assert answers["What colour is the ball?"] == "The ball is red."
    assert answers["What is the name of the boy?"] == "The boy is called Tom."
    assert "Who has the ball?" not in answers


def test_every_slot_of_a_sentence_is_filled():
    rng = random.Random(4)
    assert not any("{" in tell_story(rng).text for _ in range(300))
    assert all(
        slot != "A" or "A" in SIGNATURES[kind]
        for kind in SAID
        for s in SAID[kind]
        for slot in SLOT.findall(s)
    )


def test_the_same_seed_gives_the_same_corpus():
    digests = [
        hashlib.sha256(repr(list(itertools.islice(documents(seed), 300))).encode()).hexdigest()
        for seed in (5, 5, 6)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_corpus_is_the_one_that_is_known():
    """A change of the generator must be made knowingly: it makes older checkpoints another recipe's."""
    text = repr(list(itertools.islice(documents(1), 200)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == CORPUS_DIGEST


CORPUS_DIGEST = "551a409f5610be6b"


def test_only_a_story_that_questions_follow_is_marked():
    """Otherwise a story begun by "Once upon a time" might turn into questions instead of coming to its end."""
    for document in itertools.islice(documents(3), 400):
        text = "".join(part for part, _ in document.pieces)
        asked = "Question:" in text or "<|user|>" in text
        if document.sort in ("story", "story and questions", "drill"):
            assert text.removeprefix("<|user|>").removeprefix(" ").startswith("The story:") == asked
            assert asked or text.endswith(CLOSING)


def test_a_new_world_knows_nothing():
    assert questions_about(World()) == []
