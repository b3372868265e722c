"""Evidence by betting: the wealth of a gambler who cannot gain if the hypothesis holds.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 86 (2024), section 4:
for z_i >= -floor with conditional mean at most 0 and bets 0 <= b_i < 1 / floor that look only at the past,
K_n = prod (1 + b_i z_i) is a non-negative supermartingale, so by Ville's inequality it reaches 1 / alpha with
probability at most alpha, however often one looks. A weighted mean of such gamblers is one again.
"""

import numpy as np
from numpy.typing import NDArray

from gateway.releases.samples import Floats

BOLDEST = 0.75
"""Part of the wealth that is lost at most in one step; section 4.2 there advises 1/2 or 3/4."""
PLANNED_WEIGHT = 0.5
FIXED = tuple(4.0**-step for step in range(5))
"""The fixed gamblers' bets as parts of the boldest: over a wide range of effects one of them is within a
factor of two of the best bet (the grid of Kelly bets of section 5.6 there)."""
_LARGEST_LOG = 700.0
PRIOR_VARIANCE = 0.25
"""Counted as one observation; equation 15 there."""


def wealth(z: Floats, floor: float, planned: Floats | float) -> Floats:
    """The mixed gamblers' wealth after each observation, cut at e**700.

    Half of the first coin goes to the planned bets, the rest in equal parts to the fixed ones.

    Args:
        z: Observations in the users' order, shape [..., n], each at least `-floor`.
        floor: Above 0.
        planned: Bets of the planned gambler, shape [..., n]; each may look at earlier observations only.

    Returns:
        Shape [..., n].
    """
    total = np.zeros_like(z)
    for coin, bet in gamblers(floor, planned):
        total += coin * _grown(bet * z)
    return total


def gamblers(floor: float, planned: Floats | float) -> list[tuple[float, Floats | float]]:
    """Each gambler's part of the first coin, and its bets. Arguments as in `wealth`."""
    boldest = BOLDEST / floor
    fixed = (1 - PLANNED_WEIGHT) / len(FIXED)
    return [(PLANNED_WEIGHT, np.minimum(planned, boldest)), *((fixed, part * boldest) for part in FIXED)]


def shown(z: Floats, floor: float, planned: Floats | float, alpha: float) -> bool:
    """Whether the mean of z is shown to be above 0 by all the observations so far.

    Evidence may be lost again; that an abort is never taken back is the release's own state.

    Args:
        z: Shape [n], in the users' order.
        floor: Bound of the observations from below, as a positive number.
        planned: As in `wealth`.
        alpha: Chance of a false claim, over all looks together.
    """
    return bool(z.size) and bool(wealth(z, floor, planned)[-1] >= 1 / alpha)


def first_shown(z: Floats, floor: float, planned: Floats | float, alpha: float) -> NDArray[np.float64]:
    """How many observations it took to show that the mean of z is above 0; infinity where they did not.

    Args:
        z: Shape [..., n].
        floor: As in `shown`.
        planned: As in `wealth`.
        alpha: As in `shown`.

    Returns:
        Shape [...].
    """
    rich = wealth(z, floor, planned) >= 1 / alpha
    return np.where(rich.any(axis=-1), np.argmax(rich, axis=-1) + 1.0, np.inf)


def _grown(won: Floats) -> Floats:
    return np.exp(np.minimum(np.cumsum(np.log1p(won), axis=-1), _LARGEST_LOG))


def past_mean(values: Floats) -> Floats:
    """Mean of the observations before each one, 0 before the first; shape [..., n]."""
    earlier = np.cumsum(values, axis=-1) - values
    return earlier / np.maximum(np.arange(values.shape[-1], dtype=np.float64), 1)


def past_variance(values: Floats) -> Floats:
    """Running variance of the observations before each one, around the running means, shape [..., n].

    Equation 15 of Waudby-Smith & Ramdas (2024), for values between -1 and 1.
    """
    count = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    means = np.cumsum(values, axis=-1) / (count + 1)
    squares = (values - means) ** 2
    return (PRIOR_VARIANCE + np.cumsum(squares, axis=-1) - squares) / count
