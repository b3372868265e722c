"""Confidence sequences: intervals that may be looked at any time, as what a gambler's wealth cannot rule out.

Users are the units: a user's measurements are brought to their mean first, so that answers of one user never
count as independent. Arms are compared by blocks of users in the order in which they came: each block holds
one user of the smaller arm and as many of the larger as there are for each by plan. Blocks of one time are
compared with each other, so a level that drifts cancels.

Where every user's mean stays as it is, the ends hold exactly, at every look and for any number of users.
Where users come back their means still move; docs/releases.md has what was measured then.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gateway.releases.betting import past_mean, past_variance, shown
from gateway.releases.samples import Floats, Sample

LARGEST_RATIO = 100.0
_STEPS = 22
_NEAR = 1e-6


@dataclass(frozen=True, slots=True)
class Ends:
    """A confidence sequence at one look; None where nothing bounds it yet."""

    lower: float | None
    upper: float | None


Contrast = Literal["difference", "ratio_higher", "ratio_lower"]
"""How arms are compared, as a worsening w: x - y; x / y - 1; 1 - x / y."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Observations whose mean has the sign of the true worsening's distance from a given one.

    Attributes:
        z: Shape [..., blocks].
        floor: z is at least `-floor`.
        ceiling: z is at most this.
    """

    z: Floats
    floor: float
    ceiling: float


def excess(contrast: Contrast, candidate: Floats, baseline: Floats, worsening: float) -> Excess:
    """What speaks for a worsening above the given one.

    Args:
        contrast: How the arms are compared.
        candidate: In [0, 1], shape [..., blocks].
        baseline: Likewise.
        worsening: In (-1, 1) for a difference, above -1 for `ratio_higher`, below 1 for `ratio_lower`.
    """
    if contrast == "difference":
        return Excess(candidate - baseline - worsening, 1 + worsening, 1 - worsening)
    if contrast == "ratio_higher":
        return Excess(candidate - (1 + worsening) * baseline, 1 + worsening, 1.0)
    return Excess((1 - worsening) * baseline - candidate, 1.0, 1 - worsening)


def planned_bets(contrast: Contrast, candidate: Floats, baseline: Floats, gap: float) -> Floats:
    """Kelly's bets of a gambler who expects the true worsening to lie `gap` away, shape [..., blocks].

    Mean over variance is the bet of fastest growth (Waudby-Smith & Ramdas 2024, section 5.3); the variance
    and a ratio's level are those of the past.
    """
    scale = 1.0 if contrast == "difference" else past_mean(baseline)
    return gap * scale / past_variance(candidate - baseline)


def compared(
    contrast: Contrast,
    candidate: Floats,
    baseline: Floats,
    *,
    lower_gap: float,
    upper_gap: float,
    lower_alpha: float,
    upper_alpha: float,
) -> Ends:
    """The worsening's confidence sequence.

    Args:
        contrast: How the arms are compared.
        candidate: Block means in [0, 1], shape [blocks].
        baseline: Likewise.
        lower_gap: How far above the harm bound a harmful candidate is expected.
        upper_gap: How far below the margin a harmless one is.
        lower_alpha: Chance that the lower end is ever above the truth.
        upper_alpha: Chance that the upper end is ever below it.
    """
    least = 1 - LARGEST_RATIO if contrast == "ratio_lower" else -1 + _NEAR
    most = LARGEST_RATIO - 1 if contrast == "ratio_higher" else 1 - _NEAR
    kelly = planned_bets(contrast, candidate, baseline, 1.0)

    def is_above(worsening: float) -> bool:
        told = excess(contrast, candidate, baseline, worsening)
        return shown(told.z, told.floor, lower_gap * kelly, lower_alpha)

    def is_below(worsening: float) -> bool:
        told = excess(contrast, candidate, baseline, worsening)
        return shown(-told.z, told.ceiling, upper_gap * kelly, upper_alpha)

    lower, upper = _last(is_above, least, most), _last(is_below, most, least)
    if contrast == "difference":
        return Ends(-1.0 if lower is None else lower, 1.0 if upper is None else upper)
    return Ends(lower, upper)


def share_beyond(share: Floats, limit: float, alpha: float) -> bool:
    """Whether the mean of shares, shape [users], is shown to be above a limit in (0, 1)."""
    planned = min(limit, 1 - limit) / past_variance(share)
    return shown(share - limit, limit, planned, alpha)


def quantile(
    sample: Sample, level: float, users_planned: int, lower_alpha: float, upper_alpha: float
) -> Ends:
    """Confidence sequence of a quantile of the answers, every user weighing the same.

    At the quantile of `level` the mean over users of their share of answers up to it is at least `level`, and
    below it at most `level`. So a value is ruled out where that mean is shown to be another: the inversion of
    Howard & Ramdas, "Sequential estimation of quantiles with applications to A/B testing and best-arm
    identification", Bernoulli 28 (2022), section 3, with the betting bound in place of theirs and users in
    place of observations.

    Args:
        sample: Measurements.
        level: In (0, 1).
        users_planned: About how many users the stage will have; any number is valid, a near one is sharper.
        lower_alpha: Chance that the lower end is ever above the quantile.
        upper_alpha: Chance that the upper end is ever below it.
    """
    values = np.unique(sample.value)

    def too_low(place: int) -> bool:
        bet = quantile_bet(level, users_planned, lower_alpha)
        return shown(level - _shares(sample, values, place), 1 - level, bet, lower_alpha)

    def high_enough(place: int) -> bool:
        bet = quantile_bet(level, users_planned, upper_alpha)
        return shown(_shares(sample, values, place) - level, level, bet, upper_alpha)

    places = range(-1, len(values))
    lower = bisect_left(places, True, key=lambda place: not too_low(place)) - 1
    upper = bisect_left(places, True, key=high_enough) - 1
    return Ends(
        float(values[min(lower, len(values) - 1)]) if lower >= 0 and len(values) else None,
        float(values[upper]) if 0 <= upper < len(values) else None,
    )


def quantile_bet(level: float, users: int, alpha: float) -> float:
    """The bet that makes a quantile's interval about narrowest after so many users.

    The logarithm of the wealth, about bet * sum - bet**2 / 2 * users * level * (1 - level), is to be
    log(1 / alpha) for the smallest sum.
    """
    return math.sqrt(-2 * math.log(alpha) / (level * (1 - level) * users))


def user_quantile(sample: Sample, level: float) -> float | None:
    """The smallest value up to which the users' mean share of answers reaches `level`; None: no answers."""
    if not sample.value.size:
        return None
    order = np.argsort(sample.value, kind="stable")
    weights = 1 / np.bincount(sample.user)[sample.user[order]] / len(sample.units)
    place = int(np.searchsorted(np.cumsum(weights), level - 1e-12))
    return float(sample.value[order][min(place, len(order) - 1)])


def _shares(sample: Sample, values: Floats, place: int) -> Floats:
    """Each user's share of measurements up to a value; of place -1, up to less than all of them."""
    return sample.user_shares_up_to(-math.inf if place < 0 else float(values[place]))


def _last(holds: Callable[[float], bool], start: float, end: float) -> float | None:
    """The place furthest from `start` towards `end` up to which a monotone condition holds; None: nowhere."""
    if not holds(start):
        return None
    if holds(end):
        return end
    for _ in range(_STEPS):
        middle = (start + end) / 2
        start, end = (middle, end) if holds(middle) else (start, middle)
    return start
