"""Requests through one memory: contiguous reservation beside paging, first come first served, token by token.

Contiguous: a request takes one run of addresses for the longest answer it may give, at the first hole that is large
enough, and keeps it to its end. Paged: it takes blocks as it grows; when none is left, the request that came last
gives its blocks back and starts over with what it had said (recomputation: Kwon et al. 2023, arXiv:2309.06180,
section 4.5). Nobody overtakes: while the first in the queue does not fit, the others wait.

One step: whoever ended in the step before is gone; arrivals queue up; whoever fits is taken in, its prompt is
written and its first token chosen; everybody else writes the token chosen last and chooses the next.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from haaw.errors import BadInputError
from haaw.memory.outcome import Outcome, Timeline
from haaw.memory.workload import MOST_TOKENS, Request


@dataclass(eq=False)
class Running:
    """A request that has memory: `held` positions of `allocated`; contiguous ones begin at `address`."""

    number: int
    request: Request
    held: int
    said: int
    allocated: int
    address: int = 0


class FirstFit:
    """One memory of `capacity` addresses, handed out in runs: the first hole that is large enough."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taken: list[Running] = []  # by address

    def holes(self) -> list[tuple[int, int]]:
        """(address, length) of each hole."""
        found, end = [], 0
        for each in self.taken:
            if each.address > end:
                found.append((end, each.address - end))
            end = each.address + each.allocated
        if end < self.capacity:
            found.append((end, self.capacity - end))
        return found

    def place(self, size: int) -> int | None:
        """The address of the first hole of that size."""
        return next((address for address, length in self.holes() if length >= size), None)

    def take(self, new: Running) -> None:
        """Takes the addresses of a request that was placed."""
        index = sum(1 for each in self.taken if each.address < new.address)
        self.taken.insert(index, new)

    def give_back(self, old: Running) -> None:
        """Frees them."""
        self.taken.remove(old)


def simulate_contiguous(requests: Sequence[Request], capacity: int) -> Outcome:
    """Every request reserves `prompt + limit - 1` positions in one piece. Errors: `BadInputError`, see `check`."""
    check(requests, capacity)
    memory, queue, running = FirstFit(capacity), _Queue(requests), list[Running]()
    timeline, waits, done = Timeline(), list[int](), 0
    never = tuple(number for number, each in enumerate(requests) if each.reserved > capacity)
    queue.drop(never)
    while queue.busy or running:
        for each in [each for each in running if each.said == each.request.answer]:
            running.remove(each)
            memory.give_back(each)
            done += 1
        if not queue.arrive(idle=not running) and not running:
            break
        for each in running:
            each.held, each.said = each.held + 1, each.said + 1
        scattered = 0
        while (first := queue.first) is not None:
            number, request = first
            address = memory.place(request.reserved)
            if address is None:
                free = capacity - sum(each.allocated for each in running)
                scattered = free if free >= request.reserved else 0
                break
            new = Running(number, request, request.prompt, 1, request.reserved, address)
            memory.take(new)
            running.append(new)
            waits.append(queue.take())
        holes = memory.holes()
        _note(timeline, running, queue, max((length for _, length in holes), default=0), scattered)
        queue.step += 1
    return Outcome("contiguous", capacity, timeline, never, done, tuple(waits), 0, 0)


def simulate_paged(requests: Sequence[Request], capacity: int, block_size: int) -> Outcome:
    """Every request takes blocks of `block_size` positions as it grows. Errors: `BadInputError`, see `check`."""
    check(requests, capacity)
    blocks = capacity // block_size
    if blocks < 1:
        raise BadInputError(f"a memory of {capacity:,} positions has no room for one block of {block_size}")
    queue, running, free = _Queue(requests), list[Running](), blocks
    timeline, waits, done, preemptions, recomputed = Timeline(), list[int](), 0, 0, 0
    never = tuple(number for number, each in enumerate(requests) if -(-each.held // block_size) > blocks)
    queue.drop(never)
    while queue.busy or running:
        for each in [each for each in running if each.said == each.request.answer]:
            running.remove(each)
            free += each.allocated // block_size
            done += 1
        if not queue.arrive(idle=not running) and not running:
            break
        index = 0
        while index < len(
            running
        ):  # in the order in which they were taken in; the last may lose their blocks
            each = running[index]
            if each.held < each.allocated or free:
                if each.held == each.allocated:
                    each.allocated, free = each.allocated + block_size, free - 1
                each.held, each.said = each.held + 1, each.said + 1
                index += 1
                continue
            last = running.pop()
            free += last.allocated // block_size
            preemptions, recomputed = preemptions + 1, recomputed + last.held
            queue.put_back(last)
        while (first := queue.first) is not None:
            number, request = first
            said = queue.said.get(number, 0)
            needed = -(-(request.prompt + said) // block_size)
            if needed > free:
                break
            free -= needed
            running.append(Running(number, request, request.prompt + said, said + 1, needed * block_size))
            wait = queue.take()
            if not said:
                waits.append(wait)
        _note(timeline, running, queue, free * block_size, 0)
        queue.step += 1
    return Outcome("paged", capacity, timeline, never, done, tuple(waits), preemptions, recomputed)


def check(requests: Sequence[Request], capacity: int) -> None:
    """Errors: `BadInputError` for a memory without a position, or more tokens than a simulation should take."""
    if capacity < 1:
        raise BadInputError(f"the memory has room for {capacity} positions; at least 1 is needed")
    if (tokens := sum(each.answer for each in requests)) > MOST_TOKENS:
        raise BadInputError(
            f"the answers have {tokens:,} tokens in all; at most {MOST_TOKENS:,} are simulated"
        )


class _Queue:
    """Who has arrived and waits, in order, and who is still to come."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.step = 0
        self.said: dict[int, int] = {}
        self._coming = deque(enumerate(requests))
        self._waiting: deque[tuple[int, Request]] = deque()

    def drop(self, numbers: Sequence[int]) -> None:
        """Turns away what can never fit."""
        gone = set(numbers)
        self._coming = deque(each for each in self._coming if each[0] not in gone)

    @property
    def busy(self) -> bool:
        return bool(self._coming or self._waiting)

    @property
    def first(self) -> tuple[int, Request] | None:
        return self._waiting[0] if self._waiting else None

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, *, idle: bool) -> bool:
        """Queues up who has come by now, and skips to the next where nobody is here; whether anything is left."""
        if idle and self._coming and not self._waiting:
            self.step = max(self.step, self._coming[0][1].arrival)
        while self._coming and self._coming[0][1].arrival <= self.step:
            self._waiting.append(self._coming.popleft())
        return self.busy

    def take(self) -> int:
        """Removes the first; how long it waited."""
        _, request = self._waiting.popleft()
        return self.step - request.arrival

    def put_back(self, last: Running) -> None:
        """A request without memory again stands first, with what it has said."""
        self.said[last.number] = last.said
        self._waiting.appendleft((last.number, last.request))


def _note(timeline: Timeline, running: Sequence[Running], queue: _Queue, hole: int, scattered: int) -> None:
    timeline.step.append(queue.step)
    held = sum(each.held for each in running)
    timeline.held.append(held)
    timeline.allocated.append(sum(each.allocated for each in running))
    timeline.later.append(sum(min(each.request.held, each.allocated) - each.held for each in running))
    timeline.largest_hole.append(hole)
    timeline.running.append(len(running))
    timeline.waiting.append(len(queue))
    timeline.scattered.append(scattered)
