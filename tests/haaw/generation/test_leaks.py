"""After any number of requests, however they end, no memory of a cache is held, though the requests are kept.

FAULTS: S87 to S91 (cancellation, ledgers).
"""

import gc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.cache_pairs import Allocations, PlantedError
from support.tiny_models import tiny_language_model

from haaw.caches.kinds import KINDS, NO_CACHE
from haaw.caches.protocol import CacheError
from haaw.generation.engine import advance
from haaw.generation.request import Request
from haaw.ops.recorder import choosing_recorder, recording

MODEL = tiny_language_model(3)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dynamic": [{}, {"first_capacity": 2}],
    "static": [{}, {"capacity": 40}],
    "sliding": [{"window": 4}, {"window": 3, "sinks": 2}, {}],
    "paged": [{}, {"block_size": 3, "blocks": 14}, {"block_size": 1}],
    "quantised": [{}, {"bits": 4, "group": 4, "residual": 4}],
}


def make(rng: np.random.Generator, kind: str, allocations: Allocations) -> Request:
    options = OPTIONS.get(kind, [{}])
    with choosing_recorder(allocations):
        return MODEL.request(
            rng.integers(0, 64, rng.integers(1, 20)).tolist(),
            max_tokens=int(rng.integers(0, 12)),
            prefill_chunk_tokens=int(rng.integers(1, 8)),
            cache=kind,
            cache_options=options[rng.integers(len(options))],
        )


def finish(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    request.run()


def cancel_before(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    request.cancel()
    request.run()


def cancel_during(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    """In the prefill or the decode: the model itself asks for it, in a random step."""
    steps = int(rng.integers(1, 12))

    def counted(number: int) -> None:
        if number == steps:
            request.cancel()

    run_with(request, counted)


def abandon(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    """The reader goes away between two pieces, which is in the phase deliver."""
    stream = iter(request)
    for _ in range(int(rng.integers(1, 6))):
        if next(stream, None) is None:
            break
    stream.close()


def fail(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    """An operation fails, of the model or of the cache."""
    allocations.fail_at(int(rng.integers(1, 300)))
    with suppress(PlantedError):
        request.run()
    allocations.fail_at(None)


def interrupt(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    steps = int(rng.integers(1, 6))

    def counted(number: int) -> None:
        if number == steps:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run_with(request, counted)


def fork(request: Request, rng: np.random.Generator, allocations: Allocations) -> None:
    """The cache is forked in the middle, and the fork goes on by itself before it is released."""
    true = request._make_cache
    made: list[Any] = []

    def make_cache() -> Any:
        made.append(true())
        return made[-1]

    request._make_cache = make_cache
    stream = iter(request)
    if next(stream, None) is not None and made[-1].length:
        with recording(allocations):
            twin = made[-1].fork()
            with suppress(CacheError):  # a cache may be full
                for _ in range(int(rng.integers(1, 5))):
                    advance(MODEL.transformer, twin, [int(rng.integers(64))])
            twin.release()
    for _ in stream:
        pass
    made.clear()  # a pool lives as long as a cache on it does, released or not


def run_with(request: Request, before_step: Any) -> None:
    """Runs a request and calls `before_step(n)` at the start of its n-th step."""
    true, steps = request._advance, iter(range(1, 10_000))

    def advance_counted(cache: Any, ids: Any) -> Any:
        before_step(next(steps))
        return true(cache, ids)

    request._advance = advance_counted
    request.run()


ENDS = [finish, cancel_before, cancel_during, abandon, fail, interrupt, fork]


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_no_request_leaves_memory_behind(count, rng):
    kept: list[Request] = []
    gc.collect()
    for number in range(count):
        allocations = Allocations()
        kind = [*KINDS, NO_CACHE][number % (len(KINDS) + 1)]
        request = make(rng, kind, allocations)
        end = ENDS[rng.integers(len(ENDS))]
        end(request, rng, allocations)
        kept.append(request)
        assert request.state == "finished"
        if allocations.held_bytes():
            gc.collect()  # a traceback may hold a frame until its cycle is collected
        assert allocations.held_bytes() == 0, f"{kind}, {end.__name__}: {request!r}"


@pytest.mark.parametrize("end", ENDS)
def test_each_way_to_end_does_take_memory_first(end, rng):
    """Otherwise the test above would show nothing."""
    taken = 0
    for _ in range(10):
        allocations = Allocations()
        end(make(rng, "static", allocations), rng, allocations)
        taken += len(allocations.made)
    assert (taken > 0) == (end is not cancel_before)
