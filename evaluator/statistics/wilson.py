"""Wilson's interval for a proportion (Wilson 1927): sensible at none and at all, unlike Wald's."""

import math
from statistics import NormalDist

from evaluator.statistics.interval import LEVEL, UNDEFINED, Interval


def wilson(successes: float, total: float, level: float = LEVEL) -> Interval:
    """The share of successes with Wilson's score interval, without continuity correction.

    Args:
        successes: From 0 to `total`; a tie may count as half.
        total: Independent observations; with none, everything is null.
        level: Of confidence, strictly between 0 and 1.

    Raises:
        ValueError: `successes` is not within 0 and `total`, or `level` not within 0 and 1.
    """
    if not 0 <= successes <= total or not math.isfinite(total):
        raise ValueError(f"{successes} of {total} is no share")
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    if total == 0:
        return UNDEFINED
    share = successes / total
    square = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = math.sqrt(square * (share * (1 - share) / total + square / (4 * total**2))) / (1 + square / total)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == total else centre + half
    return Interval(share, low, high)
