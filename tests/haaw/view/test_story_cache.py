"""The cache on the page, kind by kind: after every step its numbers are those that the cache itself gave in the run."""

import numpy as np
import pytest
from support.story_fixture import PROMPT, recorded

import haaw
from haaw.caches.kinds import KINDS
from haaw.tracing.attention_view import attention_pieces
from haaw.tracing.row_positions import row_positions
from haaw.view.content import Content

CACHES = {
    "dynamic": {},
    "dynamic small": {"first_capacity": 5},
    "static": {"capacity": 40},
    "concatenated": {},
    "paged": {"block_size": 5},
    "sliding": {"window": 9, "sinks": 2},
    "sliding small": {"window": 4},
    "sliding large": {"window": 100, "sinks": 1},
    "quantised": {"group": 4},
    "quantised to 4 bits": {"bits": 4, "group": 2, "residual": 6},
    "offloaded": {"first_capacity": 8},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a request with a cache and returns its content and what `memory()` said when each step had ended."""

    def made(name, options, **settings):
        kind = name.split()[0]
        told = []
        cache_class = KINDS[kind].make
        commit = cache_class.commit

        def telling(cache, tokens):
            commit(cache, tokens)
            if cache.kind == kind:
                told.append((cache.memory(), cache.length, cache.capacity, getattr(cache, "table", None)))

        monkeypatch.setattr(cache_class, "commit", telling)
        wanted = {"max_tokens": 12, "prefill_chunk_tokens": 7, **settings}
        return Content(recorded(tmp_path, cache=kind, cache_options=options, **wanted)), told

    return made


@pytest.mark.parametrize(("name", "options"), CACHES.items())
def test_after_every_step_the_bytes_are_those_of_the_cache(run, name, options):
    content, told = run(name, options)
    story = content.story
    assert story["missing"] == {}
    assert len(story["cache_sizes"]) == len(told) == len(story["steps"]) == 13
    for size, (memory, length, capacity, table) in zip(story["cache_sizes"], told, strict=True):
        assert size["useful_bytes"] == memory.useful_bytes
        assert size["allocated_bytes"] == memory.allocated_bytes
        assert size["metadata_bytes"] == memory.metadata_bytes
        assert (size["length"], size["capacity"]) == (length, capacity)
        assert table is None or tuple(size["blocks"]) == table
    release, last = story["release"], story["cache_sizes"][-1]
    assert (release["bytes"], release["useful_bytes"]) == (last["allocated_bytes"], last["useful_bytes"])


@pytest.mark.parametrize(("name", "options"), [each for each in CACHES.items() if "sliding" in each[0]])
def test_the_positions_in_a_ring_are_those_that_its_writes_put_there(run, name, options):
    content, _ = run(name, options)
    trace = content.source.trace
    for number, step in enumerate(content.story["steps"]):
        held = content.held(number)[1]
        found = trace.steps(step["stage"])[step["step"] - (step["stage"] == "decode")]
        pieces = [row_positions(trace, piece.keys) for piece in attention_pieces(trace, found, 1)]
        assert pieces[-1] == held[-len(pieces[-1]) :]
        assert pieces[0][0] == held[0]


def test_a_quantised_cache_says_where_its_bytes_are(run):
    content, _ = run("quantised", {"group": 4}, max_tokens=8)
    last = content.story["cache_sizes"][-1]
    quantised = max(0, last["length"] - 4) // 4 * 4
    elements = 2 * 6 * 2 * 64  # keys and values, layers, KV heads, channels
    codes, _, floats = last["parts"]
    assert last["quantised"] == quantised == 12
    assert codes["useful"] == quantised * elements
    assert floats["useful"] == (last["length"] - quantised) * elements * 4
    assert sum(each["allocated"] for each in last["parts"]) == last["allocated_bytes"]


def test_an_offloaded_cache_says_what_went_to_and_fro(run):
    content, _ = run("offloaded", {}, max_tokens=4)
    row = content.story["cache"]["bytes_per_position"]
    for size, step in zip(content.story["cache_sizes"], content.story["steps"], strict=True):
        assert size["stored_bytes"] == step["count"] * row
        assert len(size["working"]) == 2
        assert sum(each["bytes"] for each in size["working"]) == size["parts"][1]["allocated"]


@pytest.mark.parametrize("chunk", [5, 512])
def test_without_a_cache_every_step_begins_anew_and_drops_what_it_made(tmp_path, chunk):
    story = Content(recorded(tmp_path, cache="none", max_tokens=4, prefill_chunk_tokens=chunk)).story
    prompt = len(haaw.load().tokenizer.encode_prompt(PROMPT))
    assert story["missing"] == {}
    assert [(step["first"], step["count"]) for step in story["steps"]] == [(0, prompt + n) for n in range(4)]
    assert [size["length"] for size in story["cache_sizes"]] == [prompt + n for n in range(4)]
    assert story["release"]["bytes"] == 0


def test_a_trace_of_events_alone_says_as_much_of_the_cache(tmp_path):
    story = Content(
        recorded(tmp_path, keep="events", cache="sliding", cache_options={"window": 6}, max_tokens=3)
    ).story
    assert story["cache_sizes"][-1]["allocated_bytes"] == story["release"]["bytes"]
    assert np.all(np.array(story["cache_sizes"][-1]["held"]) == 6)
