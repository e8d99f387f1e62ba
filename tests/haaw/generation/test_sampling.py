"""The sampling plan: its order, what every setting may be, the draw and its seeds, log-probabilities.

FAULTS: S10 (bytes of alternatives), S33 to S40 (off values, order, greedy, poisoned scores, unknown ids).
"""

import itertools
import math
import statistics
import threading

import numpy as np
import pytest
from support.gguf_models import llama_metadata
from support.tiny_models import tiny_language_model

from haaw.errors import BadInputError
from haaw.generation.sampling import NumericalError, Sampler, SamplingPlan
from haaw.generation.settings import Settings, make_settings
from haaw.ops.recorder import Recorder, recording
from haaw.tokenizers import tokenizer_from_gguf

INF, NAN = math.inf, math.nan
ALPHA = 1e-6
"""How often a chi-square test here may fail without a fault."""


class Outputs(Recorder):
    """A recorder that keeps the last result of every operation."""

    def __init__(self) -> None:
        self.by_op: dict[str, object] = {}

    def run(self, op, args, kwargs, scope):
        self.by_op[op.name] = result = op.plain(*args, **kwargs)
        return result

    def declare(self, name, array, scope) -> None:
        self.by_op[name] = array

    def emit(self, kind, facts, scope) -> None:
        pass

    def know_weights(self, weights) -> None:
        pass


def only(token_id: int, size: int = 8) -> np.ndarray:
    """Scores that leave no doubt, whatever the plan (short of a ban) does to them."""
    scores_V = np.zeros(size, np.float32)
    scores_V[token_id] = 1e4
    return scores_V


def test_the_worksheet_through_the_whole_plan() -> None:
    """The calculation stands in tests/haaw/ops/test_choosing.py; prompt 0, 5, answer so far 1, 3, 3."""
    plan = SamplingPlan(
        repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.1,
        logit_bias={2: 1, 4: -0.25, 7: -INF}, temperature=0.5, top_k=5, top_p=0.9, min_p=0.3, seed=11,
    )  # fmt: skip
    assert plan.steps() == [
        "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
        "temperature", "top_k", "top_p", "min_p", "draw",
    ]  # fmt: skip
    sampler = Sampler(plan, [0, 5], log_probabilities=2)
    assert [sampler.choose(only(token_id)).token_id for token_id in (1, 3, 3)] == [1, 3, 3]
    seen = Outputs()
    with recording(seen):
        chosen = sampler.choose(np.array([2, -1, 0, 1, 1, -3, 0.5, -0.5], np.float32))
    values = {name: [part.tolist() for part in out] for name, out in seen.by_op.items() if len(out) == 2}
    assert seen.by_op["temper"].tolist() == pytest.approx([8 / 3, -4, 2, 2 / 15, 1.5, -9, 1, -INF], abs=1e-6)
    assert values["candidates"][0] == [0, 1, 2, 3, 4, 5, 6]
    assert values["keep_top_k"][0] == [0, 2, 3, 4, 6]
    assert values["keep_top_p"][0] == [0, 2, 4, 6]
    assert values["keep_min_p"][0] == [0, 2, 4]
    uniform = np.random.Generator(np.random.Philox(key=[11, 0], counter=[0, 3, 0, 0])).random()
    assert seen.by_op["uniform"].tolist() == [uniform]
    assert chosen.token_id == (0 if uniform < 0.547999 else 2 if uniform < 0.829351 else 4)
    # Before the plan: log of the probabilities 0.447862 and 0.164759 of the scores as they came.
    assert [token_id for token_id, _ in chosen.top] == [0, 3]
    assert [value for _, value in chosen.top] == pytest.approx(
        [math.log(0.447862), math.log(0.164759)], abs=3e-6
    )


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, ["greedy"]),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 1}, ["greedy"]),
        ({"temperature": 1}, ["temperature", "draw"]),
        ({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}, ["temperature", "draw"]),
        ({"temperature": 0.1, "min_p": 0.1, "top_k": 4}, ["temperature", "top_k", "min_p", "draw"]),
        ({"logit_bias": {1: 2}, "presence_penalty": -1}, ["presence_penalty", "logit_bias", "greedy"]),
    ],
)
def test_a_plan_names_the_steps_that_do_something(settings: dict, steps: list[str]) -> None:
    assert SamplingPlan(**settings).steps() == steps


def test_values_that_are_off_leave_the_scores_alone() -> None:
    """S33, S35: off values fell through a comparison. 0 is off for top-k, 1 for top-p, 0 for min-p."""
    seen = Outputs()
    plan = SamplingPlan(temperature=1, top_k=0, top_p=1, min_p=0, repetition_penalty=1, logit_bias={})
    with recording(seen):
        Sampler(plan, [1, 2]).choose(np.zeros(5, np.float32))
    assert seen.by_op["candidates"][0].tolist() == [0, 1, 2, 3, 4]
    assert not seen.by_op.keys() & {"keep_top_k", "keep_top_p", "keep_min_p", "logit_bias", "temper"}
    top_k = Sampler(SamplingPlan(temperature=1, top_k=5 + 5), [1])
    assert top_k.choose(np.zeros(5, np.float32)).token_id in range(5)


def test_temperature_0_takes_the_highest_score_and_the_lower_id_whatever_the_seed() -> None:
    """S37: 0 behaved like 1. S38: a random one of tied maxima was taken."""
    for seed in range(50):
        sampler = Sampler(SamplingPlan(temperature=0, seed=seed), [0])
        assert sampler.choose(np.array([1, 3, 3, 0], np.float32)).token_id == 1
    model = tiny_language_model(1)
    answers = {model.generate([1], temperature=0, seed=seed, max_tokens=5).token_ids for seed in (1, 2, None)}
    assert len(answers) == 1
    assert model.generate([1], temperature=0, max_tokens=2).seed is None


@pytest.mark.parametrize("plan", [{"top_k": 1}, {"top_p": 0}, {"min_p": 1}])
def test_a_filter_of_zero_width_is_greedy_whatever_the_seed(plan: dict) -> None:
    model = tiny_language_model(1)
    greedy = model.generate([4, 2], max_tokens=8).token_ids
    for seed in range(5):
        assert model.generate([4, 2], max_tokens=8, temperature=3, seed=seed, **plan).token_ids == greedy


@pytest.mark.parametrize("temperature", [0, 0.7])
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("at", [[0], [4], [7], range(8)])
def test_poisoned_scores_are_never_chosen_from(temperature: float, value: float, at) -> None:
    """S39: one NaN or +inf led to text that looked healthy."""
    scores_V = np.zeros(8, np.float32)
    scores_V[list(at)] = value
    with pytest.raises(NumericalError, match="damaged"):
        Sampler(SamplingPlan(temperature=temperature), [1]).choose(scores_V)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_a_plan_that_leaves_nothing_says_so(temperature: float) -> None:
    """Greedy took id 0, although it was banned, when the model had ruled out all that was not."""
    plan = SamplingPlan(temperature=temperature, logit_bias={0: -INF, 2: -INF})
    with pytest.raises(NumericalError, match="ban fewer"):
        Sampler(plan, [1]).choose(np.array([5, -INF, 5], np.float32))


@pytest.mark.parametrize(
    ("plan", "scores"),
    [
        ({"repetition_penalty": 1e-3, "temperature": 1}, [3e38, 0]),
        ({"repetition_penalty": 1e-3}, [3e38, 0]),
        ({"temperature": 1e-3}, [3e38, 0]),
        ({"temperature": 1e-3}, [-3e38, -3e38]),
    ],
)
def test_scores_that_a_plan_drives_beyond_all_numbers_are_never_chosen_from(plan, scores) -> None:
    """They became infinite, the probabilities NaN, and the first id was taken."""
    with pytest.raises(NumericalError, match="too far from 0"):
        Sampler(SamplingPlan(**plan), [0]).choose(np.array(scores, np.float32))


def test_huge_scores_go_through_the_strongest_plan() -> None:
    scores_V = np.array([1e30, -1e30, 0, -INF, 0.9e30], np.float32)
    for penalty, temperature in itertools.product((1e-3, 1, 1e3), (1e-3, 1, 1e3)):
        plan = SamplingPlan(
            repetition_penalty=penalty, temperature=temperature, top_p=0.9, presence_penalty=1e3
        )
        assert Sampler(plan, [0, 1]).choose(scores_V).token_id == (0 if penalty <= 1 else 4)
    assert Sampler(SamplingPlan(repetition_penalty=1e3), [0, 1, 4]).choose(-abs(scores_V)).token_id == 2


def test_any_plan_on_any_scores_chooses_an_id_that_is_not_banned(rng: np.random.Generator) -> None:
    extremes = [0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, -INF, 3.0, 3.0]
    for _ in range(400):
        size = int(rng.choice([1, 2, 3, 9, 70]))
        scores_V = rng.choice(extremes, size).astype(rng.choice([np.float32, np.float64]))
        left = int(rng.integers(size))
        scores_V[left] = rng.choice([0.0, 1e30, -1e30])
        banned = set(rng.integers(0, size, int(rng.integers(0, size + 1))).tolist()) - {left}
        plan = SamplingPlan(
            repetition_penalty=float(rng.choice([1e-3, 0.5, 1, 2, 1e3])),
            presence_penalty=float(rng.choice([-1e3, 0, 1e3])),
            frequency_penalty=float(rng.choice([-1e3, 0, 0.5])),
            logit_bias=dict.fromkeys(banned, -INF) | ({left: 1e6} if rng.random() < 0.3 else {}),
            temperature=float(rng.choice([0, 1e-3, 0.7, 1, 1e3])),
            top_k=int(rng.choice([0, 1, 2, 10**9])),
            top_p=float(rng.choice([0, 1e-9, 0.5, 1])),
            min_p=float(rng.choice([0, 1e-9, 0.5, 1])),
            seed=int(rng.integers(2**40)),
        )
        sampler = Sampler(plan, rng.integers(0, size, 3).tolist(), log_probabilities=size)
        for _ in range(3):
            chosen = sampler.choose(scores_V)
            assert 0 <= chosen.token_id < size
            assert chosen.token_id not in banned
            assert scores_V[chosen.token_id] > -INF
            assert len(chosen.top) == size


# --- the draw


def critical_chi_square(degrees: int) -> float:
    """The value exceeded with the chance ALPHA: Wilson and Hilferty 1931, doi:10.1073/pnas.17.12.684."""
    z = statistics.NormalDist().inv_cdf(1 - ALPHA)
    return degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3


def test_the_critical_value_is_right_to_a_factor_of_three() -> None:
    """With 2n degrees of freedom the chance to exceed x is exp(−x/2) · Σ (x/2)^i / i! over i < n, exactly."""
    for n in (2, 5):
        half = critical_chi_square(2 * n) / 2
        exact = math.exp(-half) * sum(half**i / math.factorial(i) for i in range(n))
        assert ALPHA / 3 < exact <= ALPHA


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


DRAWS = pytest.mark.parametrize("draws", [5_000, pytest.param(100_000, marks=pytest.mark.long)])


@DRAWS
@pytest.mark.parametrize("over", ["steps", "choices", "seeds"])
def test_draws_are_as_frequent_as_the_probabilities_say(draws: int, over: str, seed: int) -> None:
    """Temperature 0.8, top-k 6 of eight, top-p 0.95 which drops one more; expected values in float64."""
    scores = np.array([2, -1, 0, 1, 1.2, -3, 0.5, -0.5])
    exps = np.sort(np.exp(scores / 0.8))[::-1][:6]
    kept = int(np.searchsorted(np.cumsum(exps) / exps.sum(), 0.95)) + 1
    assert kept == 5
    ids = np.argsort(-scores)[:kept]
    probabilities = exps[:kept] / exps[:kept].sum()
    counts = np.zeros(8, int)
    plan = {"temperature": 0.8, "top_k": 6, "top_p": 0.95}
    sampler = Sampler(SamplingPlan(**plan, seed=seed), [0])
    for number in range(draws):
        if over == "choices":
            sampler = Sampler(SamplingPlan(**plan, seed=seed, choice=number), [0])
        elif over == "seeds":
            sampler = Sampler(SamplingPlan(**plan, seed=seed + number), [0])
        counts[sampler.choose(scores).token_id] += 1
    assert counts.sum() == counts[ids].sum()
    assert chi_square(counts[ids], probabilities) < critical_chi_square(kept - 1)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**64, 2**64 - 1, -(2**63) - 7, 10**40])
@pytest.mark.parametrize("choice", [0, 3, 2**64 - 1])
def test_the_number_of_a_draw_is_that_of_the_design(seed: int, choice: int) -> None:
    sampler = Sampler(SamplingPlan(temperature=1, seed=seed, choice=choice), [0])
    for step in range(3):
        seen = Outputs()
        with recording(seen):
            sampler.choose(np.zeros(3, np.float32))
        bits = np.random.Philox(
            key=np.array([seed % 2**64, choice], np.uint64), counter=np.array([0, step, 0, 0], np.uint64)
        )
        assert seen.by_op["uniform"].tolist() == [np.random.Generator(bits).random()]


def test_a_seed_that_the_system_chose_is_told_and_repeats_the_answer() -> None:
    model = tiny_language_model(1)
    first = model.generate([1, 2], temperature=1.5, max_tokens=12)
    assert first.seed is not None
    assert first.to_dict()["seed"] == first.seed
    assert (
        model.generate([1, 2], temperature=1.5, max_tokens=12, seed=first.seed).token_ids == first.token_ids
    )
    assert model.generate([1, 2], temperature=1.5, max_tokens=12).seed != first.seed
    negative = model.generate([1, 2], temperature=1.5, max_tokens=12, seed=-5)
    again = model.generate([1, 2], temperature=1.5, max_tokens=12, seed=negative.seed)
    assert again.token_ids == negative.token_ids


def drawn_alone(seeds: range) -> tuple[object, dict[int, tuple[int, ...]]]:
    model = tiny_language_model(1)
    return model, {seed: drawn(model, seed).run().token_ids for seed in seeds}


def drawn(model, seed: int):
    return model.request([1 + seed, 2], temperature=1.5, top_p=0.95, max_tokens=12, seed=seed)


def test_a_seed_gives_the_same_ids_in_company() -> None:
    model, alone = drawn_alone(range(6))
    assert len(set(alone.values())) == 6
    requests = {seed: drawn(model, seed) for seed in alone}
    for _ in itertools.zip_longest(*requests.values()):  # a step of each in turn
        pass
    assert {seed: request.answer.token_ids for seed, request in requests.items()} == alone
    requests = {seed: drawn(model, seed) for seed in alone}
    threads = [threading.Thread(target=request.run) for request in requests.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {seed: request.answer.token_ids for seed, request in requests.items()} == alone


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_seed_gives_the_same_ids_after_an_interruption(steps: int) -> None:
    model, alone = drawn_alone(range(3))
    for seed, ids in alone.items():
        interrupted = drawn(model, seed)
        stream = iter(interrupted)
        for _ in range(steps):
            next(stream)
        interrupted.cancel()
        assert list(stream) == []
        assert interrupted.answer.token_ids == ids[:steps]
        assert interrupted.answer.finish.reason == "cancelled"
        assert drawn(model, seed).run().token_ids == ids


def test_choices_number_different_answers_under_one_seed() -> None:
    model = tiny_language_model(1)
    answers = {
        model.generate([1], temperature=1.5, max_tokens=12, seed=5, choice=n).token_ids for n in range(4)
    }
    assert len(answers) == 4


# --- log-probabilities


@pytest.mark.parametrize("logprobs", [0, 1, 5, 64, 100])
@pytest.mark.parametrize("plan", [{}, {"temperature": 1.5, "repetition_penalty": 1.4, "top_k": 3, "seed": 2}])
def test_log_probabilities_are_those_of_the_model_before_the_plan(logprobs: int, plan: dict) -> None:
    """Against log-softmax in float64 of a run without cache; n may exceed the vocabulary of 64."""
    from support.steps import all_logits

    model = tiny_language_model(1)
    answer = model.generate([7, 3], max_tokens=6, logprobs=logprobs, **plan)
    logits_TV = all_logits(model.transformer, [7, 3, *answer.token_ids]).astype(np.float64)
    assert len(answer.log_probabilities) == len(answer.token_ids) == 6
    for row, (token_id, described) in enumerate(zip(answer.token_ids, answer.log_probabilities, strict=True)):
        logits_V = logits_TV[1 + row]
        exact_V = logits_V - logits_V.max()
        exact_V -= math.log(math.fsum(np.exp(exact_V)))
        assert described.token_id == token_id
        assert described.log_probability == pytest.approx(exact_V[token_id], abs=1e-5)
        assert len(described.top) == min(logprobs, 64)
        likeliest = np.argsort(-exact_V, kind="stable")[: len(described.top)]
        assert [each.token_id for each in described.top] == likeliest.tolist()
        assert [each.log_probability for each in described.top] == pytest.approx(exact_V[likeliest], abs=1e-5)
    assert "log_probabilities" in answer.to_dict()


def test_log_probabilities_are_left_out_unless_asked_for() -> None:
    answer = tiny_language_model(1).generate([7, 3], max_tokens=2)
    assert answer.log_probabilities == ()
    assert "log_probabilities" not in answer.to_dict()


def test_log_probabilities_carry_the_vocabularys_own_bytes(request_for) -> None:
    """S10: the bytes of half characters were those of the replacement character."""
    tokenizer = tokenizer_from_gguf(llama_metadata())
    emoji = "😶".encode()
    answer = request_for(list(emoji), text_side=tokenizer, max_tokens=4, logprobs=3).run()
    assert answer.text == "😶"
    described = [each.to_dict() for each in answer.log_probabilities]
    assert [each["bytes"] for each in described] == [[240], [159], [152], [182]]
    # The scripted model gives every other id the score 0, so the lowest ids follow: bytes 0 and 1.
    assert [[top["bytes"] for top in each["top"]] for each in described] == [
        [[byte], [0], [1]] for byte in emoji
    ]
    assert b"".join(each.token_bytes for each in answer.log_probabilities).decode() == answer.text


def test_log_probabilities_are_of_the_tokens_that_are_delivered(request_for) -> None:
    request = request_for([7, 8, 9], eos_ids=[9], logprobs=1)
    deltas = [delta for delta in request if delta.token_ids]
    assert [[each.token_id for each in delta.log_probabilities] for delta in deltas] == [[7], [8], [9]]


# --- what a setting may be

NOT_NUMBERS = [NAN, INF, -INF, True, "1", None, [1], 1j, b"1"]
REFUSED = [
    *(("temperature", value) for value in (*NOT_NUMBERS, -0.1, 1e-4, 1e9, 10**400)),
    *(("top_p", value) for value in (*NOT_NUMBERS, 7, -0.1, 1.0001)),
    *(("min_p", value) for value in (*NOT_NUMBERS, 7, -0.1, 1.0001)),
    *(("top_k", value) for value in (*NOT_NUMBERS, -1, 1.0, 2.5)),
    *(("repetition_penalty", value) for value in (*NOT_NUMBERS, 0, -1, 1e9)),
    *(("presence_penalty", value) for value in (*NOT_NUMBERS, 1e9)),
    *(("frequency_penalty", value) for value in (*NOT_NUMBERS, -1e9)),
    *(("seed", value) for value in (NAN, INF, True, "1", [1], 1.0)),
    *(("choice", value) for value in (*NOT_NUMBERS, -1, 2**64, 1.0)),
    *(("logit_bias", value) for value in (None, 3, "1=2", [(1, 2)], {"1": 2}, {1.0: 2}, {True: 2})),
    *(("logit_bias", {1: value}) for value in (NAN, INF, True, "1", None, 1e39, 10**400, -2e6)),
    *(("max_tokens", value) for value in (*NOT_NUMBERS, -1, 1.0)),
    *(("prefill_chunk_tokens", value) for value in (*NOT_NUMBERS, 0, -1, 1.0)),
    *(("deadline_s", value) for value in (NAN, INF, -INF, True, "1", [1], 0, -1)),
    *(("logprobs", value) for value in (NAN, INF, True, "1", [1], -1, 1.0, 101)),
    *(("heads", value) for value in ("both", None, 1, ["together"])),
    *(("stop", value) for value in ("", [""], ["", "X"], 5, True, [5], [None], b"x", [b"x"], "x" * 1001)),
    *(("stop", value) for value in (["x"] * 65, {"x": 1})),
    *(("stop_ids", value) for value in (-1, [-1], True, [True], "1", ["1"], 1.0, [1.0], [[1]], {1: 2})),
    *(("tool_call_markers", value) for value in ("ab", 5, ["a"], ["a", ""], ["a", "b", "c"], [1, 2])),
]  # fmt: skip


def said(error: BaseException) -> str:
    """The message, which must be one or two sentences in one line."""
    message = str(error)
    assert "\n" not in message
    assert len(message) < 240
    return message


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda value: f"{value!r:.40}")
def test_an_impossible_setting_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(BadInputError) as caught:
        tiny_language_model(1).request([1], **{name: value})
    message = said(caught.value)
    assert name in message
    plain = value if isinstance(value, list | dict | tuple) else [value]
    inner = [*plain, *(plain.values() if isinstance(plain, dict) else [])]
    assert any(f"{each!r:.40}" in message for each in [value, *inner]) or any(c.isdigit() for c in message)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"logit_bias": {999_999: 5}}, "999999; this model's ids go from 0 to 63"),
        ({"logit_bias": {-1: 5}}, "-1"),
        ({"logit_bias": {64: 5}}, "64"),
        ({"logit_bias": dict.fromkeys(range(64), -INF)}, "bans every token"),
        ({"stop_ids": [64]}, "stop_ids names the id 64; this model's ids go from 0 to 63"),
        ({"stop_ids": 10**30}, "stop_ids"),
        ({"temprature": 1}, 'unknown setting "temprature"; known:.*temperature'),
        ({"sampling": SamplingPlan()}, 'unknown setting "sampling"'),
    ],
)
def test_settings_that_the_model_cannot_serve_are_refused(settings: dict, says: str) -> None:
    """S40: an id outside the vocabulary crashed the engine."""
    with pytest.raises(BadInputError, match=says):
        tiny_language_model(1).request([1], **settings)


def test_settings_at_their_limits_are_taken() -> None:
    plan = {"temperature": 1e-3, "top_p": 0, "min_p": 1, "top_k": 10**30, "seed": -(10**40)}
    penalties = {"repetition_penalty": 1e3, "presence_penalty": -1e3, "frequency_penalty": 1e3}
    bias = {"logit_bias": dict.fromkeys(range(1, 64), -INF) | {0: -1e6}}
    more = {"stop": None, "stop_ids": [], "deadline_s": 1e9, "logprobs": 100, "max_tokens": 2}
    answer = tiny_language_model(1).generate([1], **plan, **penalties, **bias, **more)
    assert answer.token_ids == (0, 0)


def test_one_stop_or_several_mean_the_same() -> None:
    assert make_settings(stop="x", stop_ids=3) == make_settings(stop=["x"], stop_ids={3})
    assert make_settings(stop=("x", "y")).stop == ("x", "y")
    assert make_settings(stop=None, stop_ids=None, tool_call_markers=["a", "b"]).tool_call_markers == (
        "a",
        "b",
    )
    assert make_settings() == Settings()
