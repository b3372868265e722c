"""Quality by length: the win rate within buckets of the length difference, each with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from evaluator.statistics.interval import LEVEL, REPLICATES
from evaluator.statistics.length_controlled import LengthedVerdict
from evaluator.statistics.winrate import WinRate, win_rate

RATIO_EDGES = (0.5, 0.8, 1.25, 2.0)
"""Of the candidate's length over the other's."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Verdicts whose length ratio lies in [low, high); an open end is null."""

    low: float | None
    high: float | None
    result: WinRate | None
    """Null where the bucket is empty."""


def by_length_ratio(
    verdicts: Sequence[LengthedVerdict],
    edges: Sequence[float] = RATIO_EDGES,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
) -> tuple[Bucket, ...]:
    """The win rate in every bucket of candidate length over other length.

    Two empty answers have the ratio 1, an empty one on the other side alone an infinite one.

    Raises:
        ValueError: The edges do not rise, or a length is negative.
    """
    if any(high <= low for low, high in pairwise(edges)) or not edges:
        raise ValueError("the edges of length buckets rise, and there is at least one")
    if any(one.candidate_length < 0 or one.other_length < 0 for one in verdicts):
        raise ValueError("a length is negative")
    ratios = [_ratio(one) for one in verdicts]
    buckets: list[Bucket] = []
    for low, high in pairwise([None, *edges, None]):
        inside = [
            one
            for one, ratio in zip(verdicts, ratios, strict=True)
            if (low is None or ratio >= low) and (high is None or ratio < high)
        ]
        result = win_rate(inside, seed=seed, replicates=replicates, level=level) if inside else None
        buckets.append(Bucket(low, high, result))
    return tuple(buckets)


def _ratio(verdict: LengthedVerdict) -> float:
    if verdict.other_length == 0:
        return 1.0 if verdict.candidate_length == 0 else float("inf")
    return verdict.candidate_length / verdict.other_length
