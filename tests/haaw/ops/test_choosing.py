"""Every step from scores to a token: a worksheet of eight scores by hand, float64 references, extreme inputs.

FAULTS: S31 to S38 (penalties by sign, bounds of the filters, off values, order, ties).
"""

import math

import numpy as np
import pytest

from haaw.ops.choosing import (
    candidates,
    count_penalty,
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

INF = math.inf
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])

# The worksheet. Eight scores; ids 0 and 5 stand in the prompt, the answer so far is 1, 3, 3.
#
#   id                        0        1     2         3      4      5     6      7
#   scores                    2       −1     0         1      1     −3   0.5   −0.5
#   repetition 1.5        2/1.5  −1·1.5     0     1/1.5      1 −3·1.5   0.5   −0.5     seen: 0, 1, 3, 5
#                      1.333333    −1.5     0  0.666667      1   −4.5   0.5   −0.5
#   presence 0.4, frequency 0.1:  −0.4 − 1·0.1 for id 1, −0.4 − 2·0.1 for id 3
#                      1.333333      −2     0  0.066667      1   −4.5   0.5   −0.5
#   bias +1, −0.25, −inf of the ids 2, 4 and 7
#                      1.333333      −2     1  0.066667   0.75   −4.5   0.5   −inf
#   temperature 0.5    2.666667      −4     2  0.133333    1.5     −9     1   −inf     7 is no candidate
#   top-k 5            2.666667             2  0.133333    1.5            1
#   exp               14.391916      7.389056  1.142631  4.481689   2.718282           total 30.123574
#   probability        0.477763      0.245291  0.037931  0.148777   0.090238
#   falling, summed    0: 0.477763   2: 0.723054   4: 0.871831   6: 0.962069   3: 1
#   top-p 0.9 keeps 0, 2, 4, 6;  min-p 0.3 asks for 0.3·0.477763 = 0.143329: 0, 2 and 4 stay
#   draw: 14.391916, 21.780972 and 26.262661 summed; over the total 0.547999, 0.829351, 1
SCORES = [2, -1, 0, 1, 1, -3, 0.5, -0.5]
AFTER_REPETITION = [4 / 3, -1.5, 0, 2 / 3, 1, -4.5, 0.5, -0.5]
AFTER_COUNTS = [4 / 3, -2, 0, 1 / 15, 1, -4.5, 0.5, -0.5]
AFTER_BIAS = [4 / 3, -2, 1, 1 / 15, 0.75, -4.5, 0.5, -INF]
AFTER_TEMPERATURE = [8 / 3, -4, 2, 2 / 15, 1.5, -9, 1, -INF]


def filtered(keep, scores, **how):
    """The ids that a filter keeps of all candidates; their order and scores are checked on the way."""
    scores_V = np.asarray(scores)
    ids_N, scores_N = keep(*candidates(scores_V), **how)
    ids = ids_N.tolist()
    assert ids == sorted(set(ids))
    assert scores_N.tolist() == scores_V[ids].tolist()
    assert scores_N.dtype == scores_V.dtype
    assert len(ids) >= 1
    return ids


def close(found, expected) -> bool:
    return found.tolist() == pytest.approx(expected, abs=1e-6)


@DTYPES
def test_the_worksheet_step_by_step(dtype) -> None:
    scores_V = np.array(SCORES, dtype)
    scores_V = repetition_penalty(scores_V, np.array([0, 1, 3, 5]), penalty=1.5)
    assert close(scores_V, AFTER_REPETITION)
    counts_N = np.array([1, 2], dtype)
    scores_V = count_penalty(scores_V, np.array([1, 3]), counts_N, presence=0.4, frequency=0.1)
    assert close(scores_V, AFTER_COUNTS)
    scores_V = logit_bias(scores_V, np.array([2, 4, 7]), np.array([1, -0.25, -INF], dtype))
    assert close(scores_V, AFTER_BIAS)
    scores_V = temper(scores_V, temperature=0.5)
    assert close(scores_V, AFTER_TEMPERATURE)
    ids_N, scores_N = candidates(scores_V)
    assert ids_N.tolist() == [0, 1, 2, 3, 4, 5, 6]
    ids_N, scores_N = keep_top_k(ids_N, scores_N, k=5)
    assert ids_N.tolist() == [0, 2, 3, 4, 6]
    ids_N, scores_N = keep_top_p(ids_N, scores_N, p=0.9)
    assert ids_N.tolist() == [0, 2, 4, 6]
    ids_N, scores_N = keep_min_p(ids_N, scores_N, min_p=0.3)
    assert ids_N.tolist() == [0, 2, 4]
    assert close(scores_N, [8 / 3, 2, 1.5])
    for uniform, expected in ((0, 0), (0.547998, 0), (0.548, 2), (0.82935, 2), (0.829352, 4), (0.999999, 4)):
        assert draw(ids_N, scores_N, np.array([uniform])).tolist() == [expected]
    assert scores_V.dtype == scores_N.dtype == dtype


@DTYPES
def test_the_worksheet_each_step_alone(dtype) -> None:
    """On the scores as they are: exp 7.389056 0.367879 1 2.718282 2.718282 0.049787 1.648721 0.606531,
    total 16.498538; probabilities 0.447862 0.022298 0.060611 0.164759 0.164759 0.003018 0.099931 0.036763.
    """
    scores_V = np.array(SCORES, dtype)
    penalised_V = count_penalty(
        scores_V, np.array([1, 3]), np.array([1, 2], dtype), presence=0.4, frequency=0
    )
    assert close(penalised_V, [2, -1.4, 0, 0.6, 1, -3, 0.5, -0.5])
    penalised_V = count_penalty(
        scores_V, np.array([1, 3]), np.array([1, 2], dtype), presence=0, frequency=0.1
    )
    assert close(penalised_V, [2, -1.1, 0, 0.8, 1, -3, 0.5, -0.5])
    biased_V = logit_bias(scores_V, np.array([5]), np.array([6], dtype))
    assert close(biased_V, [2, -1, 0, 1, 1, 3, 0.5, -0.5])
    assert close(temper(scores_V, temperature=4), [0.5, -0.25, 0, 0.25, 0.25, -0.75, 0.125, -0.125])
    assert scores_V.tolist() == SCORES  # nothing is changed in place
    assert filtered(keep_top_k, scores_V, k=1) == [0]
    assert filtered(keep_top_k, scores_V, k=2) == [0, 3]  # 3 and 4 are equal: the lower id
    assert filtered(keep_top_k, scores_V, k=4) == [0, 3, 4, 6]
    assert filtered(keep_top_p, scores_V, p=0.44) == [0]
    assert filtered(keep_top_p, scores_V, p=0.45) == [0, 3]
    assert filtered(keep_top_p, scores_V, p=0.62) == [0, 3, 4]  # 0.447862 + 0.164759 = 0.612621
    assert filtered(keep_top_p, scores_V, p=0.78) == [0, 3, 4, 6]  # 0.777380 is not enough
    assert filtered(keep_min_p, scores_V, min_p=0.36) == [0, 3, 4]  # 0.164759/0.447862 = e^−1 = 0.367879
    assert filtered(keep_min_p, scores_V, min_p=0.37) == [0]
    assert filtered(keep_min_p, scores_V, min_p=0.13) == [0, 2, 3, 4, 6]  # e^−2 = 0.135335
    expected = [s - math.log(sum(map(math.exp, SCORES))) for s in SCORES]
    assert close(log_softmax(scores_V), expected)
    assert close(np.exp(log_softmax(scores_V)), [
        0.447862, 0.022298, 0.060611, 0.164759, 0.164759, 0.003018, 0.099931, 0.036763,
    ])  # fmt: skip
    assert greedy(scores_V).tolist() == [0]


def test_a_repetition_penalty_goes_by_the_sign() -> None:
    """S31: tokens already seen became likelier when their score was negative."""
    penalised_V = repetition_penalty(np.array([2.0, -1.0, 0.0]), np.array([0, 1]), penalty=1.5)
    assert close(penalised_V, [4 / 3, -1.5, 0])


@pytest.mark.parametrize(("p", "kept"), [(0.8, [0, 1]), (0.81, [0, 1, 2]), (0.5, [0]), (0.9, [0, 1, 2])])
@DTYPES
def test_a_nucleus_that_reaches_p_exactly_is_complete(p: float, kept: list[int], dtype) -> None:
    """S32: one candidate too many at equality, or one too few otherwise. Equals go by the lower id."""
    scores_V = np.log(np.array([0.5, 0.3, 0.1, 0.1], dtype))
    assert filtered(keep_top_p, scores_V, p=p) == kept


def test_top_p_of_one_keeps_everything() -> None:
    """S33: no sum exceeded 1, so that only the first was left."""
    assert filtered(keep_top_p, np.zeros(5, np.float32), p=1.0) == [0, 1, 2, 3, 4]
    assert filtered(keep_top_p, np.array([50.0, 0.0, -50.0]), p=1.0) == [0, 1, 2]


def test_top_k_beyond_the_candidates_keeps_everything() -> None:
    """S35: a k above the vocabulary is no error."""
    scores_V = np.array([0.0, -INF, 2.0, 1.0])
    for k in (3, 4, 9, 10**12):
        assert filtered(keep_top_k, scores_V, k=k) == [0, 2, 3]


@DTYPES
@pytest.mark.parametrize("highest", [0.9, 0.6, 0.3, 0.05])
@pytest.mark.parametrize("min_p", [0.9, 0.5, 0.4, 0.1, 0.01, 1e-6])
def test_a_candidate_exactly_at_the_bound_of_min_p_stays(highest: float, min_p: float, dtype) -> None:
    """The logarithms are rounded: a strict comparison would go either way. A thousandth less is dropped."""
    scores_V = np.log(np.array([highest, highest * min_p, highest * min_p * 0.999])).astype(dtype)
    assert filtered(keep_min_p, scores_V, min_p=min_p) == [0, 1]


def test_temperature_comes_before_min_p() -> None:
    """S36: two paths disagreed. At T = 2 probabilities .6 .3 .1 go as √: ratios 1, 0.7071, 0.4082 ≥ 0.4."""
    scores_V = np.log(np.array([0.6, 0.3, 0.1]))
    assert filtered(keep_min_p, scores_V, min_p=0.4) == [0, 1]
    assert filtered(keep_min_p, temper(scores_V, temperature=2), min_p=0.4) == [0, 1, 2]


@DTYPES
def test_equal_scores_go_by_the_lower_id(dtype) -> None:
    """S38: a random one of tied maxima was taken. k keeps exactly k."""
    scores_V = np.array([1, 3, 3, 0, 3], dtype)
    assert greedy(scores_V).tolist() == [1]
    assert [filtered(keep_top_k, scores_V, k=k) for k in (1, 2, 3, 4)] == [
        [1], [1, 2], [1, 2, 4], [0, 1, 2, 4],
    ]  # fmt: skip
    assert filtered(keep_top_p, scores_V, p=0) == [1]
    assert filtered(keep_min_p, scores_V, min_p=1) == [1, 2, 4]  # as likely as the most likely one


@DTYPES
@pytest.mark.parametrize("scores", [[0, 1e-8], [-1e-9, 0, -1e-9], [5, 5 * (1 + 3e-7), 5]])
def test_filters_of_zero_width_keep_the_highest_score_where_probabilities_round_alike(
    scores: list[float], dtype
) -> None:
    """exp(−1e-8) is 1 in float32, and the lower id was kept instead of the higher score."""
    scores_V = np.array(scores, dtype)
    best = [int(scores_V.argmax())]
    assert filtered(keep_top_k, scores_V, k=1) == best
    assert filtered(keep_top_p, scores_V, p=0) == best
    assert filtered(keep_min_p, scores_V, min_p=1) == best


def nucleus(scores: list[float], p: float) -> tuple[list[int], float]:
    """An independent nucleus: plain Python floats, exact sums. And how far the nearest sum is from p."""
    highest = max(scores)
    exps = [math.exp(score - highest) for score in scores]
    total = math.fsum(exps)
    order = sorted(range(len(scores)), key=lambda v: (-scores[v], v))
    sums = [math.fsum(exps[v] for v in order[: n + 1]) / total for n in range(len(order))]
    size = next((n + 1 for n, reached in enumerate(sums) if reached >= p), len(order))
    return sorted(order[:size]), min(abs(each - p) for each in sums)


@DTYPES
def test_top_p_agrees_with_exact_sums(rng: np.random.Generator, dtype) -> None:
    judged = 0
    for _ in range(300):
        size = int(rng.integers(1, 60))
        scores_V = rng.normal(0, rng.choice([0.1, 1, 5]), size).astype(dtype)
        p = float(rng.uniform(0, 1))
        expected, margin = nucleus(scores_V.tolist(), p)
        if margin > (1e-6 if dtype == np.float32 else 1e-13):
            judged += 1
            assert filtered(keep_top_p, scores_V, p=p) == expected
    assert judged > 280


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_top_p_of_a_whole_vocabulary_is_right_to_a_thousandth_of_its_mass(rng, p: float) -> None:
    """float32 sums of 50,000 candidates: the kept mass reaches p, and without its last candidate does not."""
    for spread in (0.0, 0.5, 3.0):
        scores_V = rng.normal(0, spread, 50_000).astype(np.float32)
        kept = filtered(keep_top_p, scores_V, p=p)
        probability_V = np.exp(scores_V.astype(np.float64) - scores_V.max())
        probability_V /= probability_V.sum()
        mass = probability_V[kept].sum()
        assert p - 1e-3 < mass < p + probability_V[kept].min() + 1e-3
        assert len(kept) == 50_000 or probability_V[kept].min() >= np.delete(probability_V, kept).max()


@DTYPES
def test_top_k_and_min_p_agree_with_sorting(rng: np.random.Generator, dtype) -> None:
    for _ in range(300):
        size = int(rng.integers(1, 40))
        scores = rng.integers(-4, 5, size).astype(dtype).tolist()  # small whole numbers: many ties
        k, min_p = int(rng.integers(1, size + 3)), float(rng.uniform(0, 1))
        order = sorted(range(size), key=lambda v: (-scores[v], v))
        assert filtered(keep_top_k, np.array(scores, dtype), k=k) == sorted(order[:k])
        expected = [v for v in range(size) if math.exp(scores[v] - max(scores)) >= min_p]
        assert filtered(keep_min_p, np.array(scores, dtype), min_p=min_p) == expected


EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, 3e38, -3e38, -INF, 88.8, -104.0]


@pytest.mark.filterwarnings("ignore:overflow")
@DTYPES
def test_filters_leave_at_least_one_candidate_and_the_most_likely_one(
    rng: np.random.Generator, dtype
) -> None:
    keeps = [
        *((keep_top_k, {"k": k}) for k in (1, 2, 7, 10**9)),
        *((keep_top_p, {"p": p}) for p in (0.0, 1e-300, 1e-9, 0.3, 1 - 1e-12, 1.0)),
        *((keep_min_p, {"min_p": m}) for m in (0.0, 1e-300, 1e-9, 0.3, 1 - 1e-12, 1.0)),
    ]
    for _ in range(300):
        size = int(rng.choice([1, 2, 3, 8, 50]))
        scores_V = rng.choice(EXTREMES, size).astype(dtype)
        scores_V[rng.integers(size)] = rng.choice([0.0, 1e30, -1e30, 5.0])  # one at least is possible
        ids_N, scores_N = candidates(scores_V)
        best = int(scores_V.argmax())
        for number in rng.permutation(len(keeps))[:3]:
            keep, how = keeps[number]
            kept_N, kept_scores_N = keep(ids_N, scores_N, **how)
            assert 1 <= len(kept_N) <= len(ids_N)
            assert set(kept_N.tolist()) <= set(ids_N.tolist())
            assert best in kept_N
            assert np.all(np.diff(kept_N) > 0)
            ids_N, scores_N = kept_N, kept_scores_N
        for uniform in (0.0, 0.5, 1 - 2**-53):
            assert draw(ids_N, scores_N, np.array([uniform])).item() in ids_N


def test_all_but_one_banned_leaves_that_one() -> None:
    bias_N = np.full(8, -INF, np.float32)
    bias_N[5] = 0
    scores_V = logit_bias(np.array(SCORES, np.float32), np.arange(8), bias_N)
    ids_N, scores_N = candidates(scores_V)
    assert ids_N.tolist() == [5]
    for keep, how in ((keep_top_k, {"k": 3}), (keep_top_p, {"p": 0.0}), (keep_min_p, {"min_p": 1.0})):
        assert keep(ids_N, scores_N, **how)[0].tolist() == [5]
    assert draw(ids_N, scores_N, np.array([0.999])).tolist() == [5]
    assert greedy(scores_V).tolist() == [5]


def test_a_candidate_without_probability_is_never_drawn() -> None:
    ids_N, scores_N = np.array([3, 5, 9]), np.array([-2000, 0, -2000], np.float32)
    for uniform in (0.0, 2**-53, 0.5, 1 - 2**-53):
        assert draw(ids_N, scores_N, np.array([uniform])).tolist() == [5]


def test_a_draw_takes_the_first_whose_sum_exceeds_the_number() -> None:
    """Four equal candidates: quarters are exact, and a number on the border belongs to the next one."""
    ids_N, scores_N = np.array([2, 3, 5, 8]), np.zeros(4, np.float32)
    for uniform, expected in ((0, 2), (0.2499, 2), (0.25, 3), (0.5, 5), (0.7499, 5), (0.75, 8)):
        assert draw(ids_N, scores_N, np.array([uniform])).tolist() == [expected]


@DTYPES
def test_log_probabilities_agree_with_float64(rng: np.random.Generator, dtype) -> None:
    for spread in (0, 1, 30, 1000):
        scores_V = rng.normal(0, spread, 500).astype(dtype)
        exact = scores_V.astype(np.float64)
        exact -= exact.max()
        exact -= math.log(math.fsum(np.exp(exact)))
        budget_V = log_softmax.op.card.budget(scores_V)
        assert np.all(np.abs(log_softmax(scores_V) - exact) <= budget_V)
    assert log_softmax(np.array([-INF, 0.0])).tolist() == [-INF, 0.0]
    assert log_softmax(np.array([1e30, -1e30, 1e30], np.float32)).tolist() == pytest.approx(
        [-math.log(2), -2e30, -math.log(2)]
    )


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_the_most_likely_tokens_fall_and_equals_go_by_the_lower_id(n: int) -> None:
    ids_N, values_N = top_candidates(np.array(SCORES), n=n)
    order = sorted(range(8), key=lambda v: (-SCORES[v], v))
    assert ids_N.tolist() == order[:n]
    assert values_N.tolist() == [SCORES[v] for v in order[:n]]
