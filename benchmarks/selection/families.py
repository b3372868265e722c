"""Synthetic rounds that over-optimise: three families of true curves, none of them the one that reports fit.

In each, the true win rate over production starts at one half, rises over d = sqrt(KL), turns and falls; where
the turn lies, how high it is and how deep the fall goes are drawn. The proxy only rises. Verdicts of all
checkpoints fall on the same prompts: a latent gain of each prompt is shared between them, and a band around
zero is a tie.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CHECKPOINTS = 8
PROMPTS = 200
SHARED = 0.5
"""Share of a verdict's latent variance that all checkpoints have in common on a prompt."""
TIE_BAND = 0.3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One synthetic round.

    Attributes:
        kl: (checkpoints,).
        truth: (checkpoints,), the true win rate over production.
        proxy: (checkpoints,).
        scores: (prompts, checkpoints): 1, 0.5 or 0.
    """

    kl: Floats
    truth: Floats
    proxy: Floats
    scores: Floats


def gamma(distance: Floats, turn: float, height: float, generator: np.random.Generator) -> Floats:
    """A smooth hump x^k exp(k (1 - x)), less a slow linear loss."""
    sharpness = generator.uniform(1.0, 3.0)
    relative = distance / turn
    hump: Floats = height * relative**sharpness * np.exp(sharpness * (1 - relative))
    return 0.5 + hump - generator.uniform(0, 0.04) * np.maximum(0, relative - 1)


def tent(distance: Floats, turn: float, height: float, generator: np.random.Generator) -> Floats:
    """A straight rise, a level stretch, a straight fall below the start."""
    level = generator.uniform(0.0, 0.3) * turn
    fall = generator.uniform(0.4, 1.5) * height / turn
    return 0.5 + np.minimum(height * distance / turn, height - fall * np.maximum(0, distance - turn - level))


def collapse(distance: Floats, turn: float, height: float, generator: np.random.Generator) -> Floats:
    """A gain that saturates, and a sudden loss past the turn."""
    width = generator.uniform(0.08, 0.25) * turn
    rise: Floats = height * np.tanh(2 * distance / turn)
    loss: Floats = (height + generator.uniform(0.05, 0.25)) / (1 + np.exp(-(distance - 1.5 * turn) / width))
    return 0.5 + rise - loss


FAMILIES: dict[str, Callable[[Floats, float, float, np.random.Generator], Floats]] = {
    "gamma": gamma,
    "tent": tent,
    "collapse": collapse,
}


def draw(family: str, generator: np.random.Generator) -> Run:
    """One round of a family."""
    farthest = generator.uniform(3.0, 10.0)
    distance = farthest * np.sqrt(np.arange(1, CHECKPOINTS + 1) / CHECKPOINTS)
    turn = farthest * generator.uniform(0.3, 0.9)
    height = generator.uniform(0.05, 0.3)
    truth = np.clip(FAMILIES[family](distance, turn, height, generator), 0.02, 0.98)
    rise: Floats = np.log1p(distance) + generator.normal(0, 0.02, CHECKPOINTS)
    return Run(distance**2, truth, rise, verdicts(truth, generator))


def verdicts(truth: Floats, generator: np.random.Generator) -> Floats:
    """Scores whose expectation, ties as half, is the truth.

    Args:
        truth: (checkpoints,).
        generator: Of the draws.
    """
    shared = np.sqrt(SHARED) * generator.standard_normal((PROMPTS, 1))
    own = np.sqrt(1 - SHARED) * generator.standard_normal((PROMPTS, len(truth)))
    shift = np.array([_shift(value) for value in truth])
    latent = shared + own + shift
    return np.where(latent > TIE_BAND, 1.0, np.where(latent < -TIE_BAND, 0.0, 0.5))


def _shift(rate: float) -> float:
    """The mean of a unit normal whose win rate over the tie band is `rate`, by bisection."""
    normal = NormalDist()
    low, high = -6.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        expected = (normal.cdf(middle - TIE_BAND) + normal.cdf(middle + TIE_BAND)) / 2
        low, high = (middle, high) if expected < rate else (low, middle)
    return low
