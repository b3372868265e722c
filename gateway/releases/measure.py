"""From two samples to what is known of a metric at a look."""

import math

import numpy as np

from gateway.releases.budget import levels, ratio_level
from gateway.releases.confidence import Contrast, compared, quantile, share_beyond, user_quantile
from gateway.releases.decision import ArmState, MetricState, RatioState
from gateway.releases.plan import (
    ENDED,
    HOLDBACK,
    PROBED,
    Metric,
    QuantileMetric,
    RatioMetric,
    ReleasePlan,
    ShareMetric,
)
from gateway.releases.ratio import ratio_p_value
from gateway.releases.samples import Floats, Sample


def measure(plan: ReleasePlan, stage: str, name: str, candidate: Sample, baseline: Sample) -> MetricState:
    """One metric's state. Measurements below 0, and those of a share above 1, count as failed.

    Args:
        plan: The release's plan.
        stage: Name of the stage, or `holdback`, where the candidate is the promoted policy.
        name: Of the metric.
        candidate: The candidate's measurements since the stage began.
        baseline: Production's; in a shadow stage those of the answers that the candidate shadowed, and of how
            answers ended those of all.

    Raises:
        KeyError: The metric is not looked at in that stage.
    """
    metric = plan.metrics_of(stage)[name]
    most = 1.0 if isinstance(metric, ShareMetric) else math.inf
    candidate, baseline = candidate.within(most), baseline.within(most)
    if isinstance(metric, QuantileMetric):
        return _of_quantile(plan, stage, name, metric, candidate, baseline)
    return _of_means(plan, stage, name, metric, candidate, baseline)


def users_ratio(
    plan: ReleasePlan, stage: str, candidate_users: int, baseline_users: int, least_before: float = 1.0
) -> RatioState:
    """Whether users fell to the arms as planned.

    Args:
        plan: The release's plan.
        stage: A canary stage, or `holdback`.
        candidate_users: Users seen with the candidate since the stage began.
        baseline_users: With the other policy.
        least_before: The smallest p-value of earlier looks at this stage: a mismatch stays one.
    """
    share = canary_share(plan, stage)
    seen = ratio_p_value((candidate_users, baseline_users), (share, 1 - share))
    p_value = min(seen, least_before)
    return RatioState(candidate_users, baseline_users, share, p_value, p_value <= ratio_level(plan))


def canary_share(plan: ReleasePlan, stage: str) -> float:
    """The candidate's planned share of users in a canary stage or in `holdback`."""
    if stage == HOLDBACK:
        return 1 - (0.0 if plan.holdback is None else plan.holdback.share)
    return plan.stage(stage).share


def block_sizes(plan: ReleasePlan, stage: str) -> tuple[int, int]:
    """Users of the candidate and of production in one block: as the plan's shares, one of them 1."""
    if _is_shadow(plan, stage):
        return 1, 1
    share = canary_share(plan, stage)
    return max(1, round(share / (1 - share))), max(1, round((1 - share) / share))


def _of_means(
    plan: ReleasePlan,
    stage: str,
    name: str,
    metric: ShareMetric | RatioMetric,
    candidate: Sample,
    baseline: Sample,
) -> MetricState:
    budget = levels(plan, stage, name)
    own, other = _scaled(metric, candidate), _scaled(metric, baseline)
    ends = compared(
        contrast_of(metric),
        *_blocks(plan, stage, name, candidate, baseline, own, other),
        lower_gap=2 * metric.margin - metric.harm,
        upper_gap=metric.margin,
        lower_alpha=budget.harm,
        upper_alpha=budget.pass_,
    )
    beyond = False
    if isinstance(metric, ShareMetric) and metric.limit is not None and budget.limit is not None:
        limit = metric.limit if metric.worse == "higher" else 1 - metric.limit
        beyond = share_beyond(own, limit, budget.limit)
    levels_told = [_in_own_units(metric, _mean(arm)) for arm in (own, other)]
    return MetricState(
        _arm(candidate, levels_told[0]),
        _arm(baseline, levels_told[1]),
        _worsening(contrast_of(metric), _mean(own), _mean(other)),
        ends.lower,
        ends.upper,
        beyond,
    )


def _of_quantile(
    plan: ReleasePlan, stage: str, name: str, metric: QuantileMetric, candidate: Sample, baseline: Sample
) -> MetricState:
    """Each arm's quantile has half of the level; the ends of the ratio are ratios of the ends."""
    budget = levels(plan, stage, name)
    users = (plan.stages[-1] if stage == HOLDBACK else plan.stage(stage)).users
    mine, its = block_sizes(plan, stage)
    higher = metric.worse == "higher"
    low, high = (budget.harm / 2, budget.pass_ / 2) if higher else (budget.pass_ / 2, budget.harm / 2)
    own = quantile(candidate, metric.quantile, users, low, high)
    other = quantile(baseline, metric.quantile, max(1, users * its // mine), high, low)
    least, most = _over(own.lower, other.upper), _over(own.upper, other.lower)
    levels_told = [user_quantile(arm, metric.quantile) for arm in (candidate, baseline)]
    return MetricState(
        _arm(candidate, levels_told[0]),
        _arm(baseline, levels_told[1]),
        _worsening(contrast_of(metric), *levels_told),
        _signed(least if higher else most, higher=higher),
        _signed(most if higher else least, higher=higher),
    )


def _scaled(metric: ShareMetric | RatioMetric, sample: Sample) -> Floats:
    """The users' means in [0, 1]; of a share, 1 is the worst."""
    top = metric.cap if isinstance(metric, RatioMetric) else 1.0
    means = sample.user_means(top) / top
    return 1 - means if isinstance(metric, ShareMetric) and metric.worse == "lower" else means


def _in_own_units(metric: ShareMetric | RatioMetric, figure: float | None) -> float | None:
    if figure is None:
        return None
    if isinstance(metric, RatioMetric):
        return figure * metric.cap
    return 1 - figure if metric.worse == "lower" else figure


def _is_paired(plan: ReleasePlan, stage: str, name: str) -> bool:
    source = plan.source_of(name)
    return source in PROBED or (_is_shadow(plan, stage) and source not in ENDED)


def _is_shadow(plan: ReleasePlan, stage: str) -> bool:
    return stage != HOLDBACK and plan.stage(stage).kind == "shadow"


def _blocks(
    plan: ReleasePlan, stage: str, name: str, candidate: Sample, baseline: Sample, own: Floats, other: Floats
) -> tuple[Floats, Floats]:
    """Means of the blocks of both arms, shape [blocks]; copies and probes are beside their own.

    What is not copied in a shadow stage stands in blocks of one user with a copy and as many users of
    production as requests are made for each copy.
    """
    if _is_paired(plan, stage, name):
        places = {unit: place for place, unit in enumerate(baseline.units)}
        both = [(place, places[unit]) for place, unit in enumerate(candidate.units) if unit in places]
        pairs = np.array(both, dtype=np.int64).reshape(-1, 2)
        return own[pairs[:, 0]], other[pairs[:, 1]]
    mine, its = (
        (1, round(1 / plan.stage(stage).share)) if _is_shadow(plan, stage) else block_sizes(plan, stage)
    )
    blocks = min(len(own) // mine, len(other) // its)
    return (
        own[: blocks * mine].reshape(blocks, mine).mean(axis=1),
        other[: blocks * its].reshape(blocks, its).mean(axis=1),
    )


def contrast_of(metric: Metric) -> Contrast:
    """How the arms are compared in a metric."""
    if isinstance(metric, ShareMetric):
        return "difference"
    return "ratio_higher" if metric.worse == "higher" else "ratio_lower"


def _worsening(contrast: Contrast, own: float | None, other: float | None) -> float | None:
    if own is None or other is None:
        return None
    if contrast == "difference":
        return own - other
    return _signed(_over(own, other), higher=contrast == "ratio_higher")


def _signed(ratio: float | None, *, higher: bool) -> float | None:
    if ratio is None:
        return None
    return ratio - 1 if higher else 1 - ratio


def _over(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or bottom is None or bottom == 0 else top / bottom


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _arm(sample: Sample, level: float | None) -> ArmState:
    return ArmState(len(sample.units), len(sample.value), sample.failed, level)
