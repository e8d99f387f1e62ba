"""Where the operations of a step stand: learned once, and looked at again in the next step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from haaw.ops.recorder import Scope
from haaw.tracing.distinct import Distinct
from haaw.tracing.held import SCOPE, WIDTH
from haaw.tracing.object_words import TUPLE_ITEMS, TYPE, WORD_BYTES
from haaw.tracing.picking import picker
from haaw.tracing.questions import Questions, Room

_OF_PLACE, _OF_STEP = ("stage", "part", "sequence", "layer", "head"), ("step", "request")
_ITEMS = {name: TUPLE_ITEMS + WORD_BYTES * number for number, name in enumerate(Scope._fields)}
"""A scope is a tuple: where in it each field stands."""


def _place(scope: Scope) -> tuple[Any, ...]:
    """What of a scope stays the same from step to step."""
    return scope.stage, scope.part, scope.sequence, scope.layer, scope.head


class StepScopes:
    """The scopes of a step's operations; those in one place share one object."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        first_of: dict[int, int] = {}
        starts = [first_of.setdefault(id(scope), event) for event, scope in enumerate(scopes)]
        self._starts, self._firsts = np.array(starts), np.array(sorted(set(starts)))
        self._pick = picker((WIDTH * self._firsts + SCOPE).tolist())
        self._learned = [scopes[event] for event in self._firsts]  # held, so that their fields stay theirs
        fields = [id(getattr(scope, name)) for name in _OF_PLACE for scope in self._learned]
        self._place_fields = np.array(fields, dtype=np.int64).tobytes()
        self._places = list(map(_place, self._learned))
        self.stages, self.parts = (
            Distinct([getattr(scope, name) for scope in scopes]) for name in ("stage", "part")
        )

    def ask_types(self, questions: Questions, parts: Room) -> None:
        """They must be scopes; `parts` are those of the held operations."""
        at = parts.start + SCOPE + WIDTH * np.arange(len(self._starts))
        questions.same(at, at[self._starts])
        questions.ask(at[self._firsts], TYPE, expected=id(Scope))

    def ask_fields(self, questions: Questions, parts: Room) -> None:
        """Asks for the fields of the scopes, each once."""
        at = parts.start + SCOPE + WIDTH * self._firsts
        self._of_place, self._of_step = (
            questions.ask(np.tile(at, len(names)), np.repeat([_ITEMS[name] for name in names], len(at))).slice
            for names in (_OF_PLACE, _OF_STEP)
        )
        self._of_first = np.repeat(np.arange(self._of_step.start, self._of_step.stop, len(at)), len(at))

    def match(self, parts: Sequence[Any], answers: np.ndarray) -> Scope | None:
        """One of the scopes, if they are in the learned places, and all in one step of one request."""
        scopes: tuple[Scope, ...] = self._pick(parts)
        # What is the same object is equal; what is not may be.
        if (
            answers[self._of_place].tobytes() != self._place_fields
            and list(map(_place, scopes)) != self._places
        ):
            return None
        if (
            answers[self._of_step].tobytes() != answers.take(self._of_first).tobytes()
            and len({(each.step, each.request) for each in scopes}) > 1
        ):
            return None
        return scopes[0]
