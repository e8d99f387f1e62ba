"""Each instant of a request belongs to one phase, and the phases add up to the total.

FAULTS: S100 (the first token, not the first event), S101 (tokens, not pieces).
"""

from haaw.generation.phases import PHASES, PhaseClock


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_phases_add_up_and_a_phase_may_come_back() -> None:
    ticks = Ticks()
    clock = PhaseClock(ticks)
    for phase, seconds in (("queue", 1), ("prefill", 2), ("decode", 4), ("deliver", 8), ("decode", 16)):
        ticks.now += 0.5
        assert clock.enter(phase) == ticks.now
        ticks.now += seconds
    spent = clock.spent_s()
    assert spent == {
        "prepare": 0.5,
        "queue": 1.5,
        "prefill": 2.5,
        "decode": 20.5,
        "deliver": 8.5,
        "total": 33.5,
    }
    assert clock.elapsed_s == 33.5
    clock.stop()
    ticks.now += 1000
    clock.enter("decode")
    clock.stop()
    assert clock.spent_s()["total"] == clock.elapsed_s == 33.5


def test_a_requests_phases_add_up_and_a_slow_reader_counts_as_delivery(request_for) -> None:
    ticks = Ticks()

    def compute(step: int) -> None:
        ticks.now += 10  # every step of the model takes ten seconds

    clock = PhaseClock(ticks)
    ticks.now += 4  # until the request is made
    request = request_for([7], max_tokens=3, prefill_chunk_tokens=3, before_step=compute, clock=clock)
    ticks.now += 2  # in the queue
    for _ in request:
        ticks.now += 1  # the reader takes its time
    spent = request.answer.timing_s
    assert spent == {"prepare": 4, "queue": 2, "prefill": 20, "decode": 20, "deliver": 3, "total": 49}
    assert spent["total"] == sum(spent[phase] for phase in PHASES)
    assert request.answer.first_token_s == 26
