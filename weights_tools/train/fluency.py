"""Judges sampled stories: whether they end, keep the rules of the world, and are more than copies."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from weights_tools.train import words
from weights_tools.train.checker import check_story
from weights_tools.train.documents import MIXTURE, make_document
from weights_tools.train.looking import sample_stories
from weights_tools.train.network import Network
from weights_tools.train.sentences import CLOSING
from weights_tools.train.stories import tell_story
from weights_tools.train.tokenizer import BEGIN_ID, END_ID

OPENING = "Once upon a time"
RUN_TOKENS = 30


@dataclass(frozen=True)
class Fluency:
    """What was found in a number of sampled stories; shares are from 0 to 1."""

    stories: list[str]
    ended: float
    unbroken: float
    broken_rules: dict[str, int]
    shared_runs: float
    shared_runs_of_generator: float


def judge_fluency(
    network: Network,
    tokenizer: Any,
    *,
    count: int,
    seed: int,
    heat: float = 0.7,
    training_documents: int,
    training_seed: int,
) -> Fluency:
    """Sample stories and judge them beside stories of the generator from another seed."""
    opening = [BEGIN_ID, *tokenizer.encode(OPENING)]
    rows = sample_stories(network, opening, END_ID, count, seed, heat)
    texts = [tokenizer.decode(row) for row in rows]
    ended = [row[-1] == END_ID and text.endswith(CLOSING) for row, text in zip(rows, texts, strict=True)]
    verdicts = [check_story(text) for text in texts]
    known = training_runs(tokenizer, training_documents, training_seed)
    rng = random.Random(f"fluency {seed}")
    others = [tokenizer.encode(tell_story(rng).text) for _ in range(count)]
    return Fluency(
        texts,
        sum(ended) / count,
        sum(verdict.broken is None for verdict in verdicts) / count,
        dict(Counter(_sort(verdict.broken) for verdict in verdicts if verdict.broken)),
        shared_share(rows, known),
        shared_share(others, known),
    )


def _sort(broken: str) -> str:
    """Name the sort of a broken rule: its message with every name, thing, place and number left open."""
    opened = broken
    for stock, letter in (
        (words.NAMES, "A"),
        (words.OBJECTS, "x"),
        (words.PLACES, "p"),
        (words.NUMBERS, "n"),
    ):
        opened = re.sub(rf"\b({'|'.join(stock)})\b", letter, opened)
    return re.sub(r"\d+", "n", opened)


def runs_of(ids: list[int]) -> list[tuple[int, ...]]:
    """List every run of 30 tokens."""
    return [tuple(ids[start : start + RUN_TOKENS]) for start in range(len(ids) - RUN_TOKENS + 1)]


def training_runs(tokenizer: Any, count: int, seed: int) -> set[int]:
    """Give the hashes of all runs of so many training documents with stories in them."""
    rng = random.Random(f"haaw tiny {seed} step 0")
    sorts = [sort for sort in MIXTURE if sort in ("story", "story and questions", "drill")]
    known: set[int] = set()
    for _ in range(count):
        document = make_document(rng.choice(sorts), rng)
        known.update(map(hash, runs_of(tokenizer.encode("".join(text for text, _ in document.pieces)))))
    return known


def shared_share(rows: list[list[int]], known: set[int]) -> float:
    """Give the share of the runs of some rows that occur in the training text."""
    runs = [hash(run) for row in rows for run in runs_of(row)]
    return sum(run in known for run in runs) / max(1, len(runs))
