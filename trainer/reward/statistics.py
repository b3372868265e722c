"""Intervals for what is measured of a reward model on pairs, several of which may share a prompt.

Pairs are drawn by prompt, so intervals treat the prompt as the unit: a share's by Wilson 1927 ("Probable
inference") on the sample size that the clustering leaves (Rao and Scott 1992, "A simple method for the
analysis of clustered binary data"), everything else by resampling whole prompts (Efron 1979).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054
"""Two-sided 95%."""
RESAMPLES = 1000
_AT_ONCE = 50

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float


def share(right: Floats, groups: NDArray[np.int64]) -> Measured:
    """The mean of outcomes in [0, 1], with Wilson's interval on the effective sample size.

    Args:
        right: [n], 1 for right, 0 for wrong, 0.5 for a tie; at least one.
        groups: [n], 0 to m - 1: the prompt of each.
    """
    value = float(right.mean())
    n = len(right) / max(1.0, _design_effect(right, groups))
    return Measured(value, *wilson(value, n))


def wilson(value: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share of `n` independent trials."""
    centre = (value + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * sqrt(value * (1 - value) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def change(before: Measured, now: Measured) -> Measured:
    """The difference of two independent shares, by their Wilson intervals.

    Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10.
    """
    value = now.value - before.value
    low = sqrt((now.value - now.low) ** 2 + (before.high - before.value) ** 2)
    high = sqrt((now.high - now.value) ** 2 + (before.value - before.low) ** 2)
    return Measured(value, value - low, value + high)


def resampled(
    statistic: Callable[[Floats], Floats], groups: NDArray[np.int64], seed: int = 0, times: int = RESAMPLES
) -> Floats:
    """A statistic of resampled prompts.

    Args:
        statistic: Takes weights [k, n], how often each pair was drawn, and gives [k].
        groups: [n], the prompt of each pair.
        seed: Decides the draws.
        times: Resamples, a multiple of 50.
    """
    prompts = int(groups.max()) + 1
    random = np.random.default_rng(seed)
    alike = np.full(prompts, 1 / prompts)
    return np.concatenate(
        [
            statistic(random.multinomial(prompts, alike, size=_AT_ONCE)[:, groups].astype(np.float64))
            for _ in range(times // _AT_ONCE)
        ]
    )


def percentile(value: float, draws: Floats) -> Measured:
    """The interval between the 2.5% and 97.5% quantiles of the draws that are numbers."""
    low, high = np.nanquantile(draws, (0.025, 0.975))
    return Measured(value, float(low), float(high))


def reversed_percentile(value: float, draws: Floats, floor: float) -> Measured:
    """The quantiles mirrored at the value, which takes out a bias that resampling adds once more.

    Davison and Hinkley 1997, "Bootstrap methods and their application", section 5.2.
    """
    low, high = np.quantile(draws, (0.025, 0.975))
    return Measured(value, max(floor, 2 * value - float(high)), max(floor, 2 * value - float(low)))


def _design_effect(values: Floats, groups: NDArray[np.int64]) -> float:
    """Variance of the mean under clustering, over that of as many independent trials; 1 where undefined."""
    mean = values.mean()
    prompts = int(groups.max()) + 1
    independent = mean * (1 - mean) / len(values)
    if prompts < 2 or independent == 0:
        return 1.0
    residuals = np.bincount(groups, weights=values - mean, minlength=prompts)
    clustered = prompts / (prompts - 1) * float(np.square(residuals).sum()) / len(values) ** 2
    return clustered / float(independent)
