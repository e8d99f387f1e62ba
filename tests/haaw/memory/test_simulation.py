"""Requests through one memory: cases worked out by hand, and a second simulation that keeps a map of addresses."""

import pytest

from haaw.errors import BadInputError
from haaw.memory import Request, random_requests, read_requests, simulate_contiguous, simulate_paged


def test_a_toy_case_of_reservation_by_hand():
    """Ten addresses; reserved are prompt + limit - 1.

    A takes 0-3 (3 + 2 - 1), B 4-7, C needs 6 and waits; D and nobody else overtakes it.
    Step 0: A holds 3, B holds 2. A's answer has 1 token, so it is gone in step 1: holes 0-3 and 8-9, 6 free
    addresses in all, but the largest hole has 4: C waits although there is room. Step 1: B holds 3.
    Step 2: B holds 4 and says its third and last token. Step 3: C takes 0-5 and holds 5; D takes 6-7.
    """
    a, b = Request(3, 1, 2), Request(2, 3, 3)
    c, d = Request(5, 2, 2), Request(1, 1, 2)
    outcome = simulate_contiguous([a, b, c, d], 10)
    line = outcome.timeline
    assert line.held == [5, 3, 4, 6, 6]
    assert line.allocated == [8, 4, 4, 8, 6]
    assert line.largest_hole == [2, 4, 4, 2, 4]
    assert line.running == [2, 1, 1, 2, 1]
    assert line.waiting == [2, 2, 2, 0, 0]
    assert line.scattered == [0, 6, 6, 0, 0]
    assert line.later == [2, 1, 0, 1, 0]  # B will hold 4, C will hold 6
    assert outcome.waits == (0, 0, 3, 3)
    assert outcome.steps == 5
    assert outcome.most_at_once == 2
    assert outcome.finished == 4
    assert outcome.utilisation == pytest.approx(24 / 50)
    assert outcome.internal == pytest.approx((30 - 24) / 50)
    assert outcome.external == pytest.approx(12 / 50)
    assert outcome.waste == pytest.approx(6 / 30)


def test_a_toy_case_of_paging_by_hand():
    """Four blocks of 2. A has a prompt of 3 and 4 tokens to say, B a prompt of 3 and 3 to say, both at once.

    Step 0: both take two blocks and hold 3. Step 1: both hold 4, the blocks are full. Step 2: A needs a third block;
    B came last and gives back its two, A takes one of them and holds 5. B would now need three blocks (its 3 tokens
    and the 2 that it has said) and finds one. Step 3: A holds 6 and says its last token. Step 4: A's three blocks are
    free again, B takes three, holds 5 and says its third and last token.
    """
    outcome = simulate_paged([Request(3, 4, 4), Request(3, 3, 3)], 9, 2)
    line = outcome.timeline
    assert line.held == [6, 8, 5, 6, 5]
    assert line.allocated == [8, 8, 6, 6, 6]
    assert line.running == [2, 2, 1, 1, 1]
    assert line.waiting == [0, 0, 1, 1, 0]
    assert (outcome.preemptions, outcome.recomputed_tokens) == (1, 4)
    assert outcome.finished == 2
    assert outcome.external == 0


def test_who_was_sent_back_stands_first_again():
    """The case above with C, who comes in step 2 and needs one block: it is free, but B is before it until step 4."""
    outcome = simulate_paged([Request(3, 4, 4), Request(3, 3, 3), Request(1, 1, 1, arrival=2)], 8, 2)
    assert outcome.preemptions == 1
    assert outcome.waits == (0, 0, 2)
    assert outcome.timeline.running == [2, 2, 1, 1, 2]


def test_the_token_chosen_last_needs_no_position():
    assert simulate_paged([Request(3, 2, 2)], 4, 2).never_fit == ()  # 3 and one more
    assert simulate_paged([Request(3, 3, 3)], 4, 2).never_fit == (0,)
    assert simulate_contiguous([Request(3, 2, 2)], 4).never_fit == ()


def test_what_can_never_fit_is_turned_away_and_nobody_waits_for_it():
    requests = [Request(50, 1, 1), Request(2, 2, 100), Request(2, 2, 2)]
    contiguous, paged = simulate_contiguous(requests, 20), simulate_paged(requests, 20, 4)
    assert contiguous.never_fit == (0, 1)  # the second would reserve 101 positions for an answer of 2
    assert paged.never_fit == (0,)
    assert (contiguous.finished, paged.finished) == (1, 2)


def test_idle_time_is_skipped():
    outcome = simulate_contiguous([Request(1, 1, 1), Request(1, 2, 2, arrival=10**9)], 5)
    assert outcome.timeline.step == [0, 10**9, 10**9 + 1]


class AddressMap:
    """Reservation once more, with one entry per address and no notion of holes."""

    def __init__(self, requests, capacity):
        self.owners = [None] * capacity
        self.history = []
        waiting, coming, running, step = [], list(enumerate(requests)), {}, 0
        coming = [each for each in coming if each[1].prompt + each[1].limit - 1 <= capacity]
        while waiting or coming or running:
            for number in [number for number, said in running.items() if said == requests[number].answer]:
                del running[number]
                self.owners = [None if owner == number else owner for owner in self.owners]
            running = {number: said + 1 for number, said in running.items()}
            while coming and coming[0][1].arrival <= step:
                waiting.append(coming.pop(0))
            while waiting:
                number, request = waiting[0]
                size = request.prompt + request.limit - 1
                free = "".join("x" if owner is None else "." for owner in self.owners)
                if (start := free.find("x" * size)) < 0:
                    break
                self.owners[start : start + size] = [number] * size
                running[number] = 1
                waiting.pop(0)
            if running or waiting:
                held = sum(requests[number].prompt + said - 1 for number, said in running.items())
                self.history.append(
                    (held, sum(owner is not None for owner in self.owners), len(running), len(waiting))
                )
            step += 1


def test_random_mixtures_agree_with_a_map_of_addresses(rng):
    for _ in range(30):
        requests, arrival = [], 0
        for _ in range(25):
            answer = int(rng.integers(1, 12))
            arrival += int(rng.integers(0, 4))
            requests.append(
                Request(int(rng.integers(1, 15)), answer, answer + int(rng.integers(0, 12)), arrival)
            )
        line = simulate_contiguous(requests, 40).timeline
        told = list(zip(line.held, line.allocated, line.running, line.waiting, strict=True))
        assert told == AddressMap(requests, 40).history


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_paging_ends_every_request_and_never_takes_more_than_there_is(rng, block_size):
    for _ in range(20):
        seed = int(rng.integers(2**32))
        requests = random_requests(60, seed=seed, context=300)
        outcome = simulate_paged(requests, 400, block_size)
        line = outcome.timeline
        assert outcome.finished == 60 - len(outcome.never_fit)
        assert all(
            held <= allocated <= 400 for held, allocated in zip(line.held, line.allocated, strict=True)
        )
        assert all(
            allocated - held < block_size * running
            for held, allocated, running in zip(line.held, line.allocated, line.running, strict=True)
            if running
        )


def test_the_same_seed_gives_the_same_requests_and_another_gives_others():
    one, same, other = (random_requests(50, seed=seed, context=2048) for seed in (7, 7, 8))
    assert one == same
    assert one != other
    assert all(each.prompt + each.limit <= 2048 and each.answer <= each.limit for each in one)


def test_paging_serves_more_at_once_than_reservation():
    requests = random_requests(200, seed=0, context=8192)
    contiguous, paged = simulate_contiguous(requests, 16_384), simulate_paged(requests, 16_384, 16)
    assert paged.most_at_once > contiguous.most_at_once
    assert paged.utilisation > contiguous.utilisation
    assert paged.waste < 0.04 < contiguous.waste  # "under 4 %": Kwon et al. 2023, arXiv:2309.06180, section 1


def test_requests_from_a_file():
    text = "prompt,answer,limit,arrival\n# a remark\n3,1\n\n 5 , 2 , 4\n1,1,1,9\n"
    assert read_requests(text, context=10) == [Request(3, 1, 7), Request(5, 2, 4), Request(1, 1, 1, 9)]


BAD_FILES = {
    "nothing": ("# none\n", "no rows"),
    "a word": ("3,many\n", "row 1: answer is 'many'"),
    "a negative": ("3,2\n-1,2\n", "row 2: prompt is '-1'"),
    "nothing to say": ("3,0\n", "row 1: answer is 0"),
    "one field": ("3\n", "1 fields"),
    "five fields": ("1,1,1,1,1\n", "5 fields"),
    "too long for its limit": ("3,5,4\n", "longer than its limit"),
    "absurd": ("99999999999,1\n", "prompt is 99999999999"),
    "back in time": ("1,1,1,5\n1,1,1,4\n", "arrivals must not go back"),
}


@pytest.mark.parametrize(("text", "says"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_row_is_refused_with_its_number(text, says):
    with pytest.raises(BadInputError, match=says):
        read_requests(text, context=100)


def test_a_memory_without_room_is_refused():
    with pytest.raises(BadInputError, match="0 positions"):
        simulate_contiguous([Request(1, 1, 1)], 0)
    with pytest.raises(BadInputError, match="no room for one block"):
        simulate_paged([Request(1, 1, 1)], 10, 16)


def test_more_tokens_than_a_simulation_should_take_are_refused():
    with pytest.raises(BadInputError, match="at most 5,000,000"):
        simulate_paged([Request(1, 5_000_001, 5_000_001)], 10**7, 16)


def test_the_plot_shows_both_methods_with_axes_that_are_named(tmp_path):
    pytest.importorskip("matplotlib")
    from haaw.memory.plot import plot_outcomes, save_plot

    requests = random_requests(40, seed=1, context=512)
    figure = plot_outcomes([simulate_contiguous(requests, 1024), simulate_paged(requests, 1024, 16)])
    titles = [axes.get_title() for axes in figure.axes[:2]]
    assert titles[0].startswith("contiguous: ")
    assert titles[1].startswith("paged: ")
    assert [axes.get_xlabel() != "" for axes in figure.axes[2:]] == [True, True]
    save_plot(figure, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInputError, match="cannot be written"):
        save_plot(figure, tmp_path / "plot.xyz")
