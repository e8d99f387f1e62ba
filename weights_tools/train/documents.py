"""The training text: a deterministic, endless mixture of documents, each a row of weighted pieces of text.

A weight says how much a piece counts in the loss: answers and second copies teach most, the random first copy of a
list teaches nothing. Nothing here knows how text becomes tokens, except that a piece begins at a token boundary.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from weights_tools.train import drills, facts, words
from weights_tools.train.asking import Asked, question_pieces
from weights_tools.train.inference_talk import TALK
from weights_tools.train.questions import Question, questions_about
from weights_tools.train.stories import Story, tell_story
from weights_tools.train.teller import Beat, world_after

COPY_WEIGHT = 1.0
# Who, what and where: in a plain story these words count so much more, since it is they that break the rules.
TELLING_FACTOR = 2.0

# Stands before a story that questions follow; a text that begins with the story itself is told to its end.
STORY_MARK = "The story:"

# Share of the documents (not of the tokens) of each sort: of all that is generated unless something else is asked for
# (the tokenizer's corpus), in the first part of the training, and in the rest of it. Lists and pairs come first:
# looking up who, where and which builds on the induction heads that they form.
MIXTURE: dict[str, float] = {
    "story": 0.12,
    "story and questions": 0.22,
    "drill": 0.24,
    "exchanges": 0.10,
    "first holders": 0.05,
    "holder list": 0.03,
    "facts": 0.10,
    "talk": 0.06,
    "name list": 0.11,
    "word list": 0.11,
    "pair list": 0.06,
    "random list": 0.24,
}

EARLY_MIXTURE: dict[str, float] = {
    "story": 0.04,
    "story and questions": 0.05,
    "drill": 0.04,
    "exchanges": 0.02,
    "first holders": 0.05,
    "holder list": 0.45,
    "facts": 0.02,
    "talk": 0.01,
    "name list": 0.04,
    "word list": 0.04,
    "pair list": 0.22,
    "random list": 0.12,
}
LATE_MIXTURE: dict[str, float] = {
    "story": 0.45,
    "story and questions": 0.13,
    "drill": 0.12,
    "exchanges": 0.10,
    "first holders": 0.04,
    "holder list": 0.03,
    "facts": 0.04,
    "talk": 0.03,
    "name list": 0.01,
    "word list": 0.01,
    "pair list": 0.01,
    "random list": 0.03,
}

# How often a sort of question is asked, relative to the others.
QUESTION_SHARE: dict[str, float] = {
    "who has it": 3.0, "where is the person": 4.0, "where is the object": 4.0, "where is the held object": 1.5,
    "name": 1.5, "kind": 0.5, "count": 3.0, "colour": 1.0, "who gave": 1.0, "who lost it": 1.0, "day": 1.0, "why": 1.5,
}  # fmt: skip


@dataclass(frozen=True)
class Document:
    """One document: pieces of text with their loss weights, or a count of random tokens to be repeated."""

    sort: str
    pieces: list[tuple[str, float]] = field(default_factory=list)
    random_tokens: int = 0


def documents(seed: int, *, mixture: dict[str, float] | None = None) -> Iterator[Document]:
    """Give documents without end; the same seed gives the same documents."""
    rng = random.Random(f"haaw tiny {seed}")
    table = mixture or MIXTURE
    while True:
        yield make_document(rng.choices(list(table), list(table.values()))[0], rng)


def make_document(sort: str, rng: random.Random) -> Document:
    """Make one document of a sort of the mixture."""
    if sort == "random list":
        return Document(sort, random_tokens=list_length(rng, 60))
    pieces = _MAKERS[sort](rng)
    if rng.random() < 0.75:  # people type a prompt without a leading space
        pieces[0] = (pieces[0][0].removeprefix(" "), pieces[0][1])
    return Document(sort, pieces)


def list_length(rng: random.Random, longest: int) -> int:
    """Draw a list length, short ones more often."""
    return min(longest, 3 + int(longest * rng.random() ** 1.5))


def _form(rng: random.Random) -> str:
    return rng.choice(("plain", "plain", "lines", "turns"))


def choose_questions(rng: random.Random, questions: list[Question], count: int) -> list[Question]:
    """Draw up to so many different questions, the important sorts more often."""
    ranked = sorted(questions, key=lambda one: rng.random() ** (1.0 / QUESTION_SHARE[one.sort]), reverse=True)
    chosen = ranked[:count]
    rng.shuffle(chosen)
    return chosen


def cut_story(rng: random.Random) -> list[Beat]:
    """Tell a story and break it off somewhere, or (one time in four) let it end."""
    beats = tell_story(rng).beats
    if rng.random() < 0.25:
        return beats
    return beats[: rng.randint(min(4, len(beats) - 1), len(beats) - 1)]


def text_of(beats: list[Beat]) -> str:
    """Join the sentences of some events."""
    return " ".join(beat.text for beat in beats)


def marked(beats: list[Beat]) -> str:
    """Join the sentences of a story that questions follow."""
    return f"{STORY_MARK} {text_of(beats)}"


def _story(rng: random.Random) -> list[tuple[str, float]]:
    return [(" " + tell_story(rng).text, 1.0)]


def _story_and_questions(rng: random.Random) -> list[tuple[str, float]]:
    beats = cut_story(rng)
    asked = choose_questions(rng, questions_about(world_after(beats)), rng.choice((1, 4, 8, 12)))
    return question_pieces([one.asked for one in asked], _form(rng), marked(beats))


def _drill(rng: random.Random) -> list[tuple[str, float]]:
    """A story with questions after every few events, so that each event teaches at once."""
    story: Story = tell_story(rng)
    pieces: list[tuple[str, float]] = []
    form = rng.choice(("plain", "lines"))
    start = 0
    while start < len(story.beats) - 1:
        stop = min(len(story.beats), start + rng.randint(2, 5))
        asked = choose_questions(rng, questions_about(world_after(story.beats[:stop])), rng.randint(2, 5))
        part = story.beats[start:stop]
        pieces += question_pieces(
            [one.asked for one in asked], form, text_of(part) if start else marked(part)
        )
        start = stop
    return pieces


def _first_holders(rng: random.Random) -> list[tuple[str, float]]:
    beats, asked = drills.first_holders(rng)
    return question_pieces([one.asked for one in asked], _form(rng), marked(beats))


def _exchanges(rng: random.Random) -> list[tuple[str, float]]:
    pieces: list[tuple[str, float]] = []
    form = rng.choice(("plain", "lines"))
    for beats, asked in drills.exchanges(rng):
        told = text_of(beats) if pieces else marked(beats)
        pieces += question_pieces([one.asked for one in asked], form, told)
    return pieces


def _facts(rng: random.Random) -> list[tuple[str, float]]:
    pairs = [Asked(*facts.random_pair(rng)) for _ in range(rng.choice((1, 4, 8)))]
    return question_pieces(pairs, _form(rng))


def _talk(rng: random.Random) -> list[tuple[str, float]]:
    chosen = rng.sample(TALK, rng.choice((1, 2, 3)))
    return question_pieces([Asked(rng.choice(ways), answer) for ways, answer in chosen], _form(rng))


def _list(rng: random.Random, stock: tuple[str, ...], longest: int) -> list[tuple[str, float]]:
    count = list_length(rng, longest)
    chosen = rng.sample(stock, count) if count <= len(stock) else rng.choices(stock, k=count)
    joined = (", " if rng.random() < 0.6 else " ").join(chosen)
    return [(f" {joined}.", 0.0), (f" {joined}.", COPY_WEIGHT)]


def _name_list(rng: random.Random) -> list[tuple[str, float]]:
    return _list(rng, words.NAMES, 28)


def _word_list(rng: random.Random) -> list[tuple[str, float]]:
    stock = rng.choice(
        (words.OBJECTS, words.PLACES + words.COLOURS, words.OBJECTS + words.PLACES + words.NUMBERS)
    )
    return _list(rng, stock, 40)


_MAKERS = {
    "story": _story,
    "story and questions": _story_and_questions,
    "drill": _drill,
    "exchanges": _exchanges,
    "first holders": _first_holders,
    "holder list": drills.holder_list,
    "pair list": drills.pair_list,
    "facts": _facts,
    "talk": _talk,
    "name list": _name_list,
    "word list": _word_list,
}
