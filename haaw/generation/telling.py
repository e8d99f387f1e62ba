"""What a recorder is told of a request beside its operations: in order, and at every kind of end.

There is a teller only where there is a recorder. What happens while nobody listens waits, with its time, for the
next occasion. An interruption between two instructions may make a fact come twice, but keeps none away.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from time import perf_counter_ns
from typing import Any

from haaw.caches.kinds import NO_CACHE
from haaw.caches.protocol import KVCache
from haaw.generation.finish import Finish
from haaw.generation.phases import PhaseClock
from haaw.generation.preparation import Preparation, as_text, chunk_facts
from haaw.generation.settings import Settings
from haaw.generation.text_output import TextOutput
from haaw.ops.recorder import LISTENING, Recorder, emit, recording, scope

NOTHING_HELD = (b"", "", None)


class Teller:
    """Tells a recorder the facts of one request, and remembers which it has told."""

    def __init__(
        self,
        recorder: Recorder,
        number: int | None,
        clock: PhaseClock,
        preparation: Preparation | None,
        settings: Settings,
        *,
        seed: int | None,
        prompt_tokens: int,
    ) -> None:
        self._recorder = recorder
        self._number = number
        self._clock = clock
        self._preparation = preparation
        self._settings = settings
        self._seed = seed
        self._prompt_tokens = prompt_tokens
        self._begun = False
        self._chunks_told = False
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._asked: tuple[str, int] | None = None
        self._held: tuple[bytes, str, str | None] = NOTHING_HELD
        self._told_ids: list[int] = []
        self._told_text: list[str] = []
        self._in_a_delta = False
        self._finish_told = False
        elapsed_s = clock.elapsed_s
        received_ns = perf_counter_ns() - round(elapsed_s * 1e9)
        self._waiting.append(("state", {"state": "received", "at_s": 0.0, "t_ns": received_ns}))

    def enter(self, state: str) -> None:
        """A change of state; told now where the recorder listens, else at the next occasion."""
        facts = {"state": state, "at_s": self._clock.elapsed_s, "t_ns": perf_counter_ns()}
        self._waiting.append(("state", facts))
        if self._begun and self._listens():
            self._tell_waiting()

    def begin(self) -> None:
        """How the prompt was prepared, what was asked for, and the states so far. Only the first call tells."""
        if self._begun:
            return
        with self._occasion("prepare"):
            self._tell_waiting(most=1)  # that it was received
            if self._preparation is not None:
                for kind, facts in self._preparation.facts():
                    emit(kind, **facts)
            plan = self._settings.sampling.steps()
            emit("settings", asked=as_json(self._settings), plan=plan, seed=self._seed)
            self._tell_waiting()
        self._begun = True

    def chunks(self, reused_tokens: int = 0) -> None:
        """How the prompt will be cut, behind the tokens whose rows the cache had. Only the first call tells."""
        if self._chunks_told:
            return
        with self._occasion("prepare"):
            facts = chunk_facts(self._prompt_tokens, self._settings.prefill_chunk_tokens, reused_tokens)
            emit("chunks", **facts)
        self._chunks_told = True

    def step(self) -> None:
        """Tells at the beginning of a step what waits."""
        self._tell_waiting()

    def text_side(self, output: TextOutput) -> None:
        """What detokeniser and stop matching hold back, where that has changed, and a stop text that was found."""
        held = (output.held_bytes, output.stops.held, output.stops.found)
        if held == self._held:
            return
        undecoded, withheld, found = held
        with self._occasion(), scope(part="deliver"):
            if held[:2] != self._held[:2]:
                emit(
                    "held",
                    undecoded=as_text(undecoded),
                    undecoded_bytes=len(undecoded),
                    withheld=withheld,
                    withheld_characters=len(withheld),
                    withheld_bytes=len(withheld.encode("utf-8", "surrogatepass")),
                )
            if withheld or found is not None:
                possible = [list(each) for each in output.stops.partial()]
                at = len(output.text) if found is not None else None
                emit("stop_matching", could_become=possible, found=found, at_character=at)
        self._held = held

    def delta(self, text: str, token_id: int | None = None, token_bytes: bytes = b"") -> None:
        """A piece of the answer; the last one may have no token."""
        self._in_a_delta = True
        with self._occasion(), scope(part="deliver"):
            self._tell_waiting()
            emit("delta", text=text, token_id=token_id, bytes=as_text(token_bytes))
        self._told_text.append(text)
        if token_id is not None:
            self._told_ids.append(token_id)
        self._in_a_delta = False

    def cancel_asked(self, by: str) -> None:
        """From any thread: somebody has asked for the end. Told together with the end."""
        self._asked = by, perf_counter_ns()

    def finish(self, finish: Finish) -> None:
        """The end state; only once."""
        self.begin()
        self.chunks()
        if self._finish_told:
            return
        with self._occasion(), scope(part="deliver"):
            self._tell_waiting()
            if self._asked is not None:
                emit("cancel_asked", by=self._asked[0], t_ns=self._asked[1])
            emit("finish", **as_json(finish.to_dict()))
        self._finish_told = True

    def releasing(self, cache: KVCache) -> None:
        """What the cache gives back; told together with the end."""
        memory = cache.memory()
        facts = {
            "cache": NO_CACHE if self._settings.cache == NO_CACHE else cache.kind,
            "positions": cache.length,
            "bytes": memory.allocated_bytes,
            "useful_bytes": memory.useful_bytes,
            "metadata_bytes": memory.metadata_bytes,
            "shared_bytes": memory.shared_bytes,
            "t_ns": perf_counter_ns(),
        }
        self._waiting.append(("released", facts))

    def end(
        self, finish: Finish, output: TextOutput, token_ids: Sequence[int], first_token_s: float | None
    ) -> None:
        """The last text, what was released, and where the time went. The clock has stopped."""
        self.enter("finished")
        with self._occasion():
            self.finish(finish)
            self._settle(output.text, token_ids)
            self.text_side(output)
            self._tell_waiting()
            emit(
                "phases",
                spent_s=self._clock.spent_s(),
                first_token_s=first_token_s,
                prompt_tokens=self._prompt_tokens,
                new_tokens=len(token_ids),
                characters=len(output.text),
            )

    def _settle(self, text: str, token_ids: Sequence[int]) -> None:
        """Brings what was told to what the answer is: the rest of it, or after an interruption all of it anew."""
        told = "".join(self._told_text)
        if self._in_a_delta or self._told_ids != list(token_ids) or not text.startswith(told):
            with scope(part="deliver"):
                emit("text_anew", text=text, token_ids=list(token_ids))
            self._told_ids, self._told_text, self._in_a_delta = list(token_ids), [text], False
        elif len(text) > len(told):
            self.delta(text[len(told) :])

    def _tell_waiting(self, most: float = math.inf) -> None:
        while self._waiting and most > 0:
            kind, facts = self._waiting[0]
            emit(kind, **facts)
            self._waiting.popleft()
            most -= 1

    def _occasion(self, stage: str = "deliver") -> AbstractContextManager[None]:
        """A block in which the recorder listens: the step that is under way, or one of its own."""
        if self._listens():
            return nullcontext()
        return recording(self._recorder, stage=stage, request=self._number)

    def _listens(self) -> bool:
        """Whether a step of this request is under way, and not one of another."""
        listening = LISTENING.get()
        return (
            listening is not None
            and listening.recorder is self._recorder
            and listening.scope.request == self._number
        )


def as_json(value: Any) -> Any:
    """Settings and evidence as JSON values; infinities as words, since JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, frozenset | set):
        return as_json(sorted(value))
    if isinstance(value, Iterable):
        return [as_json(inner) for inner in value]
    return str(value)
