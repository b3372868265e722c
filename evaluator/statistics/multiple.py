"""Many candidates on many suites: chance alone makes some look good, so p-values are adjusted together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.statistics.interval import Floats, cluster_places

FLIPS = 9_999


@dataclass(frozen=True, slots=True)
class FlipTest:
    """One-sided tests that each candidate is better than no difference."""

    raw: tuple[float, ...]
    adjusted: tuple[float, ...]
    """Family-wise, over all candidates at once."""


def flip_test(scores: Floats, clusters: Sequence[str], *, seed: int = 0, flips: int = FLIPS) -> FlipTest:
    """Sign-flip tests with Westfall and Young's step-down maxT adjustment (1993, algorithm 4.1).

    Under the null a prompt's score is as likely its negative; one flip turns all candidates of a prompt
    together, so what their scores share costs no power. The observed arrangement counts as one of the flips:
    no p-value is 0.

    Args:
        scores: (observations, candidates), centred so that no difference is 0, such as a verdict's score
            minus 0.5.
        clusters: Of each observation; one cluster flips as a whole.
        seed: Of the flips.
        flips: How many are drawn.

    Raises:
        ValueError: There is no observation or no candidate.
    """
    if scores.ndim != 2 or 0 in scores.shape or len(clusters) != len(scores):
        raise ValueError(
            "a flip test needs at least one prompt and one candidate, and a cluster for each row"
        )
    places, count = cluster_places(clusters)
    sums = np.zeros((count, scores.shape[1]))
    np.add.at(sums, places, scores)
    scale = np.sqrt((sums**2).sum(axis=0))
    scaled = sums / np.where(scale == 0, 1, scale)
    observed: Floats = scaled.sum(axis=0)
    signs = np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), size=(flips, count))
    drawn: Floats = signs @ scaled
    reached = observed - 1e-12
    raw: Floats = (1 + (drawn >= reached).sum(axis=0)) / (flips + 1)
    order = np.argsort(-observed, kind="stable")
    adjusted = np.empty_like(raw)
    highest = 0.0
    for place, candidate in enumerate(order):
        rivals = drawn[:, order[place:]].max(axis=1)
        highest = max(highest, float((1 + (rivals >= reached[candidate]).sum()) / (flips + 1)))
        adjusted[candidate] = highest
    return FlipTest(tuple(raw.tolist()), tuple(adjusted.tolist()))
