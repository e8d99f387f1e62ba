"""Requests whose cache can be looked at, over models whose answer is known."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.scripted import ScriptedModel
from support.tiny_models import NumberText

from haaw.caches.dynamic import DynamicCache
from haaw.generation.phases import PhaseClock
from haaw.generation.request import Request
from haaw.generation.settings import make_settings


@pytest.fixture
def caches() -> list[DynamicCache]:
    """The caches that requests of `request_for` have made."""
    return []


@pytest.fixture
def request_for(caches: list[DynamicCache]) -> Callable[..., Request]:
    """`request_for(answer, prompt_tokens=…, eos_ids=…, context=…, before_step=…, clock=…, **settings)`."""

    def make(
        answer: Sequence[int],
        *,
        prompt_tokens: int = 5,
        eos_ids: Sequence[int] = (),
        context: int = 128,
        before_step: Callable[[int], Any] = lambda step: None,
        text_side: Any = None,
        clock: PhaseClock | None = None,
        **settings: Any,
    ) -> Request:
        model = ScriptedModel(
            answer, prompt_length=prompt_tokens, context_length_tokens=context, before_step=before_step
        )

        def make_cache() -> DynamicCache:
            caches.append(DynamicCache(model.cache_layout, model.prototype_Z))
            return caches[-1]

        return Request(
            model,
            text_side or NumberText(eos_ids),
            [1] * prompt_tokens,
            make_settings(**settings),
            make_cache=make_cache,
            clock=clock,
        )

    return make
