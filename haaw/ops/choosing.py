"""Choosing the next token from its scores: penalties, bias, temperature, filters, and the draw.

The first three map scores of the whole vocabulary to scores. Filters map candidates to fewer candidates: ids
ascending, N shrinking, the most likely one always kept. Every operation is one step of a sampling plan.
"""

import math

from haaw.arrays import Array, namespace, widened
from haaw.ops.card import Card, eps_of, nothing
from haaw.ops.op import op


@op(
    out="id_B",
    card=Card(
        meaning="The most likely token, and the lowest id among equals.",
        formula="id = min { v : scores[v] = max(scores) }",
        source="none: a definition",
        operations=nothing,
    ),
)
def greedy(scores_V: Array) -> Array:
    """The id with the highest score, as an array of one integer."""
    return namespace(scores_V).argmax(scores_V, keepdims=True)


@op(
    out="penalised_V",
    card=Card(
        meaning="Tokens that have been seen become less likely, whatever the sign of their score.",
        formula="penalised[v] = scores[v] / penalty if scores[v] > 0 else scores[v] · penalty, for seen v",
        source="Keskar et al. 2019, arXiv:1909.05858, section 4.1; by sign, once per distinct id",
        operations=lambda n: n.N,
        budget=lambda scores_V, seen_N, *, penalty: (
            eps_of(scores_V) * abs(scores_V) * max(penalty, 1 / penalty)
        ),
    ),
)
def repetition_penalty(scores_V: Array, seen_N: Array, *, penalty: float) -> Array:
    """Divides positive and multiplies negative scores of the distinct ids `seen_N` by `penalty`."""
    xp = namespace(scores_V)
    penalised_V = scores_V.copy()
    seen_scores_N = scores_V[seen_N]
    penalised_V[seen_N] = xp.where(seen_scores_N > 0, seen_scores_N / penalty, seen_scores_N * penalty)
    return penalised_V


@op(
    out="penalised_V",
    card=Card(
        meaning="Tokens of the answer so far lose a fixed amount, and more for each time they occurred.",
        formula="penalised[v] = scores[v] − presence − frequency · count[v], for v with count > 0",
        source="OpenAI API reference, presence_penalty and frequency_penalty",
        operations=lambda n: 2 * n.N,
        budget=lambda scores_V, ids_N, counts_N, *, presence, frequency: (
            2 * eps_of(scores_V) * (abs(scores_V) + abs(presence) + abs(frequency) * counts_N.max())
        ),
    ),
)
def count_penalty(
    scores_V: Array, ids_N: Array, counts_N: Array, *, presence: float, frequency: float
) -> Array:
    """Subtracts `presence` once and `frequency` per occurrence from the distinct ids `ids_N`."""
    penalised_V = scores_V.copy()
    penalised_V[ids_N] -= (presence + frequency * counts_N).astype(scores_V.dtype)
    return penalised_V


def _logit_bias_budget(scores_V: Array, ids_N: Array, bias_N: Array) -> Array:
    xp = namespace(scores_V)
    budget_V = xp.zeros_like(scores_V)
    budget_V[ids_N] = eps_of(scores_V) * (
        abs(scores_V[ids_N]) + xp.where(xp.isfinite(bias_N), abs(bias_N), 0)
    )
    return budget_V


@op(
    out="biased_V",
    card=Card(
        meaning="Chosen tokens are made more or less likely by hand; minus infinity bans one.",
        formula="biased[v] = scores[v] + bias[v]",
        source="OpenAI API reference, logit_bias",
        operations=lambda n: n.N,
        budget=_logit_bias_budget,
    ),
)
def logit_bias(scores_V: Array, ids_N: Array, bias_N: Array) -> Array:
    """Adds `bias_N` to the scores of the distinct ids `ids_N`."""
    biased_V = scores_V.copy()
    biased_V[ids_N] += bias_N
    return biased_V


@op(
    out="tempered_V",
    card=Card(
        meaning="A low temperature sharpens the distribution, a high one flattens it.",
        formula="tempered = scores / temperature",
        source="Ackley, Hinton and Sejnowski 1985, doi:10.1207/s15516709cog0901_7",
        operations=lambda n: n.V,
        budget=lambda scores_V, *, temperature: eps_of(scores_V) * abs(scores_V / temperature),
    ),
)
def temper(scores_V: Array, *, temperature: float) -> Array:
    """Scores divided by a temperature above zero."""
    return scores_V / temperature


@op(
    out=("ids_N", "scores_N"),
    card=Card(
        meaning="Every token of the vocabulary that is not banned is a candidate.",
        formula="ids = { v : scores[v] > −∞ }, ascending",
        source="none: a definition",
        operations=nothing,
    ),
)
def candidates(scores_V: Array) -> tuple[Array, Array]:
    """The ids whose score is above minus infinity, and their scores."""
    (ids_N,) = (scores_V > -math.inf).nonzero()
    return ids_N, scores_V[ids_N]


@op(
    out=("ids_N", "scores_N"),
    card=Card(
        meaning="Only the k most likely candidates stay; among equals the lower ids.",
        formula="the first k of the candidates sorted by (score descending, id ascending)",
        source="Fan, Lewis and Dauphin 2018, arXiv:1805.04833, section 5.4",
        operations=nothing,
    ),
)
def keep_top_k(ids_N: Array, scores_N: Array, *, k: int) -> tuple[Array, Array]:
    """Keeps exactly min(k, N) candidates."""
    if k >= len(ids_N):
        return ids_N.copy(), scores_N.copy()
    xp = namespace(scores_N)
    lowest_kept = xp.partition(scores_N, len(ids_N) - k)[len(ids_N) - k]
    above_N, equal_N = scores_N > lowest_kept, scores_N == lowest_kept
    kept_N = above_N | (equal_N & (equal_N.cumsum() <= k - above_N.sum()))
    return ids_N[kept_N], scores_N[kept_N]


@op(
    out=("ids_N", "scores_N"),
    card=Card(
        meaning="The smallest set of most likely candidates whose probabilities reach p (the nucleus).",
        formula="the shortest run of candidates by (probability descending, id ascending) with sum ≥ p",
        source="Holtzman et al. 2019, arXiv:1904.09751, section 3.1",
        operations=lambda n: 6 * n.N,
    ),
)
def keep_top_p(ids_N: Array, scores_N: Array, *, p: float) -> tuple[Array, Array]:
    """Keeps the nucleus; p = 0 keeps the most likely candidate, p = 1 all of them.

    A sum within 4 units in the last place of p counts as having reached it.
    """
    if p >= 1:
        return ids_N.copy(), scores_N.copy()
    xp = namespace(scores_N)
    probability_N = _probabilities(scores_N)
    # Candidates below (1 - p)/N sum to less than 1 - p, so the nucleus lies within the others.
    (likely_N,) = (probability_N >= (1 - p) / len(ids_N) / 2).nonzero()  # halved, to be safe from rounding
    falling_N = likely_N[xp.argsort(-scores_N[likely_N], kind="stable")]  # scores differ where exp rounds
    sums_N = probability_N[falling_N].cumsum()
    reached_N = sums_N >= p - 4 * eps_of(probability_N)
    count_before_N = reached_N.cumsum() - reached_N  # how many earlier runs already reach p
    kept_N = xp.sort(falling_N[count_before_N == 0])
    return ids_N[kept_N], scores_N[kept_N]


@op(
    out=("ids_N", "scores_N"),
    card=Card(
        meaning="Candidates less likely than a fraction of the most likely one are dropped.",
        formula="keep v with probability[v] ≥ min_p · max(probability), as scores[v] − max ≥ log min_p",
        source="Nguyen et al. 2024, arXiv:2407.01082, section 3",
        operations=lambda n: n.N,
    ),
)
def keep_min_p(ids_N: Array, scores_N: Array, *, min_p: float) -> tuple[Array, Array]:
    """Keeps candidates of at least `min_p` (0 to 1) times the greatest probability, which itself stays.

    A ratio within 4 units in the last place of a `min_p` below 1 counts as reaching it.
    """
    below_N = scores_N - scores_N.max()
    bound = math.log(min_p) if min_p > 0 else -math.inf
    slack = 4 * eps_of(below_N) * max(1.0, -bound) if 0 < min_p < 1 else 0.0
    kept_N = below_N >= bound - slack
    return ids_N[kept_N], scores_N[kept_N]


@op(
    out="id_B",
    card=Card(
        meaning="A random number picks one of the candidates, each as often as its probability says.",
        formula="id = first candidate whose cumulative probability exceeds u · total",
        source="inverse transform sampling: Devroye 1986, section III.2",
        operations=lambda n: 4 * n.N,
    ),
)
def draw(ids_N: Array, scores_N: Array, uniform_B: Array) -> Array:
    """One id, by a random number in [0, 1); the cumulative sum is float64."""
    xp = namespace(scores_N)
    cumulative_N = cumulative_mass(scores_N)
    exceeds_N = cumulative_N > uniform_B * cumulative_N[-1:]
    return ids_N[xp.argmax(exceeds_N, keepdims=True)]


def cumulative_mass(scores_N: Array) -> Array:
    """The sum of the unnormalised probabilities up to each candidate, in float64."""
    return _exponentials(scores_N).astype(namespace(scores_N).float64).cumsum()


@op(
    out="log_probabilities_V",
    card=Card(
        meaning="The logarithm of each token's probability.",
        formula="log p[v] = scores[v] − max − log Σ exp(scores − max)",
        source="Blanchard, Higham and Higham 2021, doi:10.1093/imanum/draa038",
        operations=lambda n: 4 * n.V,
        budget=lambda scores_V: (
            eps_of(scores_V) * (len(scores_V).bit_length() + 8 + 2 * abs(scores_V - scores_V.max()))
        ),
    ),
)
def log_softmax(scores_V: Array) -> Array:
    """Log-probabilities over the vocabulary, in the dtype of the scores."""
    xp = namespace(scores_V)
    shifted_V = scores_V - scores_V.max()
    return shifted_V - xp.log(xp.exp(shifted_V).sum(keepdims=True))


@op(
    out=("ids_N", "log_probabilities_N"),
    card=Card(
        meaning="The most likely tokens, the likeliest first; among equals the lower ids first.",
        formula="the first n of the vocabulary sorted by (log p descending, id ascending)",
        source="none: a definition",
        operations=nothing,
    ),
)
def top_candidates(log_probabilities_V: Array, *, n: int) -> tuple[Array, Array]:
    """The n most likely ids and their log-probabilities, falling."""
    xp = namespace(log_probabilities_V)
    size = len(log_probabilities_V)
    lowest_kept = xp.partition(log_probabilities_V, size - n)[size - n]
    (ids_N,) = (log_probabilities_V >= lowest_kept).nonzero()
    falling_N = xp.argsort(-log_probabilities_V[ids_N], kind="stable")[:n]
    ids_N = ids_N[falling_N]
    return ids_N, log_probabilities_V[ids_N]


def _exponentials(scores_N: Array) -> Array:
    wide_N = widened(scores_N)
    exponentials_N = wide_N - wide_N.max()
    return namespace(scores_N).exp(exponentials_N, out=exponentials_N)


def _probabilities(scores_N: Array) -> Array:
    exponentials_N = _exponentials(scores_N)
    return exponentials_N / exponentials_N.sum()
