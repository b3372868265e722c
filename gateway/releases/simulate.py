"""Releases of a made-up candidate, many at once: how often the plan's own bounds stop or promote it.

The tests are those of `gateway.releases.measure`, which may be looked at after every user; beside them stands
what teams do without them, a z-test repeated at every look.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from gateway.releases.betting import first_shown, gamblers
from gateway.releases.budget import levels
from gateway.releases.confidence import Excess, excess, planned_bets, quantile_bet
from gateway.releases.measure import block_sizes, contrast_of
from gateway.releases.plan import Metric, QuantileMetric, RatioMetric, ReleasePlan, Stage
from gateway.releases.samples import Floats

NAIVE_Z = 1.6449
"""One-sided 5%."""
NAIVE_BLOCKS = 30
"""Blocks of users before the first z-test."""
_AT_ONCE = 100
_HALVINGS = 14


@dataclass(frozen=True, slots=True)
class World:
    """What production's users are like in one metric.

    Attributes:
        level: Mean share, or median of a log-normal measurement.
        spread: Of a share, the correlation within a user; else the standard deviation of the logarithm
            between users.
        answers: Measurements of each user.
        noise: Standard deviation of the logarithm between a user's answers.
    """

    level: float
    spread: float
    answers: int = 3
    noise: float = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares of the releases.

    Attributes:
        aborted: Harm was shown in some stage.
        promoted: Every metric was once shown to be within its margin in the last stage, and no harm before.
        naive_aborted: What repeated z-tests would have stopped.
        naive_promoted: What they would have promoted.
        promoted_after: Users of each arm in the last stage until promotion, by release; infinity where it was
            not.
    """

    aborted: float
    promoted: float
    naive_aborted: float
    naive_promoted: float
    promoted_after: Floats

    def users_for(self, share: float) -> float:
        """Users of each arm in the last stage after which so large a share of the releases was promoted."""
        return float(np.quantile(self.promoted_after, share, method="inverted_cdf"))


@dataclass(frozen=True, slots=True)
class _Times:
    """Blocks until something was shown, by release; infinity where it was not."""

    harm: Floats
    passed: Floats
    naive_harm: Floats
    naive_passed: Floats


def simulate(
    plan: ReleasePlan,
    worlds: Mapping[str, World],
    worsening: Mapping[str, float],
    *,
    last_users: int,
    releases: int,
    looks: int,
    rng: Generator,
) -> Outcome:
    """Walks many releases through a plan.

    Args:
        plan: Stages, metrics and bounds.
        worlds: By metric; one without a world is left out, and its part of the budget unspent.
        worsening: The candidate's true worsening, by metric; 0 where left out.
        last_users: Of each arm in the last stage; earlier stages have the plan's users.
        releases: How many.
        looks: At which the naive tests and those of quantiles look, spread over the stages.
        rng: Random numbers.
    """
    told = [
        _walk(plan, worlds, worsening, last_users, min(_AT_ONCE, releases - done), looks, rng)
        for done in range(0, releases, _AT_ONCE)
    ]
    aborted, after, naive_aborted, naive_promoted = (np.concatenate(part) for part in zip(*told, strict=True))
    return Outcome(
        float(aborted.mean()),
        float(np.isfinite(after).mean()),
        float(naive_aborted.mean()),
        float(naive_promoted.mean()),
        after,
    )


def _walk(
    plan: ReleasePlan,
    worlds: Mapping[str, World],
    worsening: Mapping[str, float],
    last_users: int,
    releases: int,
    looks: int,
    rng: Generator,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Aborted, users until promotion, naively aborted, naively promoted; each of shape [releases]."""
    harmed = naive_harmed = np.zeros(releases, dtype=bool)
    after, naive_passed = np.full(releases, np.inf), np.zeros(releases, dtype=bool)
    for stage in plan.stages:
        last = stage is plan.stages[-1]
        blocks = last_users if last else stage.users
        times = [
            metric_times(
                plan,
                stage,
                name,
                worlds[name],
                worsening.get(name, 0.0),
                blocks,
                releases,
                looks // len(plan.stages),
                rng,
            )
            for name in plan.metrics_of(stage.name)
            if name in worlds
        ]
        harm = np.min([each.harm for each in times], axis=0)
        naive_harm = np.min([each.naive_harm for each in times], axis=0)
        if last:
            passed = np.max([each.passed for each in times], axis=0)
            after = np.where(~harmed & (passed < harm), passed, np.inf)
            harm = np.where(passed < harm, np.inf, harm)
            naive_pass = np.max([each.naive_passed for each in times], axis=0)
            naive_passed = ~naive_harmed & (naive_pass < naive_harm)
            naive_harm = np.where(naive_pass < naive_harm, np.inf, naive_harm)
        harmed = harmed | np.isfinite(harm)
        naive_harmed = naive_harmed | np.isfinite(naive_harm)
    return harmed.astype(float), after, naive_harmed.astype(float), naive_passed.astype(float)


def metric_times(
    plan: ReleasePlan,
    stage: Stage,
    name: str,
    world: World,
    worsening: float,
    blocks: int,
    releases: int,
    looks: int,
    rng: Generator,
) -> _Times:
    """When a metric shows harm, and when it shows that there is none, in one stage of many releases.

    Args:
        plan: Bounds and budget.
        stage: One of its stages.
        name: Of the metric.
        world: Production's users.
        worsening: The candidate's true worsening.
        blocks: Most blocks of users to draw.
        releases: How many.
        looks: Of the naive tests, and of those of quantiles.
        rng: Random numbers.
    """
    metric, budget = plan.metrics[name], levels(plan, stage.name, name)
    each = block_sizes(plan, stage.name)[1]
    if isinstance(metric, QuantileMetric):
        return _quantile_times(plan, stage, name, metric, world, worsening, blocks, releases, looks, rng)
    candidate = _users(metric, world, worsening, (releases, blocks), rng)
    baseline = _users(metric, world, 0.0, (releases, blocks, each), rng).mean(axis=-1)
    contrast = contrast_of(metric)
    kelly = planned_bets(contrast, candidate, baseline, 1.0)
    above = excess(contrast, candidate, baseline, metric.harm)
    below = excess(contrast, candidate, baseline, metric.margin)
    return _Times(
        first_shown(above.z, above.floor, (2 * metric.margin - metric.harm) * kelly, budget.harm),
        first_shown(-below.z, below.ceiling, metric.margin * kelly, budget.pass_),
        _naive(above, 1, looks),
        _naive(below, -1, looks),
    )


def _users(metric: Metric, world: World, worsening: float, shape: tuple[int, ...], rng: Generator) -> Floats:
    """Users' means in [0, 1], 1 the worst, of a share or ratio; the measurement itself of a quantile."""
    if metric.measure == "share":
        level = world.level if metric.worse == "higher" else 1 - world.level
        total = 1 / world.spread - 1
        chance = rng.beta((level + worsening) * total, (1 - level - worsening) * total, shape)
        return rng.binomial(world.answers, chance) / world.answers
    factor = 1 + worsening if metric.worse == "higher" else 1 - worsening
    own = world.level * factor * np.exp(world.spread * rng.standard_normal(shape))
    answers = [np.exp(world.noise * rng.standard_normal(shape)) for _ in range(world.answers)]
    if isinstance(metric, RatioMetric):
        return np.mean([np.minimum(own * noise, metric.cap) for noise in answers], axis=0) / metric.cap
    return own * answers[0]


def _naive(told: Excess, sign: int, looks: int) -> Floats:
    """The first look at which a z-test is significant, in blocks."""
    blocks: int = told.z.shape[-1]
    count: NDArray[np.int64] = np.unique(
        np.linspace(min(NAIVE_BLOCKS, blocks), blocks, looks).astype(np.int64)
    )
    sums = np.cumsum(told.z, axis=-1)[..., count - 1]
    squares = np.cumsum(told.z**2, axis=-1)[..., count - 1]
    variance = np.maximum(squares / count - (sums / count) ** 2, 1e-12)
    significant = sign * sums / np.sqrt(variance * count) > NAIVE_Z
    return np.where(significant.any(axis=-1), count[np.argmax(significant, axis=-1)], np.inf)


def _quantile_times(
    plan: ReleasePlan,
    stage: Stage,
    name: str,
    metric: QuantileMetric,
    world: World,
    worsening: float,
    blocks: int,
    releases: int,
    looks: int,
    rng: Generator,
) -> _Times:
    """As `metric_times`; a user has one answer, and evidence is looked for at the looks."""
    budget, each = levels(plan, stage.name, name), block_sizes(plan, stage.name)[1]
    count = np.unique(np.linspace(blocks / looks, blocks, looks).astype(np.int64))
    own = _Arm(_users(metric, world, worsening, (releases, blocks), rng), count, stage.users, metric.quantile)
    other = _Arm(
        _users(metric, world, 0.0, (releases, blocks * each), rng),
        count * each,
        stage.users * each,
        metric.quantile,
    )

    def harms(upto: NDArray[np.int64]) -> NDArray[np.bool_]:
        level = budget.harm / 2
        return own.bound("lower", level, upto) > (1 + metric.harm) * other.bound("upper", level, upto)

    def passes(upto: NDArray[np.int64]) -> NDArray[np.bool_]:
        level = budget.pass_ / 2
        return own.bound("upper", level, upto) < (1 + metric.margin) * other.bound("lower", level, upto)

    never = np.full(releases, np.inf)
    return _Times(
        _first_look(harms, count, releases), _first_look(passes, count, releases), never, np.zeros(releases)
    )


@dataclass(frozen=True, slots=True)
class _Arm:
    """One arm's measurements, one of each user.

    Attributes:
        values: Shape [releases, users].
        count: Users at each look, shape [looks].
        planned: Users by plan.
        level: Of the quantile.
    """

    values: Floats
    count: NDArray[np.int64]
    planned: int
    level: float

    def bound(self, side: Literal["lower", "upper"], alpha: float, upto: NDArray[np.int64]) -> Floats:
        """An end of the quantile's confidence sequence by the look `upto`, of shape [releases] like it.

        The wealth of `gateway.releases.confidence.quantile`, which for one answer a user is a function of how
        many are up to the bound.
        """
        bet = quantile_bet(self.level, self.planned, alpha)
        floor = 1 - self.level if side == "lower" else self.level
        sign = 1 if side == "lower" else -1
        seen = np.arange(len(self.count)) <= upto[:, None]
        low = np.full(len(self.values), np.log(self.values.min()))
        high = np.full(len(self.values), np.log(self.values.max()))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            within = np.cumsum(self.values <= np.exp(middle)[:, None], axis=-1)[:, self.count - 1]
            rich = np.zeros(within.shape)
            for coin, stake in gamblers(floor, bet):
                won = within * np.log1p(stake * sign * (self.level - 1))
                won += (self.count - within) * np.log1p(stake * sign * self.level)
                rich += coin * np.exp(np.minimum(won, 700))
            ruled_out = ((rich >= 1 / alpha) & seen).any(axis=-1)
            rises = ruled_out if side == "lower" else ~ruled_out
            low, high = np.where(rises, middle, low), np.where(rises, high, middle)
        return np.exp(low if side == "lower" else high)


def _first_look(
    told: Callable[[NDArray[np.int64]], NDArray[np.bool_]], count: NDArray[np.int64], releases: int
) -> Floats:
    """Users at the first look by which something is shown, infinity where never; what is shown stays so."""
    low, high = np.full(releases, -1), np.full(releases, len(count) - 1)
    ever = told(high)
    while ever.any() and (high - low > 1).any():
        middle = (low + high) // 2
        now = told(middle)
        low, high = np.where(now, low, middle), np.where(now, middle, high)
    return np.where(ever, count[high], np.inf)
