"""Where the operations of a step stand: learned once, and looked at again in the next step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from haaw.ops.recorder import Scope
from haaw.tracing.held import SCOPE, WIDTH
from haaw.tracing.object_words import TUPLE_ITEMS, WORD_BYTES, identities, words_at
from haaw.tracing.picking import picker

_OF_PLACE, _OF_STEP = ("stage", "part", "sequence", "layer", "head"), ("step", "request")
_ITEMS = TUPLE_ITEMS + WORD_BYTES * np.array(list(map(Scope._fields.index, _OF_PLACE + _OF_STEP)))
_PLACE = len(_OF_PLACE)


def _fields(scopes: np.ndarray) -> np.ndarray:
    """The identities of the fields of scopes, told by theirs, int64 [scope, field]: the place, then the step.

    A scope is a tuple.
    """
    return words_at(scopes[:, None] + _ITEMS)


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
        self._place_fields = _fields(identities(self._learned))[:, :_PLACE]
        self._places = list(map(_place, self._learned))
        rooms: dict[tuple[str | None, str | None], int] = {}
        numbers = [rooms.setdefault((scope.stage, scope.part), len(rooms)) for scope in scopes]
        self.rooms, self.room = list(rooms), np.array(numbers, dtype=np.intp)
        """Stages and parts, and which of them each operation stands in."""

    def match(self, parts: Sequence[Any], found: np.ndarray) -> Scope | None:
        """One of the scopes, if the operations stand where they stood, and all in one step of one request.

        `parts` are those of the held operations, `found` the identities of their scopes.
        """
        if (found != found[self._starts]).any():
            return None
        fields = _fields(found[self._firsts])
        scopes: tuple[Scope, ...] = self._pick(parts)
        # What is the same object is equal; what is not may be.
        if (fields[:, :_PLACE] != self._place_fields).any() and list(map(_place, scopes)) != self._places:
            return None
        if (fields[:, _PLACE:] != fields[0, _PLACE:]).any() and len(
            {(each.step, each.request) for each in scopes}
        ) > 1:
            return None
        return scopes[0]
