"""Packs documents into rows of equal length for training. A batch depends on the seed and the step alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from weights_tools.train.documents import MIXTURE, make_document
from weights_tools.train.tokenizer import encode_document

Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]


def make_row(
    rng: random.Random, tokenizer: Any, tokens: int, mixture: dict[str, float]
) -> tuple[list[int], list[float]]:
    """Fill a row with documents, the last one cut off; ids and the weight of each id as a target."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < tokens:
        sort = rng.choices(list(mixture), list(mixture.values()))[0]
        more_ids, more_weights = encode_document(make_document(sort, rng), tokenizer, rng)
        ids += more_ids
        weights += more_weights
    return ids[:tokens], weights[:tokens]


def make_batch(
    seed: int, step: int, tokenizer: Any, rows: int, tokens: int, mixture: dict[str, float] = MIXTURE
) -> Batch:
    """Give inputs, targets and target weights, each [rows, tokens]."""
    rng = random.Random(f"haaw tiny {seed} step {step}")
    packed = [make_row(rng, tokenizer, tokens + 1, mixture) for _ in range(rows)]
    ids = np.array([row[0] for row in packed], dtype=np.int64)
    weights = np.array([row[1] for row in packed], dtype=np.float32)
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]
