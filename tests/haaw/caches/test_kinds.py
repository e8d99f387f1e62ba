"""Kinds by name: unknown names and options are refused before anything runs, types are held to what is declared."""

import numpy as np
import pytest
from support.cache_pairs import LAYOUT
from support.tiny_models import tiny_language_model

from haaw.caches.kinds import KINDS, make_cache, options_of, plan_cache
from haaw.caches.protocol import CacheError
from haaw.errors import BadInputError

PROTOTYPE = np.zeros(1, np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_made_by_its_name_without_options(kind):
    cache = make_cache(kind, LAYOUT, PROTOTYPE, context_length_tokens=32)
    assert cache.kind == kind
    assert cache.length == 0
    assert KINDS[kind].meaning
    assert set(options_of(kind)).isdisjoint({"context_length_tokens", "layout", "prototype_Z"})
    cache.release()


@pytest.mark.parametrize("kind", ["Dynamic", "", "no", None, 3, ["dynamic"]])
def test_an_unknown_kind_is_refused_with_those_that_there_are(kind):
    for door in (
        lambda: make_cache(kind, LAYOUT, PROTOTYPE, context_length_tokens=32),
        lambda: plan_cache(kind, LAYOUT, context_length_tokens=32),
    ):
        with pytest.raises(CacheError, match=r"is unknown; there are dynamic, .*none"):
            door()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("static", {"capacitiy": 3}, 'the cache "static" has no option "capacitiy"; it has capacity'),
        ("static", {"context_length_tokens": 3}, "no option"),
        ("concatenated", {"window": 3}, "it has none"),
        ("none", {"capacity": 3}, "it has none"),
        ("static", {"capacity": "3"}, "'3'; it must be a whole number or none"),
        ("static", {"capacity": 3.0}, "3.0; it must be a whole number"),
        ("static", {"capacity": True}, "True; it must be a whole number"),
        ("static", {"capacity": 0}, "too small"),
        ("dynamic", {"first_capacity": 0}, "too small"),
        ("sliding", {"window": None, "sinks": None}, 'option "sinks" of the cache "sliding" is None'),
    ],
)
def test_options_that_cannot_be_are_refused_when_the_request_is_made(kind, options, message):
    model = tiny_language_model(1)
    with pytest.raises(BadInputError, match=message):
        model.request([1, 2], cache=kind, cache_options=options)


@pytest.mark.parametrize("options", [3, "window=3", [("window", 3)], None])
def test_options_are_names_and_values(options):
    with pytest.raises(BadInputError, match="must be names and values"):
        tiny_language_model(1).request([1, 2], cache_options=options)
