"""Release plans: those that come with Ratchet, and what a wrong one is told."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.releases.budget import levels, ratio_level
from gateway.releases.measure import block_sizes
from gateway.releases.plan import HOLDBACK, ReleasePlan, ShareMetric, Source, load_release_plan
from ratchet.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
PLANS = sorted((ROOT / "deploy" / "releases").glob("*.toml"))


def minimal() -> dict[str, Any]:
    return {
        "name": "one",
        "drill_max_age_days": 30,
        "stages": [{"name": "canary-50", "kind": "canary", "share": 0.5, "users": 10}],
        "metrics": {"errors": {"measure": "share", "worse": "higher", "margin": 0.02, "harm": 0.01}},
    }


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_that_comes_with_ratchet_is_one_and_survives_a_row(path: Path) -> None:
    plan = load_release_plan(path)
    assert plan.name == path.stem
    assert ReleasePlan.parse(plan.model_dump(mode="json"), source="row") == plan


def test_the_default_walks_as_documented() -> None:
    plan = load_release_plan(ROOT / "deploy" / "releases" / "default.toml")
    walk = [plan.stages[0].name]
    while (stage := plan.following(walk[-1])) is not None:
        walk.append(stage.name)
    assert walk == ["shadow", "canary-1", "canary-5", "canary-25", "canary-50"]
    assert [block_sizes(plan, stage) for stage in (*walk, HOLDBACK)] == [
        (1, 1), (1, 99), (1, 19), (1, 3), (1, 1), (19, 1),
    ]  # fmt: skip


def test_the_default_looks_at_everything_that_is_measured() -> None:
    """But for timeouts, which errors contain, and verdicts of guardrails, which a deployment may not have."""
    looked_at = set(load_release_plan(ROOT / "deploy" / "releases" / "default.toml").metrics)
    assert set(Source) - looked_at == {Source.TIMEOUTS, Source.GUARDRAIL}


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_budget_of_false_aborts_is_spent_once(path: Path) -> None:
    plan = load_release_plan(path)
    spent = sum(stage.kind == "canary" for stage in plan.stages) * ratio_level(plan)
    spent += ratio_level(plan) if plan.holdback else 0
    for stage in plan.gates:
        for name in plan.metrics_of(stage):
            told = levels(plan, stage, name)
            spent += told.harm + (told.limit or 0)
    assert spent == pytest.approx(plan.budget.false_abort)


def test_levels_by_hand() -> None:
    """0.05 less a tenth, one stage, two metrics of weights 1 and 2; the second has a limit."""
    values = minimal()
    values["metrics"]["truncation"] = {
        "measure": "share", "worse": "higher", "margin": 0.1, "harm": 0.1, "weight": 2.0, "limit": 0.5,
    }  # fmt: skip
    plan = ReleasePlan.parse(values, source="test")
    assert levels(plan, "canary-50", "errors").harm == pytest.approx(0.015)
    told = levels(plan, "canary-50", "truncation")
    assert (told.harm, told.limit) == (pytest.approx(0.015), pytest.approx(0.015))
    assert told.pass_ == 0.05
    assert ratio_level(plan) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"stages": []}, "stages: Tuple should have at least 1 item"),
        ({"stages": [{"name": "half", "kind": "canary", "share": 0.6, "users": 5}]}, "at most 0.5"),
        (
            {
                "stages": [
                    {"name": "a", "kind": "canary", "share": 0.5, "users": 5},
                    {"name": "b", "kind": "canary", "share": 0.1, "users": 5},
                ]
            },
            "a larger share than the one before",
        ),
        (
            {"stages": [{"name": "holdback", "kind": "canary", "share": 0.5, "users": 5}]},
            "names of their own",
        ),
        ({"metrics": {}}, "metrics: Dictionary should have at least 1 item"),
        ({"webhook": "no url"}, "webhook"),
    ],
)
def test_a_wrong_plan_is_told_where(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=r"my\.toml: ") as caught:
        ReleasePlan.parse({**minimal(), **change}, source="my.toml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"harm": 0.03}, "harm 0.03 is above margin 0.02"),
        ({"margin": float("nan")}, "finite number"),
        ({"measure": "mean"}, "metrics.errors: Input tag 'mean'"),
        ({"source": "vibes"}, "no source is named 'vibes'"),
        ({"source": "task:"}, "no source is named 'task:'"),
        ({"stages": ["canary-9"]}, "no stage is named canary-9"),
    ],
)
def test_a_wrong_metric_is_told_where(change: dict[str, Any], words: str) -> None:
    values = minimal()
    values["metrics"]["errors"] |= change
    with pytest.raises(ConfigError) as caught:
        ReleasePlan.parse(values, source="my.toml")
    assert words in str(caught.value)


def test_a_task_metric_is_a_source() -> None:
    values = minimal()
    values["metrics"]["solved"] = {
        "source": "task:solved", "measure": "share", "worse": "lower", "margin": 0.02, "harm": 0.0,
    }  # fmt: skip
    plan = ReleasePlan.parse(values, source="test")
    assert plan.source_of("solved") == "task:solved"
    assert isinstance(plan.metrics["solved"], ShareMetric)


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_release_plan(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name =")
    with pytest.raises(ConfigError, match="is no TOML"):
        load_release_plan(tmp_path / "bad.toml")
    assert tomllib.loads('name = "x"') == {"name": "x"}


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(ConfigError, match="the plan 'one' has no stage 'canary-7'"):
        ReleasePlan.parse(minimal(), source="test").stage("canary-7")
