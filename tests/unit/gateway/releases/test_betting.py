"""Evidence by betting, against arithmetic by hand and against every sequence there can be."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.releases.betting import (
    BOLDEST,
    FIXED,
    PLANNED_WEIGHT,
    first_shown,
    past_mean,
    past_variance,
    shown,
    wealth,
)


def test_wealth_by_hand() -> None:
    """Two observations of 1, floor 1, planned bet 1/2: 1/2 (3/2)^2 + 1/10 sum_k (1 + 0.75 / 4^k)^2."""
    fixed = sum((1 + 0.75 / 4**k) ** 2 for k in range(5)) / 10
    assert wealth(np.ones(2), 1.0, 0.5)[-1] == pytest.approx(0.5 * 1.5**2 + fixed)


def test_weights_of_the_gamblers_add_up_to_one_coin() -> None:
    assert wealth(np.zeros(1), 1.0, 0.3)[0] == pytest.approx(1.0)


def test_no_gambler_can_lose_all() -> None:
    ruined = wealth(np.full(3, -1.0), 1.0, 99.0)
    assert ruined[-1] >= PLANNED_WEIGHT * (1 - BOLDEST) ** 3
    assert len(FIXED) == 5


@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_expected_wealth_stays_one_under_the_hypothesis(chance: float) -> None:
    """Over all 2^12 sequences of a coin with their probabilities; planned bets look at the past."""
    coins = np.array(list(itertools.product([0.0, 1.0], repeat=12)))
    weights = np.prod(np.where(coins == 1, chance, 1 - chance), axis=1)
    z = coins - chance
    rich = wealth(z, chance, 0.2 / past_variance(coins))
    assert weights @ rich == pytest.approx(np.ones(12))


@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_a_false_claim_is_as_rare_as_promised_at_all_looks_together(chance: float) -> None:
    """Exactly, over all 2^14 sequences."""
    coins = np.array(list(itertools.product([0.0, 1.0], repeat=14)))
    weights = np.prod(np.where(coins == 1, chance, 1 - chance), axis=1)
    claimed = np.isfinite(first_shown(coins - chance, chance, 0.2 / past_variance(coins), 0.1))
    assert 0 < weights @ claimed <= 0.1


def test_evidence_counts_at_the_look_at_which_it_is_there() -> None:
    z = np.concatenate([np.ones(20), -np.ones(1000)])
    assert shown(z[:20], 1.0, 0.5, 0.05)
    assert not shown(z, 1.0, 0.5, 0.05)
    assert first_shown(z, 1.0, 0.5, 0.05) < 20


def test_nothing_shows_nothing() -> None:
    assert not shown(np.array([]), 1.0, 0.0, 0.05)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_past_figures_look_at_the_past(values: list[float]) -> None:
    array = np.array(values)
    for place in range(len(values)):
        before = values[:place]
        assert past_mean(array)[place] == pytest.approx(math.fsum(before) / max(1, place), abs=1e-9)
        running = [math.fsum(before[: k + 1]) / (k + 2) for k in range(place)]
        spread = math.fsum((value - mean) ** 2 for value, mean in zip(before, running, strict=True))
        assert past_variance(array)[place] == pytest.approx((0.25 + spread) / (place + 1), abs=1e-9)
