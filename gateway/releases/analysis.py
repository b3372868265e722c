"""One look at a release: measurements from the rows, the statistics, the decision, and all of it kept."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.releases.decision import Decision, Exposure, Finding, MetricState, RatioState, decide
from gateway.releases.machine import plan_of
from gateway.releases.measure import measure, users_ratio
from gateway.releases.plan import HOLDBACK, ReleasePlan, ShareMetric
from gateway.releases.samples import Sample
from gateway.releases.sources import Measured, Prices, read_measurements
from ratchet.db.models.releases import AnalysisRow, Look, Release
from ratchet.db.models.serving import TrafficPlan
from ratchet.ids import new_id

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class LookSeen:
    """What a look saw.

    Attributes:
        stage: Of the release.
        states: By metric.
        exposure: Of the candidate.
        ratio: Of the users; None in a shadow stage.
        decision: What to do.
        measured: The arms' measurements, candidate and baseline.
    """

    stage: str
    states: dict[str, MetricState]
    exposure: Exposure
    ratio: RatioState | None
    decision: Decision
    measured: tuple[Measured, Measured]


def look(session: Session, release: Release, prices: Prices, now: datetime) -> LookSeen:
    """Looks at the stage that a release is in.

    Args:
        session: As the operator.
        release: Running, paused, or promoted with a holdback.
        prices: For the cost of an answer.
        now: The time.
    """
    plan = plan_of(release)
    shadow = release.stage != HOLDBACK and plan.stage(release.stage).kind == "shadow"
    began = session.scalars(
        select(TrafficPlan.created_at).where(TrafficPlan.version == release.stage_plan)
    ).one()
    sources = {plan.source_of(name) for name in plan.metrics_of(release.stage)}
    measured = read_measurements(session, release, began, prices, sources, shadow=shadow)
    candidate, baseline = measured[release.policy], measured[release.baseline]
    states = {
        name: measure(plan, release.stage, name, *_samples(plan, name, candidate, baseline))
        for name in plan.metrics_of(release.stage)
    }
    stood = (release.paused_at or now) - release.stage_since
    exposure = Exposure(len(candidate.units), stood / timedelta(hours=1))
    ratio = None if shadow else _ratio(session, release, plan, candidate, baseline)
    decision = decide(plan, release.stage, states, exposure, ratio)
    return LookSeen(release.stage, states, exposure, ratio, decision, (candidate, baseline))


def is_exposed(plan: ReleasePlan, stage: str, seen: LookSeen) -> bool:
    """Whether a stage has lasted as long, and had as many users, as it needs; a holdback: only its days."""
    if stage == HOLDBACK:
        return plan.holdback is not None and seen.exposure.hours >= 24 * plan.holdback.days
    wanted = plan.stage(stage)
    return seen.exposure.users >= wanted.users and seen.exposure.hours >= wanted.hours


def keep(session: Session, release: Release, seen: LookSeen) -> None:
    """Stores a look and what it saw of each metric."""
    looks = session.scalar(select(func.count()).select_from(Look).where(Look.release_id == release.id)) or 0
    row = Look(
        id=new_id(),
        release_id=release.id,
        stage=seen.stage,
        number=looks + 1,
        decision=seen.decision.action.value,
        reason=seen.decision.reason,
        exposure={
            "users": seen.exposure.users,
            "hours": round(seen.exposure.hours, 4),
            **({} if seen.ratio is None else {"ratio": _ratio_document(seen.ratio)}),
        },
    )
    session.add(row)
    session.flush()
    for finding in seen.decision.findings:
        session.add(_row(row, finding, seen, plan_of(release)))


def _row(look: Look, finding: Finding, seen: LookSeen, plan: ReleasePlan) -> AnalysisRow:
    state = seen.states[finding.metric]
    return AnalysisRow(
        look_id=look.id,
        metric=finding.metric,
        n_baseline=state.baseline.answers,
        n_candidate=state.candidate.answers,
        baseline=_finite(state.baseline.level),
        candidate=_finite(state.candidate.level),
        estimate=_finite(state.worsening),
        low=_finite(state.lower),
        high=_finite(state.upper),
        decision=finding.verdict.value,
        detail={
            "reason": finding.reason,
            "users": {"baseline": state.baseline.users, "candidate": state.candidate.users},
            "failed": {"baseline": state.baseline.failed, "candidate": state.candidate.failed},
            **_quantiles(plan, finding.metric, seen),
        },
    )


def _quantiles(plan: ReleasePlan, name: str, seen: LookSeen) -> dict[str, Any]:
    """The distribution of what is no share, by arm, for people to look at."""
    if isinstance(plan.metrics[name], ShareMetric):
        return {}
    candidate, baseline = _samples(plan, name, *seen.measured)
    return {
        "quantiles": {
            arm: [round(float(value), 6) for value in np.quantile(sample.value, QUANTILES)]
            for arm, sample in (("baseline", baseline), ("candidate", candidate))
            if sample.value.size
        }
    }


def _samples(plan: ReleasePlan, name: str, candidate: Measured, baseline: Measured) -> tuple[Sample, Sample]:
    source = plan.source_of(name)
    nothing = Sample.of([])
    return candidate.samples.get(source, nothing), baseline.samples.get(source, nothing)


def _ratio(
    session: Session, release: Release, plan: ReleasePlan, candidate: Measured, baseline: Measured
) -> RatioState:
    """The check of the users' ratio; a mismatch of an earlier look at this stage stays one."""
    before = session.scalars(
        select(func.min(Look.exposure["ratio"]["p_value"].as_float())).where(
            Look.release_id == release.id, Look.stage == release.stage
        )
    ).one()
    users = len(candidate.units), len(baseline.units)
    return users_ratio(plan, release.stage, *users, least_before=1.0 if before is None else before)


def _ratio_document(ratio: RatioState) -> dict[str, Any]:
    return {
        "candidate_users": ratio.candidate_users,
        "baseline_users": ratio.baseline_users,
        "expected_share": ratio.expected_share,
        "p_value": ratio.p_value,
        "mismatch": ratio.mismatch,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
