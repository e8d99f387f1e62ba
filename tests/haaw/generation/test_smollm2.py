"""SmolLM2-135M-Instruct answers as it does under `transformers`: ids, scores, likelihoods, both forms, all chunks.

The full reference values are found through HAAW_GOLDEN; three cases stand in `smollm2_facts.json` beside this file.
Figures: float32 sums in another order move the last scores by less than 2e-3, and never change a choice whose two
best scores are more than 0.001 apart.
"""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.steps import all_logits

from haaw.generation.language_model import LanguageModel

pytestmark = pytest.mark.weights

LOGITS_TOLERANCE = 2e-3
SAFE_MARGIN = 1e-3
FACTS = json.loads((Path(__file__).parent / "smollm2_facts.json").read_text())["cases"]
CASES = range(8)
LONGEST, CHAT, SHORT = 5, 7, 0
"""Cases by number: 121 ids of prompt, four messages, 5 ids of prompt."""


@pytest.fixture(scope="module")
def last_logits(golden: Path) -> Any:
    return np.load(golden / "smollm2" / "logits.npz")


def prompt_of(case: dict[str, Any]) -> Any:
    return case.get("messages") or case["prompt"]


def form_of(case: dict[str, Any]) -> str:
    return "chat" if "messages" in case else "raw"


def certain(case: dict[str, Any]) -> list[int]:
    """The greedy ids up to the first choice that rounding could change."""
    steps = zip(case["greedy"], case["margin"], strict=True)
    return [token_id for token_id, _ in takewhile(lambda step: step[1] > SAFE_MARGIN, steps)]


def check_answer(model: LanguageModel, case: dict[str, Any], expected: list[int], **settings: Any) -> None:
    answer = model.generate(prompt_of(case), form=form_of(case), max_tokens=len(expected), **settings)
    assert list(answer.token_ids) == expected
    if expected == case["greedy"]:
        ended = expected[-1] in model.tokenizer.eos_ids
        assert answer.finish.reason == ("eos" if ended else "length")
        assert answer.text == case["text"].removesuffix("<|im_end|>")


@pytest.mark.parametrize("fact", FACTS, ids=range(len(FACTS)))
def test_committed_facts(fact: dict[str, Any], smollm2: LanguageModel) -> None:
    assert list(smollm2.prepare(prompt_of(fact), form=form_of(fact)).ids) == fact["ids"]
    check_answer(smollm2, fact, fact["greedy"])


@pytest.mark.parametrize("number", CASES)
def test_prompt_ids_are_equal(number: int, smollm2: LanguageModel, smollm2_cases: list[dict]) -> None:
    case = smollm2_cases[number]
    assert list(smollm2.prepare(prompt_of(case), form=form_of(case)).ids) == case["ids"]


@pytest.mark.parametrize("number", CASES)
def test_scores_and_likelihood_of_a_prompt(
    number: int, smollm2: LanguageModel, smollm2_cases: list[dict], last_logits: Any
) -> None:
    case = smollm2_cases[number]
    logits_TV = all_logits(smollm2.transformer, case["ids"])
    check_scores(logits_TV, number, last_logits)
    shifted_TV = logits_TV[:-1].astype(np.float64)
    shifted_TV -= shifted_TV.max(axis=1, keepdims=True)
    likelihood_T = shifted_TV[range(len(shifted_TV)), case["ids"][1:]] - np.log(
        np.exp(shifted_TV).sum(axis=1)
    )
    assert -likelihood_T.mean() == pytest.approx(case["nll"], abs=1e-4)


def check_scores(logits_TV: np.ndarray, number: int, last_logits: Any) -> None:
    np.testing.assert_allclose(
        logits_TV[-1], last_logits[f"{number:02}.last_logits"], rtol=0, atol=LOGITS_TOLERANCE
    )
    best_T2 = np.sort(logits_TV, axis=1)[:, -2:]
    sure = best_T2[:, 1] - best_T2[:, 0] > 2 * LOGITS_TOLERANCE
    expected_T = last_logits[f"{number:02}.argmax"]
    np.testing.assert_array_equal(logits_TV.argmax(axis=1)[sure], expected_T[sure])


@pytest.mark.parametrize(
    ("number", "heads", "chunk"),
    [
        (LONGEST, "separate", None),
        (LONGEST, "together", 64),
        (LONGEST, "separate", 64),
        (LONGEST, "together", 7),
        (CHAT, "separate", 7),
        (CHAT, "together", 1),
        (SHORT, "separate", 1),
    ],
)
def test_neither_form_nor_chunks_change_the_scores(
    number: int,
    heads: Any,
    chunk: int | None,
    smollm2: LanguageModel,
    smollm2_cases: list[dict],
    last_logits: Any,
) -> None:
    ids = smollm2_cases[number]["ids"]
    check_scores(all_logits(smollm2.transformer, ids, chunk=chunk, heads=heads), number, last_logits)


@pytest.mark.parametrize("number", CASES)
def test_greedy_ids_are_equal(number: int, smollm2: LanguageModel, smollm2_cases: list[dict]) -> None:
    check_answer(smollm2, smollm2_cases[number], certain(smollm2_cases[number]))


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (SHORT, {"heads": "separate", "prefill_chunk_tokens": 1}),
        (CHAT, {"heads": "separate", "prefill_chunk_tokens": 7}),
        (CHAT, {"prefill_chunk_tokens": 64}),
        (SHORT, {"prefill_chunk_tokens": 7}),
    ],
)
def test_greedy_ids_are_equal_in_either_form_and_in_chunks(
    number: int, settings: dict[str, Any], smollm2: LanguageModel, smollm2_cases: list[dict]
) -> None:
    check_answer(smollm2, smollm2_cases[number], certain(smollm2_cases[number]), **settings)
