"""SmolLM2 gives the greedy ids of `transformers` over every kind of cache, and in the mode "none"."""

from itertools import takewhile
from typing import Any

import pytest

from haaw.generation.language_model import LanguageModel

pytestmark = pytest.mark.weights

SHORT, LONGEST, CHAT = 0, 5, 7
"""Cases by number: 5 ids of prompt, 121 ids of prompt, four messages; they end after 30, 64 and 4 new ids."""
SAFE_MARGIN = 1e-3
EXACT: dict[str, dict[str, Any]] = {
    "dynamic": {"cache": "dynamic", "cache_options": {"first_capacity": 10}},
    "concatenated": {"cache": "concatenated"},
    "static": {"cache": "static", "cache_options": {"capacity": 200}},
    "sliding": {"cache": "sliding", "cache_options": {"window": 200}},
    "offloaded": {"cache": "offloaded"},
    "paged": {"cache": "paged", "cache_options": {"block_size": 7}},
}


def check(model: LanguageModel, case: dict[str, Any], new: int, settings: dict[str, Any]) -> None:
    steps = zip(case["greedy"][:new], case["margin"], strict=False)
    certain = [token_id for token_id, _ in takewhile(lambda step: step[1] > SAFE_MARGIN, steps)]
    answer = model.generate(case["ids"], max_tokens=len(certain), **settings)
    assert list(answer.token_ids) == certain


@pytest.mark.parametrize("settings", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize(("number", "chunk"), [(SHORT, 512), (LONGEST, 50), (CHAT, 7)])
@pytest.mark.parametrize("new", [8, pytest.param(64, marks=pytest.mark.long)])
def test_greedy_ids_are_equal_over_every_kind(smollm2, smollm2_cases, number, chunk, new, settings):
    check(smollm2, smollm2_cases[number], new, {**settings, "prefill_chunk_tokens": chunk})


@pytest.mark.parametrize("number", [SHORT, CHAT])
def test_greedy_ids_are_equal_without_any_cache(smollm2, smollm2_cases, number):
    check(smollm2, smollm2_cases[number], 8, {"cache": "none"})
