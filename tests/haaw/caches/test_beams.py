"""Two beams over forks of every kind of cache: whichever parent wins, its rows go with its ids.

FAULTS: S77 (state that was not put in the beams' new order).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.tiny_models import tiny_llama

from haaw.arrays import to_host
from haaw.caches.kinds import KINDS, make_cache
from haaw.generation.engine import advance, advance_without_cache

MODEL = tiny_llama(6, dtype="float64")
PROMPTS = [[1, 2, 3, 4, 5], [9], [17, 3, 17, 3, 60, 2, 8]]
STEPS = 6
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("dynamic", {}),
    "dynamic from one": ("dynamic", {"first_capacity": 1}),
    "static": ("static", {"capacity": 14}),
    "sliding over all": ("sliding", {"window": 128}),
    "paged": ("paged", {"block_size": 4, "blocks": 40}),
    "paged in blocks of one": ("paged", {"block_size": 1, "blocks": 80}),
    "quantised, but nothing old enough": ("quantised", {"residual": 100}),
    "offloaded": ("offloaded", {}),
    "concatenated": ("concatenated", {}),
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding over 4": ("sliding", {"window": 4}),
    "sliding over 3 and 2 sinks": ("sliding", {"window": 3, "sinks": 2}),
    "quantised": ("quantised", {"group": 2, "residual": 2}),
    "quantised to 4 bits": ("quantised", {"bits": 4, "group": 4, "residual": 4}),
}


@dataclass
class Beam:
    """One beam: its ids, their log-probability, the logits behind them, and what its rows lie in."""

    ids: list[int]
    score: float
    logits_V: np.ndarray
    state: Any = None
    parent: int = 0


def two_beams(
    prompt: Sequence[int],
    begin: Callable[[Sequence[int]], tuple[Any, np.ndarray]],
    go_on: Callable[[Beam, int], tuple[Any, np.ndarray]],
    let_go: Callable[[Any], None] = lambda state: None,
) -> tuple[list[Beam], list[list[int]]]:
    """The two beams after some steps, and the parents of both in each step."""
    state, logits_V = begin(prompt)
    beams, parents = [Beam(list(prompt), 0.0, logits_V, state)], []
    for _ in range(STEPS):
        candidates = []
        for number, beam in enumerate(beams):
            shifted_V = beam.logits_V - beam.logits_V.max()
            scores_V = shifted_V - np.log(np.exp(shifted_V).sum())
            best = np.argsort(-scores_V)[:2].tolist()
            candidates += [(beam.score + scores_V[each], number, each) for each in best]
        chosen = sorted(candidates, reverse=True)[:2]
        children = []
        for score, number, token_id in chosen:
            parent = beams[number]
            state, logits_V = go_on(parent, token_id)
            children.append(Beam([*parent.ids, token_id], score, logits_V, state, number))
        for beam in beams:
            let_go(beam.state)
        beams = children
        parents.append([beam.parent for beam in beams])
    return beams, parents


def step(cache: Any, ids: Sequence[int]) -> np.ndarray:
    return to_host(advance(MODEL, cache, ids))[-1]


def new(kind: str, options: dict[str, Any]) -> Any:
    return make_cache(kind, MODEL.cache_layout, MODEL.prototype_Z, context_length_tokens=128, **options)


def over_forks(
    kind: str, options: dict[str, Any], prompt: Sequence[int]
) -> tuple[list[Beam], list[list[int]]]:
    def begin(ids: Sequence[int]) -> tuple[Any, np.ndarray]:
        cache = new(kind, options)
        return cache, step(cache, ids)

    def go_on(parent: Beam, token_id: int) -> tuple[Any, np.ndarray]:
        twin = parent.state.fork()
        return twin, step(twin, [token_id])

    return two_beams(prompt, begin, go_on, lambda cache: cache.release())


def without_a_cache(prompt: Sequence[int]) -> tuple[list[Beam], list[list[int]]]:
    def anew(ids: Sequence[int]) -> tuple[None, np.ndarray]:
        logits_BV = advance_without_cache(MODEL, lambda: new("none", {}), ids, chunk_tokens=100)
        return None, to_host(logits_BV)[-1]

    return two_beams(prompt, anew, lambda parent, token_id: anew([*parent.ids, token_id]))


def changes_parents(parents: Sequence[Sequence[int]]) -> bool:
    """Whether, behind the first step, the winner comes from the second beam, or one beam has both children."""
    return any(each[0] == 1 or each[0] == each[1] for each in parents[1:])


def test_kinds_left_out_are_none():
    assert {kind for kind, _ in (EXACT | OTHERS).values()} == set(KINDS)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("kind", "options"), EXACT.values(), ids=EXACT)
def test_beams_over_forks_are_those_without_a_cache(kind, options, prompt):
    expected, expected_parents = without_a_cache(prompt)
    beams, parents = over_forks(kind, options, prompt)
    assert parents == expected_parents
    for beam, wanted in zip(beams, expected, strict=True):
        assert beam.ids == wanted.ids
        assert abs(beam.logits_V - wanted.logits_V).max() < 1e-10 * abs(wanted.logits_V).max()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("kind", "options"), (EXACT | OTHERS).values(), ids=EXACT | OTHERS)
def test_a_beam_is_what_a_cache_of_its_own_would_have_made_of_its_ids(kind, options, prompt):
    """Also for the kinds that round or forget: the fork has the very rows that its origin had."""
    beams, _ = over_forks(kind, options, prompt)
    for beam in beams:
        cache = new(kind, options)
        wanted_V = step(cache, prompt)
        for token_id in beam.ids[len(prompt) :]:
            wanted_V = step(cache, [token_id])
        assert abs(beam.logits_V - wanted_V).max() <= 1e-12 * abs(wanted_V).max()
        assert beam.state.length == cache.length
        beam.state.release()


def test_the_winner_does_change_its_parent():
    """Otherwise the tests above would show nothing."""
    assert all(changes_parents(without_a_cache(prompt)[1]) for prompt in PROMPTS)
