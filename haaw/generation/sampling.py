"""The sampling plan: which steps lead from scores to the next token, in one fixed order.

Penalties, bias, temperature, top-k, top-p, min-p, draw. Steps that would change nothing are left out. The draw
depends only on seed, choice and step, never on what else runs: the same seed gives the same ids anywhere.
"""

import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from haaw.arrays import Array, like, to_host
from haaw.errors import BadInputError, HaawError
from haaw.ops.choosing import (
    candidates,
    count_penalty,
    cumulative_mass,
    draw,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    log_softmax,
    logit_bias,
    repetition_penalty,
    temper,
    top_candidates,
)
from haaw.ops.recorder import LISTENING, declare, emit, scope

MOST_LOG_PROBABILITIES = 100
LARGEST_BIAS = 1e6
SMALLEST_TEMPERATURE = 1e-3
MOST_TOLD_CANDIDATES = 4_096


class NumericalError(HaawError):
    """The scores are not numbers any more; nothing sensible can be chosen."""


@dataclass(frozen=True)
class SamplingPlan:
    """How the next token is chosen. The defaults choose greedily.

    `repetition_penalty` (1 is off) divides positive and multiplies negative scores of every id in prompt or
    answer. `presence_penalty` and `frequency_penalty` (0 is off) are subtracted for ids of the answer.
    `logit_bias` maps ids to what is added; minus infinity bans. `temperature` 0 takes the most likely token.
    `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` None lets the system choose one; `choice` numbers
    several answers to one prompt under one seed.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    choice: int = 0

    def __post_init__(self) -> None:
        _within("repetition_penalty", self.repetition_penalty, 1e-3, 1e3, "1 is off")
        _within("presence_penalty", self.presence_penalty, -1e3, 1e3, "0 is off")
        _within("frequency_penalty", self.frequency_penalty, -1e3, 1e3, "0 is off")
        _within("temperature", self.temperature, 0, 1e3, "0 takes the most likely token")
        if 0 < self.temperature < SMALLEST_TEMPERATURE:
            raise BadInputError(
                f"temperature is {self.temperature}; use 0 for the most likely token, or {SMALLEST_TEMPERATURE} or more"
            )
        _within("top_p", self.top_p, 0, 1, "1 is off")
        _within("min_p", self.min_p, 0, 1, "0 is off")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise BadInputError(f"top_k is {self.top_k!r}; it must be a whole number, and 0 is off")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise BadInputError(f"seed is {self.seed!r}; it must be a whole number")
        if isinstance(self.choice, bool) or not isinstance(self.choice, int) or not 0 <= self.choice < 2**64:
            raise BadInputError(f"choice is {self.choice!r}; it must be a whole number from 0 on")
        _check_bias(self.logit_bias)

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    def check_vocabulary(self, vocabulary_size: int) -> None:
        """Checks what depends on the model.

        Errors: `BadInputError` for a bias outside the vocabulary, or one that bans every token.
        """
        for token_id in self.logit_bias:
            if not 0 <= token_id < vocabulary_size:
                raise BadInputError(
                    f"logit_bias names the id {token_id}; this model's ids go from 0 to {vocabulary_size - 1}"
                )
        if sum(bias == -math.inf for bias in self.logit_bias.values()) >= vocabulary_size:
            raise BadInputError("logit_bias bans every token of the vocabulary; leave at least one")

    def steps(self) -> list[str]:
        """The steps that do something, in order, as a person would write them."""
        said = {
            "repetition_penalty": self.repetition_penalty != 1,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "logit_bias": bool(self.logit_bias),
        }
        names = [name for name, on in said.items() if on]
        if self.is_greedy:
            return [*names, "greedy"]
        filters = {"top_k": self.top_k > 0, "top_p": self.top_p < 1, "min_p": self.min_p > 0}
        return [*names, "temperature", *(name for name, on in filters.items() if on), "draw"]


def _within(name: str, value: object, least: float, most: float, remark: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadInputError(
            f"{name} is {value!r:.60}; it must be a number from {least:g} to {most:g} ({remark})"
        )


def _check_bias(bias: object) -> None:
    if not isinstance(bias, Mapping):
        raise BadInputError(f"logit_bias is {bias!r:.60}; it must map token ids to numbers")
    for token_id, value in bias.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise BadInputError(f"logit_bias has the key {token_id!r:.60}; a key is a token id")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (abs(value) <= LARGEST_BIAS or value == -math.inf):
            raise BadInputError(
                f"logit_bias of {token_id} is {value!r:.60}; it must be a number from -{LARGEST_BIAS:,.0f} "
                f"to {LARGEST_BIAS:,.0f}, or -inf for a ban"
            )


@dataclass(frozen=True)
class Chosen:
    """A chosen id; with log-probabilities before the plan, where they were asked for."""

    token_id: int
    log_probability: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Carries out a plan for one answer: remembers what was seen, and counts steps."""

    def __init__(
        self,
        plan: SamplingPlan,
        prompt_ids: Sequence[int],
        *,
        log_probabilities: int | None = None,
    ) -> None:
        self.plan = plan
        self.seed = secrets.randbits(64) if plan.seed is None else plan.seed % 2**64
        self._log_probabilities = log_probabilities
        self._step = 0
        self._in_prompt = frozenset(prompt_ids)
        self._in_answer: Counter[int] = Counter()

    def choose(self, logits_V: Array) -> Chosen:
        """The next id.

        Errors: `NumericalError` when the scores hold NaN or plus infinity, or nothing but minus infinity,
        also after penalties, bias and temperature.
        """
        highest = _highest(logits_V)
        if not math.isfinite(highest):
            raise NumericalError(
                f"the highest score is {highest}; a weight or an activation is damaged, so nothing can be chosen"
            )
        with scope(part="choose"), np.errstate(over="ignore"):  # what is too low becomes minus infinity
            scores_V = self._adjusted(logits_V)
            self._check_adjusted(scores_V)
            id_B = greedy(scores_V) if self.plan.is_greedy else self._drawn(scores_V)
            token_id = int(to_host(id_B)[0])
            chosen = self._with_log_probabilities(token_id, logits_V)
        self._step += 1
        self._in_answer[token_id] += 1
        return chosen

    def _adjusted(self, scores_V: Array) -> Array:
        plan = self.plan
        if plan.repetition_penalty != 1:
            seen_N = like(sorted(self._in_prompt | self._in_answer.keys()), scores_V, np.int64)
            scores_V = repetition_penalty(scores_V, declare("seen", seen_N), penalty=plan.repetition_penalty)
        if self._in_answer and (plan.presence_penalty or plan.frequency_penalty):
            ids_N = like(list(self._in_answer), scores_V, np.int64)
            counts_N = like(list(self._in_answer.values()), scores_V, scores_V.dtype)
            scores_V = count_penalty(
                scores_V,
                declare("answered", ids_N),
                declare("counts", counts_N),
                presence=plan.presence_penalty,
                frequency=plan.frequency_penalty,
            )
        if plan.logit_bias:
            ids_N = like(list(plan.logit_bias), scores_V, np.int64)
            bias_N = like(list(plan.logit_bias.values()), scores_V, scores_V.dtype)
            scores_V = logit_bias(scores_V, declare("biased", ids_N), declare("bias", bias_N))
        return scores_V

    def _check_adjusted(self, scores_V: Array) -> None:
        """Errors: `NumericalError` where the plan leaves nothing to choose, or scores that overflow."""
        highest = _highest(scores_V)
        if highest == -math.inf:
            raise NumericalError("penalties and bias leave no token that could be chosen; ban fewer")
        if abs(highest) / (self.plan.temperature or 1) > np.finfo(scores_V.dtype).max:
            raise NumericalError(
                f"the highest score is {highest:.3g} after penalties and bias, too far from 0 to go on with"
            )

    def _drawn(self, scores_V: Array) -> Array:
        plan = self.plan
        tempered_V = scores_V if plan.temperature == 1 else temper(scores_V, temperature=plan.temperature)
        ids_N, scores_N = candidates(tempered_V)
        left = [("candidates", len(ids_N))]
        if plan.top_k:
            ids_N, scores_N = keep_top_k(ids_N, scores_N, k=plan.top_k)
            left.append(("top_k", len(ids_N)))
        if plan.top_p < 1:
            ids_N, scores_N = keep_top_p(ids_N, scores_N, p=plan.top_p)
            left.append(("top_p", len(ids_N)))
        if plan.min_p > 0:
            ids_N, scores_N = keep_min_p(ids_N, scores_N, min_p=plan.min_p)
            left.append(("min_p", len(ids_N)))
        uniform = self._uniform()
        id_B = draw(ids_N, scores_N, declare("uniform", like([uniform], scores_V, np.float64)))
        if LISTENING.get() is not None:
            emit("candidates", vocabulary=len(scores_V), left=[list(each) for each in left])
            self._tell_draw(ids_N, scores_N, uniform, id_B)
        return id_B

    def _tell_draw(self, ids_N: Array, scores_N: Array, uniform: float, id_B: Array) -> None:
        """The draw in numbers: the chosen candidate owns the shares of the mass from `below` up to `upto`."""
        token_id = int(to_host(id_B)[0])
        below = upto = None
        if len(ids_N) <= MOST_TOLD_CANDIDATES:  # else whoever reads the trace adds up
            mass_N = cumulative_mass(to_host(scores_N))
            at = int(np.searchsorted(to_host(ids_N), token_id))
            below, upto = (float(mass_N[at - 1]) if at else 0.0), float(mass_N[at])
            below, upto = below / float(mass_N[-1]), upto / float(mass_N[-1])
        emit(
            "drawn",
            token_id=token_id,
            uniform=uniform,
            below=below,
            upto=upto,
            seed=self.seed,
            choice=self.plan.choice,
            step=self._step,
        )

    def _uniform(self) -> float:
        """A number in [0, 1) that depends on seed, choice and step alone."""
        # An array, since NumPy takes a list of large and small numbers through float64, which rounds the seed.
        key = np.array([self.seed, self.plan.choice], np.uint64)
        philox = np.random.Philox(key=key, counter=[0, self._step, 0, 0])
        return float(np.random.Generator(philox).random())

    def _with_log_probabilities(self, token_id: int, logits_V: Array) -> Chosen:
        if self._log_probabilities is None:
            return Chosen(token_id)
        log_probabilities_V = log_softmax(logits_V)
        own = float(to_host(log_probabilities_V[token_id : token_id + 1])[0])
        if self._log_probabilities == 0:
            return Chosen(token_id, own)
        ids_N, values_N = top_candidates(log_probabilities_V, n=min(self._log_probabilities, len(logits_V)))
        top = zip(to_host(ids_N).tolist(), to_host(values_N).tolist(), strict=True)
        return Chosen(token_id, own, tuple(top))


def _highest(scores_V: Array) -> float:
    return float(to_host(scores_V.max(keepdims=True))[0])
