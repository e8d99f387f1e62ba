"""`haaw memory --trace FILE`: a recorded run's cache beside the arithmetic, as a line and on the page."""

import json
import re

import pytest
from support.tiny_models import tiny_language_model
from support.trace_files import recorded

import haaw
from haaw.caches.page_pool import PagePool
from haaw.memory.arithmetic import doubled
from haaw.memory.plan import Plan
from haaw.memory.shape import CacheShape
from haaw.view.recorded_cache import Recorded

PROMPT = "Once upon a time"
TOKEN_BYTES = 2 * 6 * 2 * 64 * 4  # of the embedded model: keys and values, layers, KV heads, channels, bytes
KINDS = {
    "dynamic": ({}, "dynamic"),
    "static": ({}, "static"),
    "static of its own size": ({"capacity": 100}, "static"),
    "sliding": ({}, "sliding"),
    "sliding over 20 and 3 sinks": ({"window": 20, "sinks": 3}, "sliding"),
    "paged": ({}, "paged"),
    "paged in blocks of 7": ({"block_size": 7}, "paged"),
    "quantised": ({}, "int8"),
    "quantised to 4 bits": ({"bits": 4}, "int4"),
    "offloaded": ({}, "offloaded"),
}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Records a run of the embedded model and gives the file."""
    folder = tmp_path_factory.mktemp("traces")

    def made(name="run.haaw", **settings):
        path = folder / name
        recorded(path, haaw.load(), PROMPT, "events", **{"max_tokens": 70, **settings})
        return path

    return made


@pytest.mark.parametrize("name", KINDS)
def test_what_each_kind_allocated_is_what_the_arithmetic_gives(name, record, run_haaw):
    options, kind = KINDS[name]
    path = record(cache=name.split()[0], cache_options=options)
    status, out, error = run_haaw("memory", "--trace", path)
    assert (status, error) == (0, "")
    released = haaw.open_trace(path).facts("released")[0].facts
    line = (
        f"The trace allocated {released['bytes']:,} bytes for {released['positions']} positions ({kind}); "
        f"the arithmetic gives {released['bytes']:,}: equal."
    )
    assert line in out


def test_the_plan_is_that_of_the_run(record, run_haaw):
    status, out, _ = run_haaw("memory", "--trace", record(), "--sequences", 3, "--memory", "1GiB", "--json")
    told = json.loads(out)
    model = haaw.load()
    assert (status, told["name"], told["cache"], told["sequences"]) == (0, "tiny", "dynamic", 3)
    figures = {figure["name"]: figure["value"] for figure in told["figures"]}
    assert figures["a token"] == TOKEN_BYTES == model.transformer.cache_layout.bytes_per_position
    assert figures["all sequences take"] == 3 * doubled(told["context"]) * TOKEN_BYTES
    named = model.transformer.named_weights()
    assert told["weights_bytes"] == sum(int(array.nbytes) for array in named.values())
    assert told["recorded"]["allocated_bytes"] == doubled(told["context"]) * TOKEN_BYTES


def test_the_page_has_the_line_too(record, tmp_path, run_haaw):
    page, path = tmp_path / "page.html", record(cache="paged")
    status, out, error = run_haaw("memory", "--html", page, "--trace", path)
    assert (status, out) == (0, "")
    assert str(page) in error
    data = json.loads(re.search(r'id="calculator-data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    released = haaw.open_trace(path).facts("released")[0].facts
    assert data["recorded"]["allocated_bytes"] == released["bytes"]
    assert data["recorded"]["context"] == data["setting"]["context"] == released["positions"]
    assert data["recorded"]["setting"] == data["setting"]
    assert data["setting"]["cache"] == "paged"


def test_of_several_requests_the_longest_counts(tmp_path, run_haaw):
    path = tmp_path / "three.haaw"
    with haaw.record(path, "events"):
        for tokens in (3, 90, 5):
            haaw.load().generate(PROMPT, max_tokens=tokens)
    _, out, _ = run_haaw("memory", "--trace", path)
    assert f"for {haaw.open_trace(path).facts('released')[1].facts['positions']} positions" in out


def test_a_difference_is_said_and_is_status_1(record, run_haaw, monkeypatch):
    monkeypatch.setattr("haaw.memory.arithmetic.FIRST_CAPACITY", 32)
    monkeypatch.setattr("haaw.memory.arithmetic.doubled", lambda context, first=32: doubled(context, 32) * 2)
    status, out, _ = run_haaw("memory", "--trace", record())
    assert status == 1
    assert "NOT equal" in out


@pytest.mark.parametrize(
    ("kind", "differs"), [("int8", True), ("offloaded", True), ("dynamic", False), ("paged", False)]
)
def test_only_kinds_whose_plan_is_token_by_token_may_differ(kind, differs):
    plan = Plan(CacheShape(4, 4, 32, 4), context=100, kind=kind)
    found = Recorded(plan, allocated_bytes=1)
    assert not found.equal
    assert ("a prompt in chunks takes memory" in found.sentence) == bool(found.note) == differs
    assert Recorded(plan, found.planned_bytes).note == ""


BAD = {
    "a model too": (["tiny"], "a model is named"),
    "a context too": (["--context", 5], "--context is given"),
    "a kind too": (["--cache", "paged"], "--cache is given"),
    "layers too": (["--layers", 5, "--kv-heads", 1, "--head-dim", 1], "--layers is given"),
    "a simulation too": (["--simulate"], "--simulate is given"),
    "a run too": (["--run"], "--run is given"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD)
def test_what_the_trace_brings_cannot_be_given_too(arguments, says, record, run_haaw):
    status, out, error = run_haaw("memory", *arguments, "--trace", "any.haaw")
    assert (status, out) == (2, "")
    assert says in error


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cache": "none"}, "cache none, which is not calculated"),
        ({"cache": "concatenated"}, "cache concatenated, which is not calculated"),
        ({"cache": "dynamic", "cache_options": {"first_capacity": 3}}, "first_capacity=3"),
        ({"cache": "quantised", "cache_options": {"group": 4, "residual": 4}}, "group=4"),
    ],
)
def test_a_cache_that_is_not_calculated_is_named(settings, says, record, run_haaw):
    status, out, error = run_haaw("memory", "--trace", record(max_tokens=2, **settings))
    assert (status, out) == (2, "")
    assert says in error


def test_a_shared_pool_has_a_block_size_that_the_request_does_not_say(tmp_path, run_haaw):
    model, path = tiny_language_model(1), tmp_path / "pool.haaw"
    transformer = model.transformer
    pool = PagePool(transformer.cache_layout, transformer.prototype_Z, blocks=20, block_size=4)
    with haaw.record(path, "events"):
        model.generate([1, 2, 3], max_tokens=3, cache="paged", cache_options={"pool": pool})
    status, _, error = run_haaw("memory", "--trace", path)
    assert status == 2
    assert "pool=" in error


def test_a_trace_without_an_end_has_no_bytes_to_compare(record, tmp_path, run_haaw):
    cut = tmp_path / "cut.haaw"
    cut.write_bytes(record().read_bytes()[:-20_000])
    status, _, error = run_haaw("memory", "--trace", cut)
    assert status == 2
    assert "record another one" in error
