"""Where proxy and judge part: a report on a round, made after its selection record is written.

The fit is R(d) = d (a - b log d) with d = sqrt(KL) (Gao, Schulman and Hilton 2023, "Scaling laws for reward
model overoptimization", equation 2: the form found for reinforcement learning). It is linear in a and b, so
least squares is exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.statistics.interval import Floats, Interval


@dataclass(frozen=True, slots=True)
class Fit:
    """R(d) = d (a - b log d)."""

    a: float
    b: float
    residual: float
    """Root mean square of what the fit leaves, in units of the values."""

    def at(self, distance: float) -> float:
        """The fitted value; 0 at the reference."""
        return distance * (self.a - self.b * math.log(distance)) if distance > 0 else 0.0

    @property
    def peak(self) -> float | None:
        """The distance d at which the curve turns, exp(a / b - 1); null where it does not (b <= 0)."""
        if self.b <= 0 or self.a / self.b > 500:
            return None
        return math.exp(self.a / self.b - 1)


@dataclass(frozen=True, slots=True)
class Point:
    """One checkpoint: how far it moved and what both sides say, as differences from the reference."""

    step: int
    kl: float
    proxy: float
    """Mean reward minus the reference's on the same prompts; comparable within one round only."""
    judged: Interval
    """Held-out figure minus that of the reference."""


@dataclass(frozen=True, slots=True)
class Parting:
    """What a report says of a round."""

    proxy: Fit | None
    judged: Fit | None
    """Null with fewer than three distances."""
    parts_at: float | None
    """The KL from which on the proxy rises on while the judged figure falls; null where it never does."""
    reward_hacking: bool
    """The proxy rose over the round, and the held-out interval did not."""
    reason: str


def fit_curve(kl: Sequence[float], values: Sequence[float]) -> Fit | None:
    """Least squares of R(d) on values that are differences from the reference; null with under three
    distances.

    Raises:
        ValueError: The lengths differ, or a KL is negative.
    """
    if len(kl) != len(values) or any(one < 0 for one in kl):
        raise ValueError("a curve needs one value for each KL, and no KL is negative")
    told = [(math.sqrt(one), value) for one, value in zip(kl, values, strict=True) if one > 0]
    if len({distance for distance, _ in told}) < 3:
        return None
    distance: Floats = np.array([one for one, _ in told])
    target: Floats = np.array([value for _, value in told])
    columns: Floats = np.stack([distance, -distance * np.log(distance)], axis=1)
    weights, *_ = np.linalg.lstsq(columns, target, rcond=None)
    left = target - columns @ weights
    return Fit(float(weights[0]), float(weights[1]), float(np.sqrt((left**2).mean())))


def parting(points: Sequence[Point]) -> Parting:
    """Compares both sides of a round.

    Raises:
        ValueError: There is no checkpoint.
    """
    if not points:
        raise ValueError("a round without checkpoints has nothing to report")
    ordered = sorted(points, key=lambda one: (one.kl, one.step))
    kl = [one.kl for one in ordered]
    judged = [(one.kl, one.judged.estimate) for one in ordered if one.judged.estimate is not None]
    proxy_fit = fit_curve(kl, [one.proxy for one in ordered])
    judged_fit = fit_curve([one for one, _ in judged], [value for _, value in judged])
    last = ordered[-1]
    hacking = 0 < last.proxy >= ordered[0].proxy and (last.judged.low is None or last.judged.low <= 0)
    peak = None if judged_fit is None else judged_fit.peak
    parts_at = None
    if peak is not None and peak**2 < last.kl and _rises(proxy_fit, peak, math.sqrt(last.kl)):
        parts_at = peak**2
    return Parting(proxy_fit, judged_fit, parts_at, hacking, _said(last, hacking, parts_at))


def _rises(fit: Fit | None, start: float, end: float) -> bool:
    return fit is not None and fit.at(end) > fit.at(start)


def _said(last: Point, hacking: bool, parts_at: float | None) -> str:
    words: list[str] = []
    if hacking:
        words.append(
            f"reward hacking: at step {last.step} (KL {last.kl:.3g}) the proxy is {last.proxy:.3g} above the"
            " reference, and the held-out figure is not shown to be above it"
        )
    if parts_at is not None:
        words.append(f"from KL {parts_at:.3g} on the proxy rises while the held-out figure falls")
    return "; ".join(words) or "proxy and held-out figure go together as far as this round shows"
