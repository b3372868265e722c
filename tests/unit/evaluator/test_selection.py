"""Selection: who may be proposed and why, and that no reward can enter."""

import ast
import dataclasses
import inspect
import math
import subprocess
import sys
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evaluator.selection as module
from benchmarks.selection.families import FAMILIES
from benchmarks.selection.regret import measure
from evaluator.overoptimisation import Point, fit_curve, parting
from evaluator.selection import Candidate, Change, Floor, Primary, UnusableCandidates, select
from evaluator.statistics.interval import UNDEFINED, Interval


def candidate(
    policy: str, kl: float, rate: float | None, p_value: float = 0.001, **more: typing.Any
) -> Candidate:
    value = UNDEFINED if rate is None else Interval(rate, rate - 0.05, rate + 0.05)
    return Candidate(policy, round(10 * min(kl, 1e6)), kl, Primary("win rate", value, 0.5, p_value), **more)


def test_the_best_on_the_frontier_is_proposed_with_its_reason():
    result = select([candidate("c", 9, 0.6), candidate("b", 4, 0.66), candidate("a", 1, 0.58)])
    assert result.chosen == "b"
    assert [one.candidate.policy for one in result.standings] == ["a", "b", "c"]
    assert [one.on_frontier for one in result.standings] == [True, True, False]
    assert "b (step 40, KL 4) has win rate 0.660 [0.610, 0.710] against production" in result.reason
    assert "the best of 3 eligible among 3 candidates" in result.reason


def test_of_equals_the_one_that_moved_least_is_taken():
    assert select([candidate("far", 9, 0.6), candidate("near", 1, 0.6)]).chosen == "near"


def test_what_could_be_chance_is_not_proposed():
    result = select([candidate("a", 1, 0.56, p_value=0.2), candidate("b", 2, 0.49)])
    assert result.chosen is None
    assert "a: win rate 0.560 could be chance (p = 0.200" in result.reason
    assert "b: win rate 0.490 is no gain" in result.reason


def test_no_candidate_and_no_figure_end_well():
    assert select([]).reason == "the round has no candidate"
    assert "could not be measured" in select([candidate("a", 1, None)]).reason
    assert select([Candidate("a", 1, 1.0, None)]).chosen is None


@pytest.mark.parametrize(
    ("change", "eligible"),
    [
        (Change("safety", Interval(0.0, -0.02, 0.02), 0.03), True),
        (Change("safety", Interval(0.0, -0.04, 0.04), 0.03), False),
        (Change("safety", Interval(-0.1, -0.12, -0.08), 0.03), False),
        (Change("safety", UNDEFINED, 0.03), False),
    ],
)
def test_a_dimension_that_may_be_worse_past_its_margin_bars(change: Change, eligible: bool):
    result = select([candidate("best", 2, 0.8, changes=(change,)), candidate("plain", 1, 0.6)])
    assert result.chosen == ("best" if eligible else "plain")


@pytest.mark.parametrize(
    ("value", "passed"),
    [(Interval(0.5, 0.4, 0.6), True), (Interval(0.49, 0.4, 0.6), False), (UNDEFINED, False)],
)
def test_a_floor_that_does_not_hold_bars(value: Interval, passed: bool):
    floor = Floor("arithmetic", value, 0.5)
    result = select([candidate("a", 1, 0.7, floors=(floor,))])
    assert (result.chosen == "a") is passed
    if not passed:
        assert "floor arithmetic" in result.reason


def test_what_cannot_be_put_on_one_axis_is_an_error():
    with pytest.raises(UnusableCandidates, match="twice"):
        select([candidate("a", 1, 0.6), candidate("a", 2, 0.6)])
    with pytest.raises(UnusableCandidates, match="KL of a"):
        select([candidate("a", float("inf"), 0.6)])
    with pytest.raises(UnusableCandidates, match="margin"):
        select([candidate("a", 1, 0.6, changes=(Change("s", UNDEFINED, -1),))])
    other = Candidate("b", 1, 1.0, Primary("task gain", Interval(0.1, 0.05, 0.15), 0.0, 0.01))
    with pytest.raises(UnusableCandidates, match="different figures: task gain, win rate"):
        select([candidate("a", 1, 0.6), other])


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1), st.floats(0, 1), st.floats(-0.5, 0.5)), max_size=8)
)
def test_no_proposal_may_be_worse_past_a_margin_or_by_chance(rows: list[tuple[float, float, float, float]]):
    told = [
        candidate(str(place), kl, rate, p, changes=(Change("s", Interval(low + 0.1, low, low + 0.2), 0.05),))
        for place, (kl, rate, p, low) in enumerate(rows)
    ]
    result = select(told)
    assert select(told[::-1]) == result
    if result.chosen is not None:
        _, rate, p_value, low = rows[int(result.chosen)]
        assert rate > 0.5
        assert p_value <= 0.05
        assert low >= -0.05


def test_no_type_of_selection_holds_a_reward():
    for _, kind in inspect.getmembers(module, dataclasses.is_dataclass):
        for field in dataclasses.fields(kind):
            assert not any(word in field.name.lower() for word in ("reward", "proxy", "score"))
    assert list(inspect.signature(select).parameters) == ["candidates", "alpha"]


def test_selection_does_not_even_import_the_report_that_knows_rewards():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, evaluator.selection; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "evaluator.overoptimisation" not in loaded
    assert not {"torch", "transformers", "trainer", "gateway", "feedback", "sqlalchemy"} & set(loaded)
    imported = [
        node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)
    ]
    assert {node.module for node in imported} <= {
        "collections.abc",
        "dataclasses",
        "evaluator.statistics.interval",
    }


def test_the_curve_is_found_again():
    distance = [0.5, 1.0, 2.0, 3.0, 5.0]
    fit = fit_curve([d * d for d in distance], [d * (0.8 - 0.3 * math.log(d)) for d in distance])
    assert fit is not None
    assert (fit.a, fit.b, fit.residual) == pytest.approx((0.8, 0.3, 0.0))
    assert fit.peak == pytest.approx(2.718281828 ** (0.8 / 0.3 - 1))
    assert fit.at(0) == 0
    assert fit_curve([1, 1, 4], [1, 2, 3]) is None


def test_a_rising_proxy_over_a_falling_judge_is_named():
    judged = [(1, 0.1), (4, 0.15), (9, 0.1), (16, -0.05), (25, -0.2)]
    told = [Point(kl, kl, kl**0.5, Interval(value, value - 0.05, value + 0.05)) for kl, value in judged]
    result = parting(told)
    assert result.reward_hacking
    assert result.reason.startswith("reward hacking: at step 25 (KL 25) the proxy is 5")
    assert result.parts_at is not None
    assert 1 < result.parts_at < 9
    honest = parting([Point(kl, kl, kl**0.5, Interval(kl / 50, kl / 60, kl / 40)) for kl in (1, 4, 9, 16)])
    assert not honest.reward_hacking


@pytest.mark.parametrize("family", FAMILIES)
def test_regret_is_small_where_proxy_and_last_go_astray(family: str):
    regret = measure(family, 25, seed=1)
    assert regret.selection <= 2
    assert regret.selection < min(regret.by_proxy, regret.last)
    assert regret.worse_proposed <= 0.04
