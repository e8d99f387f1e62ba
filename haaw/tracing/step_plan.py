"""What a step has in common with the one before it: which operations ran where, on what, and to which effect.

A decode step runs the operations of the step before it once more: the same functions, called at the same places, on the
same weights and on each other's results. New are the values, the times, the numbers of the buffers, how far attention
reads, and now and then the buffers of the cache: those of one that grew, or of another request. A `StepPlan` is learned
from a batch of operations that was noted one by one; `match` holds the next batch against it, by a few calls for all of
its operations instead of many for each, and gives the rows that noting them one by one would give.
"""

from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from haaw.arrays import Array
from haaw.tracing.array_headers import AVAILABLE
from haaw.tracing.buffers import Buffers
from haaw.tracing.held import CODE, END, INSTRUCTION, NAMED, OP, SCOPE, START, WIDTH, Batch
from haaw.tracing.noting import ALLOCATES, Notes
from haaw.tracing.object_words import INT_DIGITS, INT_SIZE, identities, integers, words_at
from haaw.tracing.questions import Questions
from haaw.tracing.schema import NONE
from haaw.tracing.step_arguments import Given, StepArguments, is_plain
from haaw.tracing.step_bindings import StepBindings, owners_of
from haaw.tracing.step_events import StepEvents
from haaw.tracing.step_results import StepResults
from haaw.tracing.step_scopes import StepScopes

LEAST_OPERATIONS = 32
"""Shorter batches are noted one by one as fast."""


_BEFORE_GIVEN, _BEHIND_GIVEN = range(1), range(1, 5)
"""Rounds of questions before and after named arguments and results are given."""


class StepRows(NamedTuple):
    """The rows of a batch, until the next one is matched, and what it does to the buffers."""

    events: np.ndarray
    links: np.ndarray
    outputs: np.ndarray
    owners: list[Array]
    """Of the results, in the order of their buffers' numbers."""
    layouts: np.ndarray
    """Of the results."""
    versions: np.ndarray
    """Of the plan's lasting buffers, as they were before the batch."""
    made: list[Array]
    given: Given


class StepPlan:
    """The operations of a step, how they are bound to each other, and the parts of their rows that stay.

    `length` says how many operations it has from the beginning of the batch on; 0 where it is not worth it.
    """

    def __init__(self, batch: Batch, notes: Notes) -> None:
        buffers = notes.buffers
        self.length = length = _supported(batch, buffers) if AVAILABLE else 0
        if length < LEAST_OPERATIONS:
            self.length = 0
            return
        self._ops, self._codes = batch.column(OP, length), batch.column(CODE, length)
        instructions = batch.column(INSTRUCTION, length)
        self._instructions = np.array(instructions)
        self._scopes = StepScopes(batch.column(SCOPE, length))
        self.results = StepResults(self._ops, batch.parts)
        self._arguments = StepArguments(batch, length)
        argumentss = list(self._arguments.each(batch))
        made = self.results.arrays(batch.parts) or []
        self.bindings = StepBindings(self._ops, argumentss, self.results, made, buffers)
        self._arguments.learn_values(list(chain.from_iterable(argumentss)), self.bindings.told_places)
        self._events = StepEvents(
            [notes.op_numbers[op.name] for op in self._ops], list(zip(self._codes, instructions, strict=True)),
            batch.column(SCOPE, length), self._scopes, self._arguments, self.bindings,
        )  # fmt: skip
        self._questions = Questions()
        self._ask(self._questions)

    def _ask(self, questions: Questions) -> None:
        """What is asked of a batch, in rounds. None reads what might not be there.

        | round | reads | of what, known since |
        |---|---|---|
        | 0 | types; lengths of arguments; numbers | what is held (`Operation`): objects, tuples, integers |
        | | *given*: named arguments, results out of tuples | round 0: they are dicts, arrays or tuples |
        | 1 | arguments by position; fields of scopes; types within tuples | round 0: tuples, as long as that |
        | 2 | types of arguments; headers of results | objects; rounds 0 and 1: arrays |
        | 3 | floats; headers of windows; shapes of results; types of owners | round 2: types, axes, an owner is there |
        | 4 | owners and caches; shapes of windows | round 3: arrays, axes; `caches` |
        """
        parts = self._parts = questions.leave(WIDTH * self.length)
        at = parts.start + WIDTH * np.arange(self.length)
        unnamed = at[~self._arguments.is_named] + NAMED
        held = [*map(id, self._ops), *map(id, self._codes), *repeat(id(None), len(unnamed))]
        questions.same(np.concatenate((at + OP, at + CODE, unnamed)), questions.constants(held).at)
        self.bindings.leave(questions)
        self._scopes.ask_types(questions, parts)
        self._arguments.ask_sizes(questions, parts)
        self.results.ask_types(questions, parts)
        times = np.concatenate((at + START, at + END))
        # The clock only goes forwards: if the first and the last time have two digits, all have.
        questions.ask(times[[0, -1]], INT_SIZE, expected=words_at(identities([1 << 40]) + INT_SIZE))
        questions.ask(at + INSTRUCTION, INT_DIGITS, expected=self._instructions, lower_half=True)
        self._times = questions.ask(times, INT_DIGITS).slice
        questions.end_round()
        named, made = self._arguments.leave_named(questions), self.results.leave(questions)
        self.results.ask_types_within(questions)
        self._scopes.ask_fields(questions, parts)
        self._arguments.ask_items(questions, parts, named)
        questions.end_round()
        self._arguments.ask_types(questions)
        bases = self.bindings.ask_results(questions, made)
        questions.end_round(not_zero=[bases])
        self.bindings.ask_views(questions, self._arguments.at)
        self._arguments.ask_floats(questions)
        questions.end_round()
        self.bindings.ask_owners(questions)
        questions.end_round()
        questions.end()

    def match(self, batch: Batch, notes: Notes) -> StepRows | None:
        """The rows of the first `length` operations of `batch`; None if they are not those of the plan.

        Changes nothing of the notes but the tables that rows point into.
        """
        length, segment, buffers = self.length, notes.segment, notes.buffers
        if not 0 < length <= len(batch):
            return None
        questions = self._questions
        questions.give(self._parts, batch.parts)
        if not questions.read(_BEFORE_GIVEN):
            return None
        given = self._arguments.give(batch, questions)
        made = self.results.give(questions, batch.parts)
        if given is None or made is None:
            return None
        caches = self.bindings.caches(given, buffers, questions)  # kept alive while their headers are read
        if caches is None or not questions.read(_BEHIND_GIVEN) or not questions.agree():
            return None
        answers = questions.answers
        scope = self._scopes.match(batch.parts, answers)
        memory = self.bindings.match(answers, made, buffers)
        if scope is None or memory is None or not self._arguments.match(given, answers):
            return None
        count = len(made)

        def array_at(place: int) -> Array:
            return made[place] if place < count else given.value(self.bindings.view_places[place - count])

        layouts, new = self.bindings.layouts.numbers(answers, array_at, segment)
        tables = self.bindings.rows(given, memory, layouts, buffers, segment)
        if tables is None:
            return None
        links, outputs = tables
        hashes = self.results.hashes(made, new, notes.digest, notes.digest_other)
        self.bindings.put_hashes(hashes)
        events = self._events.rows(given, notes)
        events["step"] = NONE if scope.step is None else scope.step
        events["request"] = scope.request or 0
        starts, ends = integers(answers[self._times]).reshape(2, length)
        events["start_ns"], events["took_ns"] = starts - notes.origin_ns, ends - starts
        return StepRows(events, links, outputs, memory.owners, layouts[:count], memory.versions, made, given)


def _supported(batch: Batch, buffers: Buffers) -> int:
    """How many operations from the first on are of the common sort: on the host, with one result or one write."""
    for number, (op, args, kwargs, _, result, *_) in enumerate(batch.operations()):
        values = (*args, *(kwargs or {}).values())
        if not all(map(_is_common, values, repeat(buffers))):
            return number
        if op.writes is not None:
            target = op.argument(op.writes, args, kwargs)
            if type(target) is not np.ndarray or buffers.lasting_of(target) is None:
                return number
            if op.out or result is not None:
                return number
        elif op.out:
            made = result if len(op.out) > 1 else (result,)
            if type(made) is not tuple:
                return number
            if op.name.startswith(ALLOCATES) or len(made) != len(op.out) or not all(map(_is_near, made)):
                return number
            if any(
                id(each) in buffers.weights or buffers.lasting_of(each) is not None
                for each in owners_of(made)
            ):
                return number
        elif result is not None:
            return number
    return len(batch)


def _is_common(value: Any, buffers: Buffers) -> bool:
    """Whether an argument is plain, a weight, or an array that is near."""
    is_weight = type(value) is np.ndarray and id(value) in buffers.weights
    return is_weight or is_plain(value) or _is_near(value)


def _is_near(value: Any) -> bool:
    """Whether a value is an array of NumPy that owns its memory, or a window on one that does."""
    return type(value) is np.ndarray and (
        value.base is None or (type(value.base) is np.ndarray and value.base.base is None)
    )
