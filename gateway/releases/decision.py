"""What becomes of a release at a look: a pure function of the plan and of what was measured.

Harm comes first and needs no minimum of anything; what is missing, failed or undefined holds; only what was
measured and shown passes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.releases.plan import HOLDBACK, Metric, ReleasePlan, ShareMetric


class Action(StrEnum):
    """What the release does next."""

    ADVANCE = "advance"
    """To the next stage."""
    HOLD = "hold"
    """Stay, and look again."""
    ABORT = "abort"
    """Back to the last good policy."""
    DONE = "done"
    """After the last stage: promote. In holdback: close the release."""


class Verdict(StrEnum):
    """What one metric says."""

    LIMIT = "limit"
    """The candidate's own share is shown to be beyond the plan's limit."""
    HARM = "harm"
    """The worsening is shown to be larger than the plan's harm bound."""
    DEAD = "dead"
    """Nothing to go by: no measurement, too few users, or too many that failed."""
    SILENT = "silent"
    """Too few users were measured in a metric that the plan calls optional."""
    UNDECIDED = "undecided"
    """Alive, and neither harm nor its absence is shown."""
    NON_INFERIOR = "non_inferior"
    """The worsening is shown to be smaller than the margin."""
    SUPERIOR = "superior"
    """The candidate is shown to be better."""


@dataclass(frozen=True, slots=True)
class ArmState:
    """One arm's measurements of one metric in this stage.

    Attributes:
        users: Users with at least one measurement.
        answers: Measurements.
        failed: Measurements that failed: no number came of them.
        level: The arm's figure (mean of the users' means, or the quantile); None without measurements.
    """

    users: int
    answers: int
    failed: int
    level: float | None

    @property
    def failed_share(self) -> float:
        """Failed among all measurements; 1 where there were none."""
        tried = self.answers + self.failed
        return self.failed / tried if tried else 1.0


@dataclass(frozen=True, slots=True)
class MetricState:
    """What is known of one metric at a look. A worsening is above 0 where the candidate is worse.

    Attributes:
        candidate: The candidate's measurements.
        baseline: Production's, in the same stage.
        worsening: Estimate; None where it is undefined.
        lower: Lower end of the worsening's confidence sequence, at the part of the false-abort budget that
            this metric has in this stage; None where nothing bounds it yet.
        upper: Upper end, at the false-promotion budget; None likewise.
        beyond_limit: The candidate's own share is shown to be beyond the plan's limit.
    """

    candidate: ArmState
    baseline: ArmState
    worsening: float | None
    lower: float | None
    upper: float | None
    beyond_limit: bool = False


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much of the stage has passed.

    Attributes:
        users: Users the candidate has answered in this stage.
        hours: Since the stage began, pauses left out.
    """

    users: int
    hours: float


@dataclass(frozen=True, slots=True)
class RatioState:
    """Whether users fell to the arms as the plan's share says.

    Attributes:
        candidate_users: Users seen in the canary arm in this stage.
        baseline_users: In production.
        expected_share: The canary's by plan.
        p_value: Valid at every look (`gateway.releases.confidence.ratio_p_value`).
        mismatch: The p-value is at or below its part of the budget.
    """

    candidate_users: int
    baseline_users: int
    expected_share: float
    p_value: float
    mismatch: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric's verdict, and why in words."""

    metric: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why in words, and what each metric of the stage said."""

    action: Action
    reason: str
    findings: tuple[Finding, ...]


def decide(
    plan: ReleasePlan,
    stage: str,
    metrics: Mapping[str, MetricState],
    exposure: Exposure,
    ratio: RatioState | None,
) -> Decision:
    """Decides one look.

    Args:
        plan: The release's plan.
        stage: Name of the stage, or `holdback`.
        metrics: States by metric name; one that is missing counts as dead.
        exposure: Of the candidate in this stage.
        ratio: Of the users; None is right only in a shadow stage, which copies requests.

    Raises:
        ConfigError: The plan has no such stage.
    """
    findings = tuple(
        judge(name, metric, metrics.get(name), plan.max_failed)
        for name, metric in plan.metrics_of(stage).items()
    )
    harms = [finding for finding in findings if finding.verdict in (Verdict.LIMIT, Verdict.HARM)]
    if harms:
        return Decision(Action.ABORT, _joined(harms), findings)
    if stage == HOLDBACK:
        return _of_holdback(plan, exposure, ratio, findings)
    last = plan.following(stage) is None
    waits = [
        *_ratio_waits(ratio, needed=plan.stage(stage).kind == "canary"),
        *_exposure_waits(exposure, users=plan.stage(stage).users, hours=plan.stage(stage).hours),
        *(finding.reason for finding in findings if finding.verdict is Verdict.DEAD),
    ]
    if last:
        waits += [
            finding.reason
            for finding in findings
            if finding.verdict not in (Verdict.DEAD, Verdict.SILENT)
            and not _reached(plan.metrics[finding.metric], finding)
        ]
    if waits:
        return Decision(Action.HOLD, "; ".join(waits), findings)
    if last:
        return Decision(Action.DONE, f"every metric reached its goal: {_joined(findings)}", findings)
    return Decision(
        Action.ADVANCE,
        f"{exposure.users} users in {exposure.hours:.1f} h and no harm in {len(findings)} metrics",
        findings,
    )


def judge(name: str, metric: Metric, state: MetricState | None, max_failed: float) -> Finding:
    """One metric's verdict.

    Args:
        name: Of the metric, for the words.
        metric: Its bounds.
        state: What was measured; None where nothing was.
        max_failed: The largest share of failed measurements that an arm may have.
    """
    if state is None:
        return Finding(name, Verdict.DEAD, f"{name}: not measured")
    if state.beyond_limit and isinstance(metric, ShareMetric) and metric.limit is not None:
        level = math.nan if state.candidate.level is None else state.candidate.level
        return Finding(
            name, Verdict.LIMIT, f"{name}: at {level:.1%} shown to be beyond the limit of {metric.limit:.1%}"
        )
    if state.lower is not None and state.lower > metric.harm:
        return Finding(
            name,
            Verdict.HARM,
            f"{name}: worse by {_told(state.worsening)}, at least {_told(state.lower)}, "
            f"bound {metric.harm:.1%}",
        )
    for arm, measured in (("candidate", state.candidate), ("production", state.baseline)):
        if measured.failed_share > max_failed and (measured.failed or not metric.optional):
            failed = f"{measured.failed} of {measured.failed + measured.answers} measurements failed"
            return Finding(name, Verdict.DEAD, f"{name}: of {arm} {failed}")
        if measured.users < metric.users:
            verdict = Verdict.SILENT if metric.optional else Verdict.DEAD
            return Finding(
                name, verdict, f"{name}: {measured.users} of {metric.users} measured users of {arm}"
            )
    known = [figure for figure in (state.worsening, state.lower, state.upper) if figure is not None]
    if state.worsening is None or not all(map(math.isfinite, known)):
        return Finding(name, Verdict.DEAD, f"{name}: the difference is undefined")
    words = (
        f"{name}: worse by {_told(state.worsening)}, at most {_told(state.upper)}, margin {metric.margin:.1%}"
    )
    if state.upper is None or state.upper >= metric.margin:
        return Finding(name, Verdict.UNDECIDED, words)
    return Finding(name, Verdict.SUPERIOR if state.upper < 0 else Verdict.NON_INFERIOR, words)


def _reached(metric: Metric, finding: Finding) -> bool:
    if metric.goal == "no_harm":
        return True
    if metric.goal == "superior":
        return finding.verdict is Verdict.SUPERIOR
    return finding.verdict in (Verdict.NON_INFERIOR, Verdict.SUPERIOR)


def _of_holdback(
    plan: ReleasePlan, exposure: Exposure, ratio: RatioState | None, findings: tuple[Finding, ...]
) -> Decision:
    days = 0.0 if plan.holdback is None else plan.holdback.days
    waits = [*_ratio_waits(ratio, needed=True), *_exposure_waits(exposure, users=0, hours=24 * days)]
    if all(finding.verdict in (Verdict.DEAD, Verdict.SILENT) for finding in findings):
        waits.append("no metric is measured")
    if waits:
        return Decision(Action.HOLD, "; ".join(waits), findings)
    return Decision(Action.DONE, f"no harm within {days:g} days after promotion", findings)


def _ratio_waits(ratio: RatioState | None, *, needed: bool) -> list[str]:
    if ratio is None:
        return ["the ratio of users was not checked"] if needed else []
    if not ratio.mismatch and math.isfinite(ratio.p_value):
        return []
    seen = ratio.candidate_users + ratio.baseline_users
    return [
        f"{ratio.candidate_users} of {seen} users are in the canary where the plan says "
        f"{ratio.expected_share:.1%} (p = {ratio.p_value:.2g}): nothing is compared until the cause is found"
    ]


def _exposure_waits(exposure: Exposure, *, users: int, hours: float) -> list[str]:
    return [
        *([f"{exposure.users} of {users} users"] if exposure.users < users else []),
        *([] if exposure.hours >= hours else [f"{exposure.hours:.1f} of {hours:g} h"]),
    ]


def _told(value: float | None) -> str:
    return "nothing known" if value is None else f"{value:+.1%}"


def _joined(findings: tuple[Finding, ...] | list[Finding]) -> str:
    return "; ".join(finding.reason for finding in findings)
