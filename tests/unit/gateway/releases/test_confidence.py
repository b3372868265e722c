"""Confidence sequences: their ends by brute force, their coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.releases.confidence import (
    Contrast,
    Ends,
    compared,
    excess,
    quantile,
    share_beyond,
    user_quantile,
)
from gateway.releases.samples import Sample

SEED = 5


def brute_wealth(z: list[float], floor: float, planned: list[float]) -> float:
    """The mixed wealth, observation by observation."""
    coins = [0.5] + [0.1] * 5
    for value, bet in zip(z, planned, strict=True):
        bets = [min(bet, 0.75 / floor)] + [0.75 / floor / 4**k for k in range(5)]
        coins = [coin * (1 + stake * value) for coin, stake in zip(coins, bets, strict=True)]
    return sum(coins)


def test_ends_are_where_the_wealth_reaches_the_bound() -> None:
    rng = np.random.default_rng(SEED)
    own, other = rng.random(150) < 0.6, rng.random(150) < 0.3
    own, other = own.astype(float), other.astype(float)
    ends = compared(
        "difference", own, other, lower_gap=0.2, upper_gap=0.1, lower_alpha=0.01, upper_alpha=0.05
    )
    assert ends.lower is not None
    assert ends.upper is not None
    gone, squares, bets = 0.0, 0.25, []
    for place, value in enumerate(own - other):
        bets.append(1 / (squares / (place + 1)))
        gone += value
        squares += (value - gone / (place + 2)) ** 2
    z = list(own - other - ends.lower)
    assert brute_wealth(z, 1 + ends.lower, [0.2 * bet for bet in bets]) == pytest.approx(100, rel=1e-3)
    z = list(ends.upper - own + other)
    assert brute_wealth(z, 1 - ends.upper, [0.1 * bet for bet in bets]) == pytest.approx(20, rel=1e-3)


@pytest.mark.parametrize("contrast", ["difference", "ratio_higher", "ratio_lower"])
def test_excess_has_the_sign_of_the_distance(contrast: Contrast) -> None:
    """x = 0.6 and y = 0.5 are worse by 0.1, by a fifth, and by -1/5."""
    truth = {"difference": 0.1, "ratio_higher": 0.2, "ratio_lower": -0.2}[contrast]
    own, other = np.array([0.6]), np.array([0.5])
    assert excess(contrast, own, other, truth).z == pytest.approx(0.0)
    assert excess(contrast, own, other, truth - 0.1).z > 0
    assert excess(contrast, own, other, truth + 0.1).z < 0


@given(
    st.sampled_from(["difference", "ratio_higher", "ratio_lower"]),
    st.floats(0, 1), st.floats(0, 1), st.floats(-0.9, 0.9),
)  # fmt: skip
def test_excess_stays_within_its_bounds(contrast: Contrast, own: float, other: float, worse: float) -> None:
    told = excess(contrast, np.array([own]), np.array([other]), worse)
    assert -told.floor - 1e-12 <= told.z[0] <= told.ceiling + 1e-12


def test_without_users_nothing_is_known() -> None:
    none = np.array([])
    ends = compared(
        "difference", none, none, lower_gap=0.1, upper_gap=0.1, lower_alpha=0.05, upper_alpha=0.05
    )
    assert (ends.lower, ends.upper) == (-1.0, 1.0)
    ends = compared(
        "ratio_higher", none, none, lower_gap=0.1, upper_gap=0.1, lower_alpha=0.05, upper_alpha=0.05
    )
    assert (ends.lower, ends.upper) == (None, None)


@pytest.mark.parametrize(("contrast", "truth"), [("difference", 0.05), ("ratio_higher", 0.25)])
def test_the_truth_is_covered_at_every_look(contrast: Contrast, truth: float) -> None:
    """Of 60 pairs of samples at most 10% + 3 standard errors miss it at any of 5 looks (5% an end)."""
    rng = np.random.default_rng(SEED)
    missed = 0
    for _ in range(60):
        own, other = rng.binomial(4, 0.25, 300) / 4, rng.binomial(4, 0.20, 300) / 4
        looks = [
            compared(
                contrast, own[:n], other[:n], lower_gap=0.1, upper_gap=0.1, lower_alpha=0.05, upper_alpha=0.05
            )
            for n in range(60, 301, 60)
        ]
        missed += any(not covers(ends, truth) for ends in looks)
    assert missed <= 60 * 0.1 + 3 * math.sqrt(60 * 0.1 * 0.9)


def covers(ends: Ends, truth: float) -> bool:
    lower = -math.inf if ends.lower is None else ends.lower
    return lower <= truth <= (math.inf if ends.upper is None else ends.upper)


def test_five_users_whose_answers_all_fail_are_enough() -> None:
    """At a limit of 10% each failure multiplies the boldest gambler's coin of 0.1 by 7.75 = 1 + 7.5 * 0.9."""
    assert share_beyond(np.ones(5), 0.1, 0.001)
    assert not share_beyond(np.ones(3), 0.1, 0.001)
    assert not share_beyond(np.zeros(10_000), 0.1, 0.001)


def sample(values: list[list[float]]) -> Sample:
    return Sample.of((user, value) for user, each in enumerate(values) for value in each)


def test_a_users_quantile_weighs_users_not_answers() -> None:
    """One user with ninety-nine answers of 1, one with one of 100: half of the users are at 100."""
    arm = sample([[1.0] * 99, [100.0]])
    assert user_quantile(arm, 0.5) == 1.0
    assert user_quantile(arm, 0.51) == 100.0
    assert user_quantile(sample([]), 0.5) is None


def test_a_quantile_that_is_always_the_same_is_bounded_by_it() -> None:
    ends = quantile(sample([[5.0]] * 400), 0.5, 400, 0.05, 0.05)
    assert (ends.lower, ends.upper) == (5.0, 5.0)


def test_few_users_bound_no_quantile() -> None:
    ends = quantile(sample([[5.0], [6.0]]), 0.9, 100, 0.05, 0.05)
    assert (ends.lower, ends.upper) == (None, None)
    assert quantile(sample([]), 0.9, 100, 0.05, 0.05).upper is None


def test_a_quantile_is_covered_at_every_look() -> None:
    """The 0.9-quantile of an exponential is ln 10; users have one to three answers that are alike."""
    rng = np.random.default_rng(SEED)
    missed = 0
    for _ in range(100):
        drawn = zip(rng.exponential(size=200), rng.integers(1, 4, 200), strict=True)
        users = [[float(value)] * int(answers) for value, answers in drawn]
        looks = [quantile(sample(users[:n]), 0.9, 200, 0.05, 0.05) for n in (50, 100, 150, 200)]
        missed += any(not covers(ends, math.log(10)) for ends in looks)
    assert missed <= 100 * 0.1 + 3 * math.sqrt(100 * 0.1 * 0.9)
