"""Length-controlled win rate: what the win rate would be if both answers were equally long.

The model of AlpacaEval 2 (Dubois, Galambosi, Liang and Hashimoto 2024, "Length-Controlled AlpacaEval",
section 3):

    logit P(candidate wins on x) = theta + phi * tanh(d(x) / sd(d)) + psi * gamma(x)

with d(x) the candidate's length minus the other's, gamma(x) the prompt's difficulty where it is known from
other policies. The length-controlled win rate is the mean over prompts of the probability with the length
term at zero. As there, ties enter as half, and a weak quadratic penalty lies on the slopes, not on the
intercept: with it the fit exists wherever both wins and losses do, and with equal lengths the result is the
    raw win rate.

The interval comes from refits on a bootstrap over prompts, so it holds the uncertainty of the fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.statistics.interval import (
    LEVEL,
    REPLICATES,
    UNDEFINED,
    Floats,
    Interval,
    cluster_places,
    draw_clusters,
    percentile_ends,
)
from evaluator.statistics.winrate import NothingCompared, Verdict, clustered_mean

PENALTY = 0.01
MAX_STEPS = 100
CELLS_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True)
class LengthedVerdict(Verdict):
    """A verdict with the lengths of both answers, in one unit."""

    candidate_length: float
    other_length: float
    difficulty: float | None = None
    """Of the prompt, on any scale centred at zero; known for all verdicts of a fit or for none."""


@dataclass(frozen=True, slots=True)
class LengthControlled:
    """The controlled win rate and the fit behind it."""

    rate: Interval
    slope: float | None
    """phi: the gain in log odds from a longer answer, at saturation. Null where lengths cannot be told
    apart."""
    reason: str | None = None
    """Why the rate is null."""


def length_controlled(
    verdicts: Sequence[LengthedVerdict],
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    penalty: float = PENALTY,
) -> LengthControlled:
    """Fits the model and takes length out of the win rate.

    Args:
        verdicts: In any order.
        seed: Of the bootstrap.
        replicates: Of the bootstrap.
        level: Of confidence.
        penalty: Half of it times the squared slope is added to the negative log-likelihood; positive.

    Raises:
        NothingCompared: There is no verdict.
        ValueError: Difficulty is known for some verdicts only, or the penalty is not positive.
    """
    if not verdicts:
        raise NothingCompared("no pair of answers was compared")
    if penalty <= 0:
        raise ValueError("the penalty on the slopes is positive: without it a fit may not exist")
    ordered = sorted(
        verdicts, key=lambda one: (one.prompt, one.result, one.candidate_length, one.other_length)
    )
    scores = np.array([one.score for one in ordered])
    difference = np.array([one.candidate_length - one.other_length for one in ordered], dtype=np.float64)
    spread = float(difference.std())
    if not difference.any():
        return LengthControlled(
            clustered_mean(scores, [v.prompt for v in ordered], seed, replicates, level), 0.0
        )
    if spread == 0:
        return LengthControlled(
            UNDEFINED, None, "every length difference is the same: length cannot be told from quality"
        )
    columns = _design(ordered, np.tanh(difference / spread))
    places, count = cluster_places([one.prompt for one in ordered])
    whole = fit(columns, scores, np.ones((1, len(scores))), penalty)
    estimate = float(_controlled(columns, scores, np.ones((1, len(scores))), whole)[0])
    slope = float(whole[0, 1]) if 0 < scores.mean() < 1 else None
    if count == 1:
        return LengthControlled(Interval(estimate, None, None), slope)
    if slope is None:
        return LengthControlled(
            clustered_mean(scores, [v.prompt for v in ordered], seed, replicates, level), None
        )
    drawn = draw_clusters(count, replicates, seed)
    batch = max(1, CELLS_AT_ONCE // len(scores))
    values = np.concatenate(
        [
            _refit(columns, scores, drawn[start : start + batch][:, places], penalty)
            for start in range(0, replicates, batch)
        ]
    )
    return LengthControlled(Interval(estimate, *percentile_ends(values, level)), slope)


def _design(verdicts: Sequence[LengthedVerdict], length: Floats) -> Floats:
    known = [one.difficulty for one in verdicts if one.difficulty is not None]
    if known and len(known) < len(verdicts):
        raise ValueError("the difficulty of some prompts is known and of others is not: give all or none")
    columns = [np.ones(len(verdicts)), length]
    if known:
        columns.append(np.array(known))
    return np.stack(columns, axis=1)


def _refit(columns: Floats, scores: Floats, weights: Floats, penalty: float) -> Floats:
    return _controlled(columns, scores, weights, fit(columns, scores, weights, penalty))


def _controlled(columns: Floats, scores: Floats, weights: Floats, parameters: Floats) -> Floats:
    without_length = columns.copy()
    without_length[:, 1] = 0
    chance: Floats = 1 / (1 + np.exp(-(parameters @ without_length.T)))
    total = weights.sum(axis=1)
    mean: Floats = (weights * chance).sum(axis=1) / total
    raw: Floats = weights @ scores / total
    return np.where((raw <= 0) | (raw >= 1), raw, mean)


def fit(columns: Floats, scores: Floats, weights: Floats, penalty: float) -> Floats:
    """Penalised logistic regression for many weightings at once, by Newton's method.

    The penalised log-likelihood is concave; steps are at most 2 in any parameter. A weighting under which all
    scores are 0, or all are 1, has no finite intercept; its parameters are left at zero.

    Args:
        columns: (observations, parameters), the first the intercept.
        scores: (observations,), within 0 and 1.
        weights: (weightings, observations).
        penalty: On every parameter but the first.

    Returns:
        (weightings, parameters).

    Raises:
        ArithmeticError: It did not converge.
    """
    size = columns.shape[1]
    ridge = np.full(size, penalty)
    ridge[0] = 0
    total = weights.sum(axis=1)
    raw: Floats = weights @ scores / total
    open_ones = (raw > 0) & (raw < 1)
    parameters: Floats = np.zeros((len(weights), size))
    active = weights[open_ones]
    found: Floats = np.zeros((len(active), size))
    outer: Floats = (columns[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)
    for _ in range(MAX_STEPS):
        chance: Floats = 1 / (1 + np.exp(-(found @ columns.T)))
        gradient: Floats = (active * (scores - chance)) @ columns - ridge * found
        if bool((np.abs(gradient).max(axis=1, initial=0.0) <= 1e-9 * total[open_ones]).all()):
            parameters[open_ones] = found
            return parameters
        spread: Floats = (active * chance * (1 - chance)) @ outer
        curvature: Floats = spread.reshape(-1, size, size) + np.diag(ridge)
        step: Floats = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0].astype(np.float64)
        found = found + step / (np.abs(step).max(axis=1, keepdims=True) / 2).clip(min=1)
    raise ArithmeticError("the logistic regression did not converge")
