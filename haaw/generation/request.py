"""The life of one request: received, prepared, queued, prefilling, decoding, finished.

Knows token ids, a model, a cache and a way to turn ids into text; no particular tokenizer, family or file.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from typing import Literal

from haaw.arrays import Array
from haaw.caches.kinds import NO_CACHE
from haaw.caches.prefix_sharing import prefixes_of
from haaw.caches.protocol import KVCache
from haaw.errors import BadInputError
from haaw.generation.answer import Answer, Delta, TokenLogProbability
from haaw.generation.engine import advance, advance_without_cache
from haaw.generation.finish import Finish
from haaw.generation.phases import PhaseClock
from haaw.generation.preparation import Preparation
from haaw.generation.sampling import Chosen, NumericalError, Sampler
from haaw.generation.settings import Settings
from haaw.generation.telling import Teller
from haaw.generation.text_output import Begins, TextOutput, TextSide
from haaw.models.protocol import Transformer
from haaw.ops.recorder import Recorder, postponed, recording, stop_listening


class PromptTooLongError(BadInputError):
    """A prompt has more tokens than the model's context holds."""


State = Literal["received", "prepared", "queued", "prefilling", "decoding", "finished"]


class Request:
    """One prompt on its way to an answer. Iterate over it for deltas, or `run()` it to the end.

    A request runs once. Its recorder, if any, is active inside each engine step only. Whatever happens, it
    ends in one state, keeps the text it has, and gives its cache back. `most_positions` is what the cache has
    room for, where it has an end.
    """

    def __init__(
        self,
        model: Transformer,
        text_side: TextSide,
        prompt_ids: Sequence[int],
        settings: Settings,
        *,
        make_cache: Callable[[], KVCache],
        most_positions: int | None = None,
        begins: Begins = "text",
        notes: tuple[str, ...] = (),
        clock: PhaseClock | None = None,
        recorder: Recorder | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        self.state: State = "received"
        self.clock = clock or PhaseClock()
        self.prompt_ids = tuple(prompt_ids)
        self.settings = settings
        self.notes = notes
        self.token_ids: list[int] = []
        self.log_probabilities: list[TokenLogProbability] = []
        self.finish: Finish | None = None
        self.first_token_s: float | None = None
        self._cache_peak_bytes = 0
        self.reused_tokens = 0  # of the prompt, whose rows the cache already had
        check_prompt(self.prompt_ids, model)
        if most_positions is not None and len(self.prompt_ids) > most_positions:
            raise PromptTooLongError(
                f"the prompt has {len(self.prompt_ids):,} tokens, and its cache has room for {most_positions:,}; "
                "shorten the prompt or give the cache more room"
            )
        settings.check_vocabulary(model.vocabulary_size)
        self._model = model
        self._text_side = text_side
        self._make_cache = make_cache
        self._most_positions = most_positions
        self._recorder = recorder
        self._number = None if recorder is None else recorder.number_request()
        self._begins = begins
        self._output = TextOutput(text_side, settings, begins)
        self._sampler = Sampler(settings.sampling, self.prompt_ids, log_probabilities=settings.logprobs)
        self._teller: Teller | None = None
        if recorder is not None:
            self._teller = Teller(
                recorder,
                self._number,
                self.clock,
                preparation,
                settings,
                seed=None if settings.sampling.is_greedy else self._sampler.seed,
                prompt_tokens=len(self.prompt_ids),
            )
        self._enter("prepared")
        self._cancelled_by: str | None = None
        self._started = threading.Lock()  # taken once and never given back
        self._decode_step = 0
        self._enter("queued")
        self.clock.enter("queue")

    def cancel(self, by: str = "caller") -> None:
        """Asks the request to end after the step that is under way; may be called from any thread."""
        self._cancelled_by = by
        if self._teller is not None:
            self._teller.cancel_asked(by)

    def run(self) -> Answer:
        """Runs to the end and returns the answer.

        Ctrl-C leaves a partial `answer` behind and goes on to the caller.
        """
        try:
            with closing(iter(self)) as stream:
                for _ in stream:
                    pass
        except KeyboardInterrupt:
            self.close("keyboard")
            raise
        return self.answer

    def close(self, by: str = "caller") -> None:
        """Ends a request that nobody runs on, if it has not ended: it counts as cancelled.

        For the thread that reads the stream, after closing the stream; `cancel` is for the others.
        """
        if self.state == "finished":
            return
        self._stopped_by(by)
        assert self.finish is not None
        if not self._output.closed or self._output.pushed != len(self.token_ids):
            self._rebuild_text()
        self._output.close()
        self.clock.stop()
        if self._teller is not None:
            self._teller.end(self.finish, self._output, self.token_ids, self.first_token_s)
        self.state = "finished"

    @property
    def text(self) -> str:
        """The text so far."""
        return self._output.text

    @property
    def answer(self) -> Answer:
        """The answer of a request that has ended; partial when its `finish.complete` is false."""
        if self.finish is None:
            raise BadInputError("this request has not ended; its text so far is in `.text`")
        return Answer(
            text=self.text,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            finish=self.finish,
            timing_s=self.clock.spent_s(),
            first_token_s=self.first_token_s,
            seed=None if self.settings.sampling.is_greedy else self._sampler.seed,
            log_probabilities=tuple(self.log_probabilities),
            token_bytes=tuple(map(self._text_side.token_bytes, self.token_ids)),
            reused_tokens=self.reused_tokens,
            cache_peak_bytes=self._cache_peak_bytes,
        )

    def __repr__(self) -> str:
        return (
            f"<Request {self.state}, {len(self.prompt_ids)} prompt tokens, {len(self.token_ids)} new, "
            f"{self.finish.reason if self.finish else 'not ended'}>"
        )

    def _repr_html_(self) -> str:
        from haaw.generation.display import answer_html, table

        if self.finish is not None:
            return answer_html(self.answer)
        plan = " → ".join(self.settings.sampling.steps())
        rows = [("prompt tokens", len(self.prompt_ids)), ("new tokens", len(self.token_ids)), ("plan", plan)]
        return table(f"request, {self.state}", rows)

    def __iter__(self) -> Generator[Delta, None, None]:
        if not self._started.acquire(blocking=False):
            raise BadInputError("this request has already run or is running; make a new one")
        return self._life()

    def _life(self) -> Generator[Delta, None, None]:
        cache: KVCache | None = None
        by, is_postponed = "keyboard", False
        try:
            if self._goes_on():
                with self._listening(stage="prepare"):
                    if self._recorder is not None:
                        self._recorder.know_weights(self._model.named_weights())
                    if self._teller is not None:
                        self._teller.begin()
                    cache = self._make_cache()
                    self.reused_tokens = prefixes_of(cache).reuse_prefix(self.prompt_ids)
                    if self._teller is not None:
                        self._teller.chunks(self.reused_tokens)
                yield from self._steps(cache)
            if tail := self._output.close():
                yield self._delta(tail)
        except GeneratorExit:
            by = "the reader of the stream"  # or the garbage collector, which does not ask whether it suits anybody
            is_postponed = postponed(partial(self._end_life, cache, by), self._recorder)
            raise
        except KeyboardInterrupt:
            self._leave_step()
            raise
        except BaseException as error:
            self._leave_step()
            self._fail(error)
            raise
        finally:
            if not is_postponed:
                try:
                    self._end_life(cache, by)
                finally:
                    self._leave_step()

    def _end_life(self, cache: KVCache | None, by: str) -> None:
        """Releases everything; a request that has no end state yet was stopped."""
        try:
            if self.finish is None:
                self._stopped_by(by)
        finally:
            try:
                if cache is not None:
                    self._release(cache)
            finally:
                self.close()

    def _leave_step(self) -> None:
        """Behind an interrupt at the one instruction at which a step cannot end by itself."""
        stop_listening(self._recorder, self._number)

    def _release(self, cache: KVCache) -> None:
        try:
            self._leave_prefix(cache)
            if self._teller is not None:
                self._teller.releasing(cache)
        finally:
            cache.release()

    def _leave_prefix(self, cache: KVCache) -> None:
        """Others may find rows whose scores were judged sound, and none of a request that failed."""
        with self._listening(stage="deliver"):
            if self.finish is None or self.finish.reason == "failed":
                prefixes_of(cache).withdraw_prefix()
            elif self.token_ids:
                prefixes_of(cache).publish_prefix((*self.prompt_ids, *self.token_ids[:-1]))

    def _steps(self, cache: KVCache) -> Iterator[Delta]:
        """Prefill and decode until there is an end state; damaged scores are one."""
        try:
            yield from self._prefill(cache)
            while self._goes_on():
                yield self._decode(cache)
        except NumericalError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._end(Finish("failed", {"error": f"{type(error).__name__}: {error}", "phase": self.clock.phase}))

    def _prefill(self, cache: KVCache) -> Iterator[Delta]:
        """Takes the prompt in chunks; the scores of the last chunk choose the first token."""
        self._enter("prefilling")
        self.clock.enter("prefill")
        size, prompt = self.settings.prefill_chunk_tokens, self.prompt_ids
        if self.settings.cache == NO_CACHE:  # nothing stays from one step to the next
            size = len(prompt)
        for step, start in enumerate(range(self.reused_tokens, len(prompt), size)):
            if not self._goes_on():
                return
            with self._listening(stage="prefill", step=step):
                if self._teller is not None:
                    self._teller.step()
                logits_BV = self._advance(cache, prompt[start : start + size])
                if start + size < len(prompt):
                    continue
                self._enter("decoding")
                self.clock.enter("decode")
                if (full := self._no_room(0)) is not None:
                    self._end(full)
                    return
                delta = self._take(logits_BV)
                prefixes_of(cache).publish_prefix(prompt)
            yield self._handed_over(delta)

    def _decode(self, cache: KVCache) -> Delta:
        """Runs the token that was chosen last through the model and chooses the next one."""
        self.clock.enter("decode")
        self._decode_step += 1
        with self._listening(stage="decode", step=self._decode_step):
            delta = self._take(self._advance(cache, self.token_ids[-1:]))
        return self._handed_over(delta)

    def _advance(self, cache: KVCache, ids: Sequence[int]) -> Array:
        settings = self.settings
        if settings.cache == NO_CACHE:
            return advance_without_cache(
                self._model,
                self._make_cache,
                [*self.prompt_ids, *self.token_ids],
                chunk_tokens=settings.prefill_chunk_tokens,
                heads=settings.heads,
            )
        logits_BV = advance(self._model, cache, ids, heads=settings.heads)
        self._cache_peak_bytes = max(self._cache_peak_bytes, cache.memory().allocated_bytes)
        return logits_BV

    def _take(self, logits_BV: Array) -> Delta:
        """Chooses the next id, turns it into text, and sees whether the request ends with it."""
        chosen = self._sampler.choose(logits_BV[-1])
        self.clock.enter("deliver")
        text = self._output.push(chosen.token_id)
        full = self._no_room(len(self.token_ids) + 1)
        if self._output.finish is not None or full is not None:
            text += self._output.close()  # may complete a stop string, so it goes first
        if self._teller is not None:
            self._teller.text_side(self._output)
        delta = self._delta(text, chosen)
        self.token_ids.append(chosen.token_id)  # makes the step count, also when an interrupt comes now
        if (finish := self._output.finish or full) is not None:
            self._end(finish)
        return delta

    def _goes_on(self) -> bool:
        """Whether there is a next step; looks for cancellation and the deadline."""
        deadline_s = self.settings.deadline_s
        phase = (
            "decode" if self.state == "decoding" else self.clock.phase
        )  # that of the step that is not done
        if self._cancelled_by is not None:
            self._end(Finish("cancelled", {"by": self._cancelled_by, "phase": phase}))
        elif deadline_s is not None and self.clock.elapsed_s >= deadline_s:
            evidence = {
                "deadline_s": deadline_s,
                "elapsed_s": round(self.clock.elapsed_s, 6),
                "phase": phase,
            }
            self._end(Finish("deadline", evidence))
        return self.finish is None

    def _no_room(self, new_tokens: int) -> Finish | None:
        """The end state of a request with so many new ids, where no more are allowed."""
        max_tokens, context = self.settings.max_tokens, self._model.context_length_tokens
        if new_tokens >= max_tokens:
            return Finish("length", {"max_tokens": max_tokens})
        if len(self.prompt_ids) + new_tokens >= context:
            return Finish("context", {"context_length_tokens": context})
        room = self._most_positions
        if room is not None and len(self.prompt_ids) + new_tokens > room:
            return Finish("context", {"cache_positions": room})
        return None

    def _end(self, finish: Finish) -> None:
        """Sets the end state; the first one counts."""
        if self.finish is None:
            self.finish = finish
            if self._teller is not None:
                self._teller.finish(finish)

    def _stopped_by(self, by: str) -> None:
        """Ends a request that is stopped from outside; whoever asked for it before counts."""
        self._end(Finish("cancelled", {"by": self._cancelled_by or by, "phase": self.clock.phase}))

    def _enter(self, state: State) -> None:
        self.state = state
        if self._teller is not None:
            self._teller.enter(state)

    def _listening(self, **scope: object) -> AbstractContextManager[None]:
        """Lets the recorder of this request listen, if it has one."""
        return recording(self._recorder, request=self._number, **scope)

    def _delta(self, text: str, chosen: Chosen | None = None) -> Delta:
        now = self.clock.elapsed_s
        token_bytes = b"" if chosen is None else self._text_side.token_bytes(chosen.token_id)
        if self._teller is not None:
            self._teller.delta(text, None if chosen is None else chosen.token_id, token_bytes)
        if chosen is None:
            return Delta(text, (), b"", now, now)
        if self.first_token_s is None:
            self.first_token_s = now
        described: tuple[TokenLogProbability, ...] = ()
        if chosen.log_probability is not None:
            top = tuple(self._described(*each) for each in chosen.top)
            described = (replace(self._described(chosen.token_id, chosen.log_probability), top=top),)
            self.log_probabilities.extend(described)
        return Delta(text, (chosen.token_id,), token_bytes, now, now, described)

    def _described(self, token_id: int, log_probability: float) -> TokenLogProbability:
        return TokenLogProbability(token_id, self._text_side.token_bytes(token_id), log_probability)

    def _handed_over(self, delta: Delta) -> Delta:
        return replace(delta, handed_over_s=self.clock.elapsed_s)

    def _rebuild_text(self) -> None:
        """After an interruption at any instruction: text, ids and log-probabilities of whole steps only."""
        del self.log_probabilities[len(self.token_ids) :]
        if not self.token_ids:
            self.first_token_s = None
        self._output = TextOutput(self._text_side, self.settings, self._begins)
        for token_id in self.token_ids:
            self._output.push(token_id)


def check_prompt(prompt_ids: Sequence[int], model: Transformer) -> None:
    """Checks that a prompt can be run at all.

    Errors: `BadInputError` for no ids, ids outside the vocabulary, or more than the context holds.
    """
    if not prompt_ids:
        raise BadInputError(
            "the prompt yields no token ids, and this model has no start token to put in their place; "
            "write at least one character"
        )
    vocabulary, context = model.vocabulary_size, model.context_length_tokens
    for token_id in prompt_ids:
        if not 0 <= token_id < vocabulary:
            raise BadInputError(
                f"the prompt has the id {token_id}; this model's ids go from 0 to {vocabulary - 1}"
            )
    if len(prompt_ids) > context:
        raise PromptTooLongError(
            f"the prompt has {len(prompt_ids):,} tokens, and this model's context holds {context:,}; shorten the prompt"
        )
