"""The ten ends of a request, at any step, streamed or not: text, ids, usage and times agree, and nothing is left.

FAULTS: S13, S20, S22, S26 (flushes, limits), S87 to S91 (cancellation, ledgers), S100 (the first token's time),
S103 (an interrupt at any moment).
"""

import gc
import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.gguf_models import llama_metadata
from support.interrupts import interrupt_at, read_to_the_end
from support.tiny_models import tiny_llama

from haaw.caches.dynamic import DynamicCache
from haaw.generation.answer import Delta
from haaw.generation.finish import Finish
from haaw.generation.phases import PHASES, PhaseClock
from haaw.generation.request import Request
from haaw.generation.settings import make_settings
from haaw.ops.recorder import LISTENING
from haaw.tokenizers import tokenizer_from_gguf

TOKENIZER = tokenizer_from_gguf(llama_metadata())
LETTERS = b"abcdefghijklmnopqrstuvwxyz "
PROMPT, CHUNK = [5, 99, 2, 60, 33, 33, 1], 3
PREFILL_STEPS = 3
CONTEXT = 128
# No id comes twice: an end that waits for an id or a text waits for one step.
PLANS: dict[str, dict[str, Any]] = {
    "letters, greedy": {
        "logit_bias": {byte: -math.inf for byte in range(263) if byte not in set(LETTERS)},
        "presence_penalty": 1e3,
        "logprobs": 2,
    },
    "half characters, drawn": {"temperature": 1.3, "seed": 5, "presence_penalty": 1e3},
}


class WithEnds:
    """The byte-level tokenizer with other end tokens."""

    def __init__(self, *eos_ids: int) -> None:
        self.eos_ids = frozenset(eos_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)


class Watched:
    """A tiny Llama; `before_step(n)` is called with the number of the step, and may raise or return scores."""

    def __init__(self, *, context: int = CONTEXT) -> None:
        self.inner = tiny_llama(3, vocabulary_size=263, context_length_tokens=context)
        self.before_step: Callable[[int], Any] = lambda step: None
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, pack, **how):
        instead = self.before_step(self.steps)
        self.steps += 1
        logits_BV = self.inner.forward(pack, **how)
        return logits_BV if instead is None else np.full_like(logits_BV, instead)


class Ledger:
    """Makes caches, and counts those that still hold memory."""

    def __init__(self, model: Watched) -> None:
        self.model = model
        self.made: list[weakref.ref[DynamicCache]] = []
        self.kept: list[DynamicCache] = []  # so that a cache must be released, and not only dropped

    def __call__(self) -> DynamicCache:
        cache = DynamicCache(self.model.cache_layout, self.model.prototype_Z)
        self.made.append(weakref.ref(cache))
        self.kept.append(cache)
        return cache

    def still_held(self) -> int:
        return sum(cache() is not None and cache().memory().allocated_bytes > 0 for cache in self.made)


class Clock:
    """The real clock, which can be put forward."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.ahead_s


def request_of(model: Watched, *, eos_ids=(), clock: Clock | None = None, **settings: Any) -> Request:
    model.steps = 0
    made = make_settings(prefill_chunk_tokens=CHUNK, **settings)
    ledger = Ledger(model)
    phases = PhaseClock(clock or Clock())
    request = Request(model, WithEnds(*eos_ids), PROMPT, made, make_cache=ledger, clock=phases)
    request.ledger = ledger
    return request


@pytest.fixture(scope="module")
def model() -> Watched:
    return Watched()


@pytest.fixture(scope="module")
def expected_ids() -> dict[str, list[int]]:
    """The ids of each plan without any end, from a model that nothing else uses."""
    return {
        name: list(request_of(Watched(), max_tokens=12, **plan).run().token_ids)
        for name, plan in PLANS.items()
    }


class End:
    """One way to end after `step` ids: how to bring it about, and what must come out."""

    def __init__(self, ids: list[int], step: int) -> None:
        self.ids, self.step = ids, step
        self.request: Request | None = None
        self.clock = Clock()
        self.settings: dict[str, Any] = {}
        self.eos_ids: tuple[int, ...] = ()
        self.context = CONTEXT
        self.token_ids = ids[:step]
        self.shown_ids = ids[:step]
        self.text: str | None = None
        self.evidence: dict[str, Any] = {}
        self.before_step: Callable[[int], Any] = lambda step: None

    def ends_with_its_id(self, *, shown: bool) -> None:
        self.token_ids = self.ids[: self.step + 1]
        self.shown_ids = self.token_ids if shown else self.ids[: self.step]

    def at(self, step: int, action: Callable[[], Any]) -> None:
        """Lets `action` happen at the start of the step of the model that would choose the id `step`."""
        self.before_step = lambda n: action() if n == step + PREFILL_STEPS - 1 else None


def eos(end: End) -> None:
    end.eos_ids = (end.ids[end.step], 200)
    end.ends_with_its_id(shown=False)
    end.evidence = {"token_id": end.ids[end.step]}


def stop_token(end: End) -> None:
    end.settings = {"stop_ids": [end.ids[end.step], 200]}
    end.ends_with_its_id(shown=False)
    end.evidence = {"token_id": end.ids[end.step]}


def stop_string(end: End) -> None:
    first = max(0, end.step - 1)  # over a border of tokens wherever there is one
    stop = bytes(end.ids[first : end.step + 1]).decode()
    end.settings = {"stop": [stop, stop + "more"]}
    end.ends_with_its_id(shown=False)
    end.text = bytes(end.ids[:first]).decode()
    end.evidence = {"stop_string": stop}


def tool_call(end: End) -> None:
    text = bytes(end.ids[: end.step + 1]).decode()
    end.settings = {"tool_call_markers": (text[0], text[-1])}
    end.ends_with_its_id(shown=True)
    end.evidence = {"call": text[1:-1]}


def length(end: End) -> None:
    end.settings = {"max_tokens": end.step}
    end.evidence = {"max_tokens": end.step}


def context(end: End) -> None:
    end.context = len(PROMPT) + end.step
    end.evidence = {"context_length_tokens": end.context}


def deadline(end: End) -> None:
    end.settings = {"deadline_s": 1000.0}
    end.at(end.step - 1, lambda: setattr(end.clock, "ahead_s", 2000.0))
    end.evidence = {"deadline_s": 1000.0, "phase": "decode" if end.step else "prefill"}


def cancelled(end: End) -> None:
    def cancel() -> None:
        thread = threading.Thread(target=end.request.cancel, args=("another thread",))
        thread.start()
        thread.join()

    end.at(end.step - 1, cancel)
    end.evidence = {"by": "another thread", "phase": "decode" if end.step else "prefill"}


def interrupted(end: End) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    end.at(end.step, interrupt)
    end.evidence = {"by": "keyboard", "phase": "decode" if end.step else "prefill"}


def failed(end: End) -> None:
    end.at(end.step, lambda: math.nan)
    end.evidence = {"phase": "decode"}


ENDS: dict[str, tuple[Callable[[End], None], str]] = {
    "eos": (eos, "eos"),
    "stop token": (stop_token, "stop_token"),
    "stop string": (stop_string, "stop_string"),
    "tool call": (tool_call, "tool_call"),
    "length": (length, "length"),
    "context": (context, "context"),
    "deadline": (deadline, "deadline"),
    "cancelled": (cancelled, "cancelled"),
    "Ctrl-C": (interrupted, "cancelled"),
    "failed": (failed, "failed"),
}
COMPLETE = {"eos", "stop token", "stop string", "tool call"}
NEED_TEXT = {"stop string", "tool call"}  # that can be foreseen


def streamed(request: Request) -> list[Delta]:
    """All deltas; what they say must be true while they come."""
    deltas = []
    try:
        for delta in request:
            deltas.append(delta)
            assert request.text == "".join(each.text for each in deltas)
            assert request.token_ids == [token_id for each in deltas for token_id in each.token_ids]
            assert LISTENING.get() is None
    except KeyboardInterrupt:
        pass
    return deltas


def whole(request: Request) -> None:
    with suppress(KeyboardInterrupt):
        request.run()


def check_times(request: Request) -> None:
    """Phases add up to the time from the first to the last look at the clock, within 1 ms or 1 %."""
    spent = request.answer.timing_s
    assert set(spent) == {*PHASES, "total"}
    assert all(seconds >= 0 for seconds in spent.values())
    elapsed_s = request.clock.elapsed_s
    assert abs(sum(spent[phase] for phase in PHASES) - elapsed_s) <= max(1e-3, 0.01 * elapsed_s)
    assert abs(spent["total"] - elapsed_s) <= max(1e-3, 0.01 * elapsed_s)
    first_s = request.answer.first_token_s
    assert (first_s is None) == (not request.token_ids)
    assert first_s is None or 0 <= first_s <= elapsed_s


CASES = [
    (name, plan, step)
    for name in ENDS
    for plan in PLANS
    for step in range(7)
    if (name not in NEED_TEXT or plan == "letters, greedy")
    and (name, step) != ("tool call", 0)  # one letter cannot both open and close a call
]


@pytest.mark.parametrize(("name", "plan", "step"), CASES)
def test_every_end_at_every_step(name: str, plan: str, step: int, model: Watched, expected_ids) -> None:
    bring_about, reason = ENDS[name]
    end = End(expected_ids[plan], step)
    bring_about(end)
    this = model if end.context == CONTEXT else Watched(context=end.context)
    answers = []
    for way in (streamed, whole):
        this.before_step, end.clock.ahead_s = end.before_step, 0.0
        request = request_of(
            this, eos_ids=end.eos_ids, clock=end.clock, **({"max_tokens": 20} | PLANS[plan] | end.settings)
        )
        end.request = request
        deltas = way(request)
        this.before_step = lambda n: None
        answer = request.answer
        answers.append(answer)
        assert list(answer.token_ids) == end.token_ids
        assert answer.text == (TOKENIZER.decode(end.shown_ids) if end.text is None else end.text)
        assert answer.usage.completion_tokens == len(answer.token_ids)
        assert answer.usage.prompt_tokens == len(PROMPT)
        assert answer.finish.reason == reason
        assert end.evidence.items() <= answer.finish.evidence.items()
        assert answer.finish.complete == (name in COMPLETE)
        assert len(answer.log_probabilities) == (len(end.token_ids) if "logprobs" in PLANS[plan] else 0)
        if deltas is not None:
            check_deltas(deltas, request, handed_over="up to the interrupt" if name == "Ctrl-C" else "all")
        check_times(request)
        assert request.state == "finished"
        assert len(request.ledger.made) == 1
        assert request.ledger.still_held() == 0
        assert LISTENING.get() is None
    assert answers[0].to_dict().keys() == answers[1].to_dict().keys()
    if end.context == CONTEXT:
        again = request_of(model, max_tokens=12, **PLANS[plan]).run()
        assert list(again.token_ids) == expected_ids[plan]


def check_deltas(deltas: list[Delta], request: Request, *, handed_over: str) -> None:
    answer = request.answer
    text = "".join(delta.text for delta in deltas)
    if handed_over == "all":
        assert text == answer.text
    else:
        assert answer.text.startswith(text)
    assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == answer.token_ids
    assert b"".join(delta.token_bytes for delta in deltas) == b"".join(
        map(TOKENIZER.token_bytes, answer.token_ids)
    )
    first = next((delta for delta in deltas if delta.token_ids), None)
    assert answer.first_token_s == (None if first is None else first.computed_s)


def test_the_ends_take_the_same_seven_steps_apart(expected_ids) -> None:
    """What the test above leans on: ids come once, and one plan has nothing but ASCII."""
    for ids in expected_ids.values():
        assert len(set(ids)) == len(ids) == 12
    assert set(expected_ids["letters, greedy"]) <= set(LETTERS)
    assert "\ufffd" in TOKENIZER.decode(expected_ids["half characters, drawn"])


def test_held_text_of_a_request_that_fails_is_still_handed_over(model: Watched, expected_ids) -> None:
    """Text that could have become a stop was in the answer of a failed request, but in no piece of its stream."""
    ids = expected_ids["letters, greedy"]
    model.before_step = lambda n: math.nan if n == PREFILL_STEPS + 2 else None
    request = request_of(model, max_tokens=9, stop=bytes(ids[1:3]).decode() + "#", **PLANS["letters, greedy"])
    deltas = streamed(request)
    model.before_step = lambda n: None
    assert request.answer.finish.reason == "failed"
    assert "".join(delta.text for delta in deltas) == request.answer.text == bytes(ids[:3]).decode()
    assert deltas[-1].token_ids == ()


def test_a_limit_that_a_stop_string_meets_in_the_last_half_character_is_a_stop(model: Watched) -> None:
    """The text was cut at the stop, but the reason said `length`."""
    bias = dict.fromkeys(range(263), -math.inf) | {0xE4: 0.0}  # the first byte of a character of three
    request = request_of(model, max_tokens=1, logit_bias=bias, stop="\ufffd")
    answer = request.run()
    assert (answer.text, answer.token_ids) == ("", (0xE4,))
    assert answer.finish == Finish("stop_string", {"stop_string": "\ufffd"})


def test_closing_a_request_that_never_ran_cancels_it_in_the_queue(model: Watched) -> None:
    """S88: a queued request whose caller had gone was still run."""
    request = request_of(model, max_tokens=3)
    request.close(by="the teacher")
    assert request.answer.finish == Finish("cancelled", {"by": "the teacher", "phase": "queue"})
    assert (request.state, request.answer.text, request.answer.token_ids) == ("finished", "", ())
    request.close()
    assert list(request) == []
    assert (model.steps, request.ledger.made) == (0, [])


def test_a_request_cancelled_in_the_queue_says_so(model: Watched) -> None:
    request = request_of(model, max_tokens=3)
    request.cancel("the teacher")
    assert request.run().finish == Finish("cancelled", {"by": "the teacher", "phase": "queue"})
    assert (model.steps, request.ledger.made) == (0, [])


def test_the_ledgers_of_many_requests_add_up(model: Watched, expected_ids, rng: np.random.Generator) -> None:
    """S90, S91: aborted requests were missing from one of two sums, and a gauge drifted."""
    plan = "half characters, drawn"
    outcomes: dict[str, int] = {}
    delivered = 0
    for number in range(50):
        request = request_of(model, max_tokens=int(rng.integers(1, 8)), **PLANS[plan])
        taken = 0
        for delta in request:
            taken += len(delta.token_ids)
            if number % 2 and taken == 2:
                request.cancel()
        delivered += taken
        answer = request.answer
        outcomes[answer.finish.reason] = outcomes.get(answer.finish.reason, 0) + 1
        assert answer.usage.completion_tokens == taken
        assert list(answer.token_ids) == expected_ids[plan][:taken]
        assert request.ledger.still_held() == 0
    assert sum(outcomes.values()) == 50
    assert outcomes.keys() == {"length", "cancelled"}
    assert delivered > 50


# --- an interrupt at any instruction


@pytest.mark.parametrize("every", ["line", "instruction"])
@pytest.mark.parametrize("way", [Request.run, read_to_the_end])
@pytest.mark.parametrize("points", [60, pytest.param(1_500, marks=pytest.mark.long)])
def test_an_interrupt_at_any_moment_leaves_whole_steps_and_nothing_else(
    way, every: str, points: int, seed: int, model: Watched, expected_ids
) -> None:
    """S103: interrupting left a half state. Text is held for a stop and for a half character meanwhile."""
    plan = "half characters, drawn"
    settings = PLANS[plan] | {"logprobs": 1, "max_tokens": 4, "stop": ["\ufffd#"]}
    ids = expected_ids[plan]
    way(request_of(model, **settings))  # fills the tokenizer's own cache: from now on every run is alike
    request = request_of(model, **settings)
    with interrupt_at(0, every=every) as counted:
        way(request)
    random_ = random.Random(seed)
    reasons = set()
    for point in random_.sample(range(1, counted[0] + 1), points):
        request = request_of(model, **settings)
        struck = False
        try:
            with interrupt_at(point, every=every):
                way(request)
        except KeyboardInterrupt:
            struck = True
        assert struck, point
        assert LISTENING.get() is None
        request.ledger.kept.clear()  # `release` itself may have been interrupted; nobody else may hold a cache
        if request.ledger.still_held():
            gc.collect()
        assert request.ledger.still_held() == 0, point
        if request.finish is None:
            assert request.state == "queued"  # it had not begun, and still can
            assert list(request.run().token_ids) == ids[:4]
            continue
        answer = request.answer
        reasons.add(answer.finish.reason)
        assert list(answer.token_ids) == ids[: len(answer.token_ids)], point
        assert answer.text == TOKENIZER.decode(answer.token_ids), point
        assert len(answer.log_probabilities) == answer.usage.completion_tokens == len(answer.token_ids)
        assert answer.finish.reason == "cancelled" or len(answer.token_ids) == 4
        assert request.state == "finished", point
        check_times(request)
        again = request_of(model, **(settings | {"max_tokens": 2})).run()
        assert list(again.token_ids) == ids[:2]
    assert "cancelled" in reasons
