"""The life of one request: received, prepared, queued, prefilling, decoding, finished.

Knows token ids, a model, a cache and a way to turn ids into text; no particular tokenizer, family or file.
"""

import threading
from dataclasses import replace
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

from haaw.arrays import Array
from haaw.caches.protocol import KVCache
from haaw.errors import BadInputError
from haaw.generation.answer import Answer, Delta
from haaw.generation.engine import NumericalError, advance, choose
from haaw.generation.finish import Finish, Reason
from haaw.generation.phases import PhaseClock
from haaw.generation.settings import Settings
from haaw.models.protocol import Transformer
from haaw.ops.recorder import Recorder, emit, recording

State = Literal["received", "prepared", "queued", "prefilling", "decoding", "finished"]


class Detokenizer(Protocol):
    """Turns ids into text as they come; the pieces joined equal the text decoded in one go."""

    def push(self, token_id: int) -> str:
        """The text that this id makes certain, possibly empty."""

    def flush(self) -> str:
        """What was held back, at the end."""


class TextSide(Protocol):
    """The part of a tokenizer that a running request needs."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence."""

    def token_bytes(self, token_id: int) -> bytes:
        """The vocabulary's own bytes of an id."""

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental detokeniser."""


class Request:
    """One prompt on its way to an answer. Iterate over it for deltas, or `run()` it to the end.

    A request runs once. Its recorder, if any, is active inside each engine step only.
    """

    def __init__(
        self,
        model: Transformer,
        text_side: TextSide,
        prompt_ids: Sequence[int],
        settings: Settings,
        *,
        make_cache: Callable[[], KVCache],
        notes: tuple[str, ...] = (),
        clock: PhaseClock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.clock = clock or PhaseClock()
        self.prompt_ids = tuple(prompt_ids)
        self.settings = settings
        self.notes = notes
        self.token_ids: list[int] = []
        self.text = ""
        self.finish: Finish | None = None
        self.first_token_s: float | None = None
        self.state: State = "received"
        self._model = model
        self._text_side = text_side
        self._make_cache = make_cache
        self._recorder = recorder
        self._check_prompt()
        self.state = "prepared"
        self._detokenizer = text_side.detokenizer()
        self._cancelled_by: str | None = None
        self._lock = threading.Lock()
        self._text_closed = False
        self._decode_step = 0
        self.state = "queued"
        self.clock.enter("queue")

    def _check_prompt(self) -> None:
        if not self.prompt_ids:
            raise BadInputError(
                "the prompt yields no token ids, and this model has no start token to put in their place; "
                "write at least one character"
            )
        vocabulary, context = self._model.vocabulary_size, self._model.context_length_tokens
        for token_id in self.prompt_ids:
            if not 0 <= token_id < vocabulary:
                raise BadInputError(f"the prompt has the id {token_id}; this model's ids go from 0 to {vocabulary - 1}")
        if len(self.prompt_ids) > context:
            raise BadInputError(
                f"the prompt has {len(self.prompt_ids):,} tokens, and this model's context holds {context:,}; "
                "shorten the prompt"
            )

    def cancel(self, by: str = "caller") -> None:
        """Asks the request to end after the step that is under way; may be called from any thread."""
        self._cancelled_by = by

    def run(self) -> Answer:
        """Runs to the end and returns the answer."""
        for _ in self:
            pass
        return self.answer

    @property
    def answer(self) -> Answer:
        """The answer so far; whole only when `state` is "finished" and `finish.complete` is true."""
        finish = self.finish or Finish("cancelled", {"by": "nobody yet", "phase": self.clock.phase})
        return Answer(
            self.text, self.prompt_ids, tuple(self.token_ids), finish, self.clock.spent_s(), self.first_token_s
        )

    def __iter__(self) -> Iterator[Delta]:
        if not self._lock.acquire(blocking=False):
            raise BadInputError("this request has already run or is running; make a new one")
        return self._life()

    def _life(self) -> Iterator[Delta]:
        cache: KVCache | None = None
        try:
            if self._recorder is not None:
                self._recorder.know_weights(self._model.named_weights())
            with recording(self._recorder, stage="prepare"):
                cache = self._make_cache()
            yield from self._prefill(cache)
            while self.finish is None:
                self.clock.enter("decode")
                if not self._interrupted():
                    self._decode_step += 1
                    with recording(self._recorder, stage="decode", step=self._decode_step):
                        delta = self._take(self._advance(cache, self.token_ids[-1:]))
                    yield self._handed_over(delta)
            if tail := self._close_text():
                yield self._handed_over(self._delta(tail))
        except (GeneratorExit, KeyboardInterrupt) as stop:
            by = "the reader of the stream" if isinstance(stop, GeneratorExit) else "keyboard"
            self._end("cancelled", by=by, phase=self.clock.phase)
            raise
        except BaseException as error:
            self._end("failed", error=f"{type(error).__name__}: {error}", phase=self.clock.phase)
            if not isinstance(error, NumericalError):
                raise
        finally:
            self._close_text()
            if cache is not None:
                cache.release()
            self.state = "finished"
            self.clock.stop()

    def _prefill(self, cache: KVCache) -> Iterator[Delta]:
        """Takes the prompt in chunks; the last chunk's scores choose the first token."""
        self.state = "prefilling"
        self.clock.enter("prefill")
        size, prompt = self.settings.prefill_chunk_tokens, self.prompt_ids
        for step, start in enumerate(range(0, len(prompt), size)):
            if self._interrupted():
                return
            with recording(self._recorder, stage="prefill", step=step):
                logits_BV = self._advance(cache, prompt[start : start + size])
                if start + size < len(prompt):
                    continue
                self.state = "decoding"
                self.clock.enter("decode")
                if self._has_room():
                    delta = self._take(logits_BV)
        if self.finish is None or self.token_ids:
            yield self._handed_over(delta)

    def _advance(self, cache: KVCache, ids: Sequence[int]) -> Array:
        return advance(self._model, cache, ids, heads=self.settings.heads)

    def _interrupted(self) -> bool:
        if self._cancelled_by is not None:
            self._end("cancelled", by=self._cancelled_by, phase=self.clock.phase)
        return self.finish is not None

    def _has_room(self) -> bool:
        """Whether one more id is allowed; ends the request where it is not."""
        if len(self.token_ids) >= self.settings.max_tokens:
            self._end("length", max_tokens=self.settings.max_tokens)
        elif len(self.prompt_ids) + len(self.token_ids) >= self._model.context_length_tokens:
            self._end("context", context_length_tokens=self._model.context_length_tokens)
        return self.finish is None

    def _take(self, logits_BV: Array) -> Delta:
        """Chooses the next id, turns it into text, and sees whether the request ends with it."""
        token_id = choose(logits_BV)
        self.clock.enter("deliver")
        self.token_ids.append(token_id)
        text = self._detokenizer.push(token_id)
        self.text += text
        if token_id in self._text_side.eos_ids:
            self._end("eos", token_id=token_id)
        else:
            self._has_room()
        if self.finish is not None:
            text += self._close_text()
        return self._delta(text, token_id)

    def _delta(self, text: str, *ids: int) -> Delta:
        now = self.clock.elapsed_s
        if ids and self.first_token_s is None:
            self.first_token_s = now
        emit("delta", text=text, token_ids=ids)
        return Delta(text, ids, b"".join(map(self._text_side.token_bytes, ids)), now, now)

    def _handed_over(self, delta: Delta) -> Delta:
        return replace(delta, handed_over_s=self.clock.elapsed_s)

    def _close_text(self) -> str:
        """Releases what the detokeniser held back, once."""
        tail = "" if self._text_closed else self._detokenizer.flush()
        self._text_closed = True
        self.text += tail
        return tail

    def _end(self, reason: Reason, **evidence: object) -> None:
        if self.finish is None:
            self.finish = Finish(reason, evidence)
            emit("finish", **self.finish.to_dict())
