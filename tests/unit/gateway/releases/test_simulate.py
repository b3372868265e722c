"""Whole releases, few of them: the plan's bounds keep what they promise, repeated z-tests do not."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.releases.statistics import WORLDS
from gateway.releases.plan import ReleasePlan, load_release_plan
from gateway.releases.simulate import Outcome, metric_times, simulate

ROOT = Path(__file__).resolve().parents[4]
DEFAULT = load_release_plan(ROOT / "deploy" / "releases" / "default.toml")
KEPT = ("errors", "length", "thumbs")
SMALLER = DEFAULT.model_copy(
    update={
        "stages": DEFAULT.stages[-2:],
        "metrics": {name: DEFAULT.metrics[name].model_copy(update={"stages": ()}) for name in KEPT},
    }
)


def walked(plan: ReleasePlan, worse: dict[str, float]) -> Outcome:
    return simulate(
        plan, WORLDS, worse, last_users=3_000, releases=60, looks=100, rng=np.random.default_rng(2)
    )


def test_a_candidate_like_production_is_promoted_and_not_stopped() -> None:
    told = walked(SMALLER, {})
    assert told.aborted <= 0.05
    assert told.promoted >= 0.8
    assert told.users_for(0.8) <= 3_000
    assert told.naive_aborted > 0.3


@pytest.mark.parametrize("name", KEPT)
def test_a_candidate_that_is_worse_by_the_margin_is_not_promoted(name: str) -> None:
    """60 releases: at most 5% and three standard errors of it."""
    assert walked(SMALLER, {name: SMALLER.metrics[name].margin}).promoted <= 0.13


@pytest.mark.parametrize("name", ["thumbs", "length", "latency"])
def test_at_its_bounds_a_metric_makes_few_false_claims(name: str) -> None:
    """100 stages: at most 5% and three standard errors of it."""
    metric, stage = DEFAULT.metrics[name], DEFAULT.stages[-1]
    rng = np.random.default_rng(4)
    margin = metric_times(DEFAULT, stage, name, WORLDS[name], metric.margin, 1_000, 100, 50, rng)
    harm = metric_times(DEFAULT, stage, name, WORLDS[name], metric.harm, 1_000, 100, 50, rng)
    assert np.isfinite(margin.passed).mean() <= 0.11
    assert np.isfinite(harm.harm).mean() <= 0.01


def test_a_rambling_candidate_is_stopped() -> None:
    times = metric_times(
        DEFAULT, DEFAULT.stages[-1], "length", WORLDS["length"], 1.0, 1_000, 50, 50, np.random.default_rng(4)
    )
    assert np.isfinite(times.harm).mean() >= 0.9
