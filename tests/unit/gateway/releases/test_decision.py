"""The decision of a look: harm first, what is missing holds, only what was shown passes."""

from dataclasses import replace

import pytest

from gateway.releases.decision import (
    Action,
    ArmState,
    Decision,
    Exposure,
    MetricState,
    RatioState,
    Verdict,
    decide,
)
from gateway.releases.plan import HOLDBACK, ReleasePlan

PLAN = ReleasePlan.parse(
    {
        "name": "test",
        "drill_max_age_days": 30,
        "holdback": {"share": 0.1, "days": 2},
        "stages": [
            {"name": "shadow", "kind": "shadow", "share": 0.5, "users": 10},
            {"name": "canary-10", "kind": "canary", "share": 0.1, "users": 50, "hours": 1},
            {"name": "canary-50", "kind": "canary", "share": 0.5, "users": 100},
        ],
        "metrics": {
            "errors": {"measure": "share", "worse": "higher", "margin": 0.02, "harm": 0.01, "limit": 0.1},
            "thumbs": {"measure": "share", "worse": "lower", "margin": 0.05, "harm": 0.0, "goal": "superior"},
        },
    },
    source="test",
)
ARM = ArmState(users=200, answers=600, failed=0, level=0.5)
FINE = MetricState(ARM, ARM, worsening=-0.05, lower=-0.09, upper=-0.01)
UNSURE = MetricState(ARM, ARM, worsening=0.0, lower=-0.2, upper=0.2)
WITHIN = MetricState(ARM, ARM, worsening=0.0, lower=-0.01, upper=0.01)
ENOUGH = Exposure(users=500, hours=100)
EVEN = RatioState(50, 450, 0.1, 1.0, mismatch=False)


def look(
    stage: str = "canary-10",
    errors: MetricState | None = UNSURE,
    thumbs: MetricState | None = UNSURE,
    exposure: Exposure = ENOUGH,
    ratio: RatioState | None = EVEN,
) -> Decision:
    states = {name: state for name, state in (("errors", errors), ("thumbs", thumbs)) if state is not None}
    return decide(PLAN, stage, states, exposure, ratio)


def test_an_early_stage_advances_on_exposure_without_harm() -> None:
    told = look()
    assert told.action is Action.ADVANCE
    assert told.reason == "500 users in 100.0 h and no harm in 2 metrics"


@pytest.mark.parametrize(
    ("exposure", "words"),
    [
        (Exposure(49, 2), "49 of 50 users"),
        (Exposure(50, 0.5), "0.5 of 1 h"),
        (Exposure(50, float("nan")), "nan of 1 h"),
    ],
)
def test_too_little_exposure_holds(exposure: Exposure, words: str) -> None:
    told = look(exposure=exposure)
    assert (told.action, told.reason) == (Action.HOLD, words)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "errors: not measured"),
        (replace(FINE, candidate=ArmState(0, 0, 0, None)), "errors: of candidate 0 of 0 measurements failed"),
        (replace(FINE, candidate=ArmState(0, 0, 9, None)), "errors: of candidate 9 of 9 measurements failed"),
        (
            replace(FINE, baseline=ArmState(90, 94, 6, 0.1)),
            "errors: of production 6 of 100 measurements failed",
        ),
        (replace(FINE, candidate=ArmState(19, 60, 0, 0.1)), "errors: 19 of 20 measured users of candidate"),
        (replace(FINE, worsening=None), "errors: the difference is undefined"),
        (replace(FINE, worsening=float("nan")), "errors: the difference is undefined"),
        (replace(FINE, upper=float("nan")), "errors: the difference is undefined"),
        (replace(FINE, lower=float("nan")), "errors: the difference is undefined"),
    ],
)
@pytest.mark.parametrize("stage", ["shadow", "canary-10", "canary-50"])
def test_a_metric_that_is_dead_holds_in_every_stage(
    stage: str, state: MetricState | None, words: str
) -> None:
    told = look(stage, errors=state, thumbs=FINE, ratio=None if stage == "shadow" else EVEN)
    assert (told.action, told.reason) == (Action.HOLD, words)
    assert told.findings[0].verdict is Verdict.DEAD


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (replace(FINE, candidate=ArmState(0, 0, 0, None), worsening=None), Action.DONE),
        (replace(FINE, baseline=ArmState(19, 60, 0, 0.1)), Action.DONE),
        (replace(FINE, candidate=ArmState(0, 0, 9, None)), Action.HOLD),
        (UNSURE, Action.HOLD),
        (replace(FINE, candidate=ArmState(3, 3, 0, 1.0), worsening=0.3, lower=0.02), Action.ABORT),
    ],
)
def test_an_optional_metric_holds_only_where_it_is_measured(state: MetricState, action: Action) -> None:
    errors = PLAN.metrics["errors"].model_copy(update={"optional": True})
    plan = PLAN.model_copy(update={"metrics": {**PLAN.metrics, "errors": errors}})
    states = {"errors": state, "thumbs": FINE}
    assert decide(plan, "canary-50", states, ENOUGH, replace(EVEN, expected_share=0.5)).action is action


@pytest.mark.parametrize("stage", ["shadow", "canary-10", "canary-50", HOLDBACK])
def test_harm_aborts_at_once_at_any_stage(stage: str) -> None:
    """Before the exposure, beside a dead metric and a wrong ratio, and with few users."""
    harmed = replace(UNSURE, candidate=ArmState(3, 3, 0, 1.0), worsening=0.3, lower=0.02)
    told = look(stage, errors=harmed, thumbs=None, exposure=Exposure(0, 0), ratio=None)
    assert told.action is Action.ABORT
    assert told.reason == "errors: worse by +30.0%, at least +2.0%, bound 1.0%"


def test_a_lower_end_at_the_bound_is_no_harm() -> None:
    assert look(errors=replace(UNSURE, lower=0.01)).action is Action.ADVANCE


def test_an_own_share_beyond_the_limit_aborts() -> None:
    told = look(errors=replace(UNSURE, beyond_limit=True))
    assert told.action is Action.ABORT
    assert told.reason == "errors: at 50.0% shown to be beyond the limit of 10.0%"


def test_a_wrong_ratio_of_users_holds_and_says_so() -> None:
    told = look(ratio=RatioState(90, 410, 0.1, 1e-5, mismatch=True))
    assert told.action is Action.HOLD
    assert told.reason.startswith("90 of 500 users are in the canary where the plan says 10.0% (p = 1e-05)")


def test_a_canary_whose_ratio_was_not_checked_holds() -> None:
    assert look(ratio=None).action is Action.HOLD
    assert look("shadow", ratio=None).action is Action.ADVANCE


def test_the_last_stage_needs_every_goal() -> None:
    assert look("canary-50", errors=WITHIN, thumbs=FINE).action is Action.DONE
    assert look("canary-50", errors=UNSURE, thumbs=FINE).action is Action.HOLD
    told = look("canary-50", errors=WITHIN, thumbs=WITHIN)
    assert told.action is Action.HOLD
    assert [finding.verdict for finding in told.findings] == [Verdict.NON_INFERIOR, Verdict.NON_INFERIOR]


def test_a_metric_that_is_only_watched_promotes_without_proof_but_not_when_dead() -> None:
    watched = PLAN.model_copy(
        update={"metrics": {"errors": PLAN.metrics["errors"].model_copy(update={"goal": "no_harm"})}}
    )
    assert decide(watched, "canary-50", {"errors": UNSURE}, ENOUGH, EVEN).action is Action.DONE
    assert decide(watched, "canary-50", {}, ENOUGH, EVEN).action is Action.HOLD


def test_an_upper_end_that_nothing_bounds_is_undecided() -> None:
    told = look("canary-50", errors=replace(WITHIN, upper=None), thumbs=FINE)
    assert told.action is Action.HOLD
    assert told.findings[0].verdict is Verdict.UNDECIDED


def test_holdback_ends_after_its_days_without_harm() -> None:
    assert look(HOLDBACK, exposure=Exposure(500, 47.9)).action is Action.HOLD
    told = look(HOLDBACK, errors=None, thumbs=None, exposure=Exposure(500, 48))
    assert (told.action, told.reason) == (Action.HOLD, "no metric is measured")
    told = look(HOLDBACK, exposure=Exposure(500, 48))
    assert (told.action, told.reason) == (Action.DONE, "no harm within 2 days after promotion")
