"""The questions that the model is examined on: worlds from other seeds than the training's, with nothing simplified."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from weights_tools.train import facts, words
from weights_tools.train.asking import Asked, question_pieces
from weights_tools.train.documents import cut_story, marked
from weights_tools.train.questions import questions_about
from weights_tools.train.teller import world_after
from weights_tools.train.tokenizer import BEGIN_ID

EXAM_SEED = "held-out worlds"

STORY_SORTS = (
    "who has it",
    "where is the object",
    "where is the held object",
    "where is the person",
    "name",
    "count",
    "colour",
    "why",
)


@dataclass(frozen=True)
class Item:
    """A prompt, the answer that follows it, and how many names or places could be guessed."""

    sort: str
    context: str
    question: str
    answer: str
    form: str
    candidates: int

    def prompt(self) -> str:
        """Give the whole prompt, up to where the answer begins."""
        if self.form == "list":
            return self.context
        pieces = question_pieces([Asked(self.question, self.answer)], self.form, self.context)
        return "".join(text for text, _ in pieces[:-1]).removeprefix(" ")

    def ids(self, tokenizer: Any) -> tuple[list[int], list[int]]:
        """Give the ids of the prompt (with the begin id) and of the answer."""
        prompt = [BEGIN_ID, *tokenizer.encode(self.prompt())]
        return prompt, list(tokenizer.encode(" " + self.answer))


def story_items(sort: str, count: int, seed: str = EXAM_SEED) -> list[Item]:
    """Draw so many questions of one sort, each about another world, cut anywhere."""
    rng = random.Random(f"{seed} {sort}")
    items: list[Item] = []
    while len(items) < count:
        beats = cut_story(rng)
        fitting = [one for one in questions_about(world_after(beats)) if one.sort == sort]
        if sort == "name":  # recalled among two or more
            fitting = [one for one in fitting if one.candidates >= 2]
        if fitting:
            one = rng.choice(fitting)
            form = rng.choice(("plain", "lines", "turns"))
            items.append(Item(sort, marked(beats), one.text, one.answer, form, one.candidates))
    return items


def sum_items(count: int, seed: str = EXAM_SEED) -> list[Item]:
    """Draw sums and differences to 20, in words and in digits. All of them occur in training: this tests memory."""
    rng = random.Random(f"{seed} sums")
    items = []
    for _ in range(count):
        first, second, sign = rng.choice(facts.all_sums())
        question, answer = facts.sum_pair(first, second, sign, rng.choice(("words", "digits")))
        items.append(Item("sums", "", question, answer, rng.choice(("plain", "lines", "turns")), 21))
    return items


def list_items(count: int, seed: str = EXAM_SEED) -> list[Item]:
    """Draw lists of 5 to 25 names that are begun a second time; the answer is the next name."""
    rng = random.Random(f"{seed} lists")
    items = []
    for _ in range(count):
        names = rng.sample(words.NAMES, rng.randint(5, 25))
        shown = rng.randrange(1, len(names))
        context = f"{', '.join(names)}. {', '.join(names[:shown])},"
        items.append(Item("repeated names", context, "", names[shown], "list", len(names)))
    return items


def exam(count: int) -> dict[str, list[Item]]:
    """Give the whole exam: so many items of every sort."""
    return {
        **{sort: story_items(sort, count) for sort in STORY_SORTS},
        "sums": sum_items(count),
        "repeated names": list_items(count),
    }
