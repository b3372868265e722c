"""Win rate with ties as half, its interval clustered by prompt.

Verdicts on one prompt are not independent, so the bootstrap draws prompts. Where every prompt says the same,
a bootstrap sees no variance at all and its interval would claim certainty; Wilson's interval with the prompts
as observations is given then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evaluator.statistics.interval import (
    LEVEL,
    REPLICATES,
    Floats,
    Interval,
    cluster_places,
    draw_clusters,
    percentile_ends,
)
from evaluator.statistics.wilson import wilson

Result = Literal["win", "tie", "loss"]
SCORES: dict[Result, float] = {"win": 1.0, "tie": 0.5, "loss": 0.0}


class NothingCompared(ValueError):
    """No pair of answers has a verdict: there is no win rate, not one of zero."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scored comparison of a candidate's answer with the other's."""

    prompt: str
    """What clusters: the prompt's hash or id."""
    result: Result
    """From the candidate's side."""

    @property
    def score(self) -> float:
        """1 for a win, 0.5 for a tie, 0 for a loss."""
        return SCORES[self.result]


@dataclass(frozen=True, slots=True)
class WinRate:
    """A candidate's win rate over another policy."""

    rate: Interval
    wins: int
    ties: int
    losses: int
    prompts: int


def win_rate(
    verdicts: Sequence[Verdict], *, seed: int = 0, replicates: int = REPLICATES, level: float = LEVEL
) -> WinRate:
    """The win rate, a tie as half a win.

    Raises:
        NothingCompared: There is no verdict.
    """
    if not verdicts:
        raise NothingCompared(
            "no pair of answers was compared: check that both policies answered the same prompts"
        )
    counts = {result: sum(one.result == result for one in verdicts) for result in SCORES}
    ordered = sorted(verdicts, key=lambda one: (one.prompt, one.result))
    scores = np.array([one.score for one in ordered])
    prompts = len({one.prompt for one in ordered})
    interval = clustered_mean(scores, [one.prompt for one in ordered], seed, replicates, level)
    return WinRate(interval, counts["win"], counts["tie"], counts["loss"], prompts)


def clustered_mean(
    scores: Floats,
    clusters: Sequence[str],
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
) -> Interval:
    """The mean of scores within 0 and 1, with the percentile interval of a bootstrap over clusters.

    Args:
        scores: (observations,).
        clusters: The cluster of each observation.
        seed: Of the bootstrap.
        replicates: Of the bootstrap.
        level: Of confidence.
    """
    places, count = cluster_places(clusters)
    sums = np.bincount(places, scores, count)
    sizes = np.bincount(places, minlength=count).astype(np.float64)
    mean = float(sums.sum() / sizes.sum())
    means = sums / sizes
    if count == 1:
        return Interval(mean, None, None)
    if np.ptp(means) == 0:
        return wilson(mean * count, count, level)
    drawn = draw_clusters(count, replicates, seed)
    return Interval(mean, *percentile_ends((drawn @ sums) / (drawn @ sizes), level))


def paired_difference(
    first: Floats,
    second: Floats,
    clusters: Sequence[str],
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
) -> Interval:
    """Mean of `first - second` on the same prompts, scores within 0 and 1, clustered as `clustered_mean`.

    Where no prompt differs the bootstrap sees no variance. The mean is then at most the share of prompts that
    would differ, of which none was seen: Wilson's upper end for none among the prompts, on either side.

    Raises:
        NothingCompared: There is no pair.
        ValueError: The lengths differ.
    """
    if not len(first) == len(second) == len(clusters):
        raise ValueError("a paired difference needs as many scores on either side as clusters")
    if len(first) == 0:
        raise NothingCompared("no prompt was scored for both policies")
    if not (first - second).any():
        most = wilson(0, len(set(clusters)), level).high
        return Interval(0.0, None if most is None else -most, most)
    share = clustered_mean((first - second + 1) / 2, clusters, seed, replicates, level)
    return Interval(
        *(None if end is None else 2 * end - 1 for end in (share.estimate, share.low, share.high))
    )
