"""One budget of false aborts for a whole release: which part of it each test may spend.

The parts add up to the plan's `false_abort`, so by the union bound (Bonferroni) the chance that anything
stops a harmless candidate is at most that, however the tests depend on one another. A false promotion needs
no split: every metric must pass, and one that is worse by its margin passes with probability at most
`false_promotion` (intersection-union test; Berger, "Multiparameter hypothesis testing and acceptance
sampling", Technometrics 24, 1982).
"""

from dataclasses import dataclass

from gateway.releases.plan import Metric, ReleasePlan, ShareMetric


@dataclass(frozen=True, slots=True)
class Levels:
    """Chances of a false claim that one metric has in one stage, over all looks together.

    Attributes:
        harm: That the worsening is above the harm bound.
        limit: That the candidate's own share is beyond its limit; None where the plan has none.
        pass_: That the worsening is below the margin.
    """

    harm: float
    limit: float | None
    pass_: float


def levels(plan: ReleasePlan, stage: str, metric: str) -> Levels:
    """The levels of a metric in a stage (or in `holdback`).

    Every stage has an equal part of what the ratio checks leave of `false_abort`; within a stage it is split
    by the metrics' weights, and a metric's own part in two halves where it has a limit.

    Raises:
        KeyError: The metric is not looked at in that stage.
    """
    counted = plan.metrics_of(stage)
    analysed = [gate for gate in plan.gates if plan.metrics_of(gate)]
    of_stage = plan.budget.false_abort * (1 - plan.budget.ratio_mismatch) / len(analysed)
    part = of_stage * counted[metric].weight / sum(each.weight for each in counted.values())
    if _has_limit(counted[metric]):
        return Levels(part / 2, part / 2, plan.budget.false_promotion)
    return Levels(part, None, plan.budget.false_promotion)


def ratio_level(plan: ReleasePlan) -> float:
    """The level of one stage's check of the users' ratio; shadow stages, which copy requests, have none."""
    shadows = sum(stage.kind == "shadow" for stage in plan.stages)
    return plan.budget.false_abort * plan.budget.ratio_mismatch / (len(plan.gates) - shadows)


def _has_limit(metric: Metric) -> bool:
    return isinstance(metric, ShareMetric) and metric.limit is not None
