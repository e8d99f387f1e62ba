"""What a recorder was told of many requests adds up to what they answered, over every kind of cache.

FAULTS: S88 (a queued request whose caller had gone), S90 (a gauge that drifts), S91 (two ledgers that disagree).
"""

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from support.collecting import Collector
from support.tiny_models import tiny_language_model

from haaw.caches.kinds import KINDS, NO_CACHE
from haaw.generation.answer import Answer
from haaw.generation.request import Request
from haaw.ops.recorder import choosing_recorder

MODEL = tiny_language_model(2)
EVERY_KIND = pytest.mark.parametrize("kind", [*KINDS, NO_CACHE])


class Ledger(Collector):
    """Also counts the tokens that went through the model, by request and stage."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: Counter[tuple[int | None, str | None]] = Counter()

    def run(self, op: Any, args: Any, kwargs: Any, scope: Any) -> Any:
        if op.name == "embed":
            self.computed[scope.request, scope.stage] += len(args[0])
        return super().run(op, args, kwargs, scope)

    def by_request(self, kind: str) -> dict[int, dict[str, Any]]:
        return {scope.request: facts for each, facts, scope in self.facts if each == kind}


def request_of(ledger: Ledger, kind: str, tokens: int) -> Request:
    with choosing_recorder(ledger):
        return MODEL.request(list(range(tokens)), cache=kind, max_tokens=4, prefill_chunk_tokens=3)


def aborted_behind_its_prefill(request: Request) -> Answer:
    stream = iter(request)
    next(stream)
    stream.close()
    return request.answer


def closed_in_the_queue(request: Request) -> Answer:
    request.close()
    return request.answer


def cancelled_in_the_queue(request: Request) -> Answer:
    request.cancel()
    return request.run()


PLAN = [*[aborted_behind_its_prefill] * 5, *[Request.run] * 3, closed_in_the_queue, cancelled_in_the_queue]


@EVERY_KIND
def test_ledgers_agree(kind):
    """Ten requests of 1 to 10 tokens: five aborted behind their prefill, two in the queue, three that end."""
    ledger = Ledger()
    waiting = [request_of(ledger, kind, tokens) for tokens in range(1, 11)]
    answers = [end(request) for end, request in zip(PLAN, waiting, strict=True)]
    outcomes = Counter(facts["reason"] for facts in ledger.of("finish"))
    assert outcomes == {"cancelled": 7, "length": 3}
    phases = ledger.by_request("phases")
    assert sum(each["prompt_tokens"] for each in phases.values()) == sum(range(1, 11))
    assert [each.usage.prompt_tokens for each in answers] == list(range(1, 11))
    assert [phases[number]["new_tokens"] for number in range(1, 11)] == [1] * 5 + [4] * 3 + [0] * 2
    assert [each.usage.completion_tokens for each in answers] == [1] * 5 + [4] * 3 + [0] * 2
    assert [ledger.computed[number, "prefill"] for number in range(1, 11)] == [*range(1, 9), 0, 0]
    decoded = [0] * 5 + [sum(n + step for step in (1, 2, 3)) if kind == NO_CACHE else 3 for n in (6, 7, 8)]
    assert [ledger.computed[number, "decode"] for number in range(1, 9)] == decoded


@EVERY_KIND
def test_the_number_at_work_goes_back_to_zero(kind):
    """S90: 50 aborted requests. The gauge is made from the states alone."""
    ledger = Ledger()
    for number in range(50):
        request = request_of(ledger, kind, 1 + number % 7)
        PLAN[[0, 8, 9][number % 3]](request)
    changes = {"received": 1, "finished": -1}
    gauge = list(accumulate(changes.get(facts["state"], 0) for facts in ledger.of("state")))
    assert (max(gauge), gauge[-1]) == (1, 0)
    assert Counter(facts["state"] for facts in ledger.of("state"))["received"] == 50
    assert Counter(facts["reason"] for facts in ledger.of("finish")) == {"cancelled": 50}


@EVERY_KIND
@pytest.mark.parametrize("end", [closed_in_the_queue, cancelled_in_the_queue])
def test_a_request_that_ends_in_the_queue_does_nothing_while_another_is_served(kind, end):
    """S88: one is under way, a second one waits, goes, and costs nothing when its turn would have come."""
    ledger = Ledger()
    busy, queued = request_of(ledger, kind, 5), request_of(ledger, kind, 6)
    stream = iter(busy)
    next(stream)
    answer = end(queued)
    assert len(list(stream)) == 3
    assert answer.finish.evidence["phase"] == "queue"
    assert [each["state"] for each in ledger.of("state")].count("prefilling") == 1
    assert sum(tokens for (request, _), tokens in ledger.computed.items() if request == 2) == 0
    assert 2 not in ledger.by_request("released")
    assert ledger.by_request("finish")[1]["reason"] == "length"
