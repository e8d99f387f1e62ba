"""What a recorder is told besides operations: every piece of text and the end state, whatever the end."""

from typing import Any

import numpy as np
import pytest
from support.tiny_models import tiny_language_model

from haaw.generation.settings import make_settings
from haaw.ops.recorder import LISTENING, Recorder, choosing_recorder


class Listener(Recorder):
    """Keeps events, runs operations, and may be told to act at one of them."""

    def __init__(self, *, spoil: bool = False) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._spoil = spoil

    def run(self, op, args, kwargs, scope):
        result = op.plain(*args, **kwargs)
        if self._spoil and op.name == "linear" and scope.part == "output":
            return np.full_like(result, np.nan)
        return result

    def declare(self, name, array, scope):
        pass

    def know_weights(self, weights):
        pass

    def emit(self, kind, facts, scope):
        self.events.append((kind, dict(facts)))


@pytest.mark.parametrize("reason", ["length", "cancelled", "deadline", "failed", "abandoned"])
def test_the_end_state_and_all_text_reach_the_recorder_at_every_end(reason):
    """Ends that come between two steps once never reached it."""
    listener = Listener(spoil=reason == "failed")
    settings = {"max_tokens": 5} | ({"deadline_s": 1e-9} if reason == "deadline" else {})
    with choosing_recorder(listener):
        request = tiny_language_model(1).request([5, 9, 2], **settings)
    stream = iter(request)
    for number, _ in enumerate(stream):
        if reason == "cancelled" and number == 1:
            request.cancel("the test")
        if reason == "abandoned" and number == 1:
            stream.close()
            break
    finishes = [facts for kind, facts in listener.events if kind == "finish"]
    assert [facts["reason"] for facts in finishes] == ["cancelled" if reason == "abandoned" else reason]
    said = "".join(facts["text"] for kind, facts in listener.events if kind == "delta")
    assert said == request.answer.text
    assert LISTENING.get() is None


def test_settings_come_from_names_that_exist():
    assert make_settings(stop=(text for text in ["a", "b"])).stop == ("a", "b")
