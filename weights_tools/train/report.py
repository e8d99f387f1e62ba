"""Everything that is measured on the finished model, in one report."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from weights_tools.train.documents import MIXTURE, make_document
from weights_tools.train.examine import Mark, by_candidates, examine, mark, with_exchanged_stories
from weights_tools.train.fluency import Fluency, judge_fluency
from weights_tools.train.interpret import Induction, Pointing, measure_induction, measure_pointing
from weights_tools.train.items import STORY_SORTS, Item, exam
from weights_tools.train.network import Network
from weights_tools.train.tokenizer import encode_document

# The sorts whose answers could be guessed from what the story mentions.
GUESSABLE = ("who has it", "where is the object", "where is the held object", "where is the person", "name")


@dataclass(frozen=True)
class Report:
    """The figures of a model: marks by sort, by what could be guessed, controls, heads, sampled stories."""

    marks: dict[str, Mark]
    by_candidates: dict[str, dict[int, Mark]]
    at_the_end: dict[str, Mark]
    untrained: dict[str, Mark]
    exchanged: dict[str, Mark]
    induction: Induction
    pointing: Pointing
    fluency: Fluency


def make_filler(tokenizer: Any, context_tokens: int) -> Any:
    """Give a function that makes unrelated text which pushes an item into the last quarter of the context."""
    rng = random.Random("filler")

    def fill(needed: int) -> list[int]:
        room = context_tokens - needed - rng.randrange(max(1, context_tokens // 16))
        ids: list[int] = []
        while len(ids) < room:
            sort = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
            ids += encode_document(make_document(sort, rng), tokenizer, rng)[0]
        return ids[-room:] if room > 0 else []

    return fill


def make_report(network: Network, tokenizer: Any, *, items: int, stories: int, training_seed: int) -> Report:
    """Measure everything, with so many items of each sort and so many sampled stories."""
    questions = exam(items)
    answers = examine(network, tokenizer, questions)
    late_answers = examine(
        network, tokenizer, questions, make_filler(tokenizer, network.shape.context_tokens)
    )
    torch.manual_seed(0)
    fresh_answers = examine(Network(network.shape), tokenizer, questions)
    exchanged = {sort: with_exchanged_stories(questions[sort]) for sort in STORY_SORTS}
    exchanged_answers = examine(network, tokenizer, exchanged)
    return Report(
        _marks(questions, answers),
        {sort: by_candidates(questions[sort], answers[sort]) for sort in GUESSABLE},
        _marks(questions, late_answers),
        _marks(questions, fresh_answers),
        _marks(exchanged, exchanged_answers),
        measure_induction(network),
        measure_pointing(network, tokenizer, questions["who has it"]),
        judge_fluency(
            network,
            tokenizer,
            count=stories,
            seed=3,
            training_documents=20 * items,
            training_seed=training_seed,
        ),
    )


def _marks(questions: dict[str, list[Item]], answers: dict[str, list[bool]]) -> dict[str, Mark]:
    return {sort: mark(questions[sort], answers[sort]) for sort in questions}
