"""`--cache KIND --cache-option NAME=VALUE`: the same text over any kind, and bad ones refused by name."""

import json

import pytest

from haaw.cli.options import cache_options_from
from haaw.errors import BadInputError

PROMPT = "The cat sat"


def arguments(tiny_file, *more):
    return ["run", PROMPT, "--model", tiny_file, "--max-tokens", 12, "--prefill-chunk", 5, *more]


@pytest.mark.parametrize(
    "cache",
    [
        ["dynamic"], ["dynamic", "first-capacity=2"], ["none"], ["concatenated"], ["static"],
        ["static", "capacity=100"], ["sliding", "window=90"],
        ["sliding", "window=90", "sinks = 3"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_text_is_that_of_the_default(run_haaw, tiny_file, cache):
    kind, *options = cache
    plain = json.loads(run_haaw(*arguments(tiny_file, "--json"))[1])
    chosen = ["--cache", kind, *(part for option in options for part in ("--cache-option", option))]
    status, out, _ = run_haaw(*arguments(tiny_file, "--json", *chosen))
    assert status == 0
    assert json.loads(out)["token_ids"] == plain["token_ids"]


def test_a_window_shorter_than_the_context_is_remarked_on(run_haaw, tiny_file):
    status, _, error = run_haaw(*arguments(tiny_file, "--cache", "sliding", "--cache-option", "window=4"))
    assert status == 0
    assert "note: this cache keeps the last 4 positions" in error


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--cache", "page"], "the cache 'page' is unknown; there are dynamic"),
        (["--cache-option", "window=4"], 'the cache "dynamic" has no option "window"; it has first_capacity'),
        (["--cache", "sliding", "--cache-option", "window"], "write NAME=VALUE"),
        (["--cache", "sliding", "--cache-option", "=4"], "write NAME=VALUE"),
        (["--cache", "sliding", "--cache-option", "window=x"], "'x'; it must be a whole number"),
        (["--cache", "sliding", "--cache-option", "window=4.5"], "4.5; it must be a whole number"),
        (["--cache", "sliding", "--cache-option", "window=0"], "window of 0 positions"),
        (["--cache", "sliding", "--cache-option", "window=4", "--cache-option", "window=5"], "a second time"),
        (["--cache", "static", "--cache-option", "capacity=2"], "its cache has room for 2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_runs(run_haaw, tiny_file, given, message):
    status, out, error = run_haaw(*arguments(tiny_file, *given))
    assert (status, out) == (2, "")
    assert message in error
    assert error.startswith("haaw: ")
    assert len(error.splitlines()) == 1


def test_a_conversation_takes_a_cache_as_well(run_haaw, tiny_file):
    status, _, error = run_haaw(
        "chat", "--model", tiny_file, "--cache", "sliding", "--cache-option", "sinks=-1"
    )
    assert status == 2
    assert "-1 sinks" in error


def test_values_are_read_as_what_they_look_like():
    given = ["a=1", "b=-1.5", "c=True", "d=none", "e=disk", "first-capacity=7", "f=x=y"]
    assert cache_options_from(given) == {
        "a": 1, "b": -1.5, "c": True, "d": None, "e": "disk", "first_capacity": 7, "f": "x=y",
    }  # fmt: skip
    with pytest.raises(BadInputError, match="second time"):
        cache_options_from(["a-b=1", "a_b=2"])
