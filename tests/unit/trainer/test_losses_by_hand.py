"""Losses against values worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.losses.beta import BetaWarning, check_beta
from trainer.losses.dpo import (
    DpoLoss,
    PairLoss,
    conservative,
    hinge,
    ipo,
    robust,
    sigmoid,
)
from trainer.losses.kto import kto, reference_point
from trainer.losses.reduce import example_shares, token_shares, weighted_mean, weighted_sum
from trainer.losses.reward_model import bradley_terry, centring
from trainer.losses.sft import negative_log_likelihood
from trainer.losses.simpo import simpo

LOG3 = math.log(3.0)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def counts(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def near(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, vector(*expected), rtol=1e-12, atol=1e-12)


def test_sft_is_the_negative_sum() -> None:
    """Two answers whose tokens have probabilities 1/2, 1/4 and 1/8: -log(1/8) = 3 log 2, and -log(1/8)
    again.
    """
    near(
        negative_log_likelihood(vector(math.log(0.5) + math.log(0.25), math.log(0.125))),
        3 * math.log(2),
        3 * math.log(2),
    )


def test_bradley_terry() -> None:
    """s(log 3) = 3/4, s(0) = 1/2; a margin of log 3 takes the first back to 1/2."""
    chosen, rejected = vector(LOG3 + 1.0, 2.0), vector(1.0, 2.0)
    near(bradley_terry(chosen, rejected), math.log(4 / 3), math.log(2))
    near(bradley_terry(chosen, rejected, vector(LOG3, 0.0)), math.log(2), math.log(2))


def test_centring() -> None:
    """0.01 (3 - 1)^2 = 0.04; opposite scores cost nothing."""
    near(centring(vector(3.0, 5.0), vector(-1.0, -5.0), 0.01), 0.04, 0.0)
    with pytest.raises(ValueError, match="away from zero"):
        centring(vector(1.0), vector(1.0), -0.1)


def test_dpo_sigmoid() -> None:
    """b h = 0.5 * 2 log 3 = log 3, and s(log 3) = 3/4; h = 0 gives log 2, where every run starts."""
    near(sigmoid(vector(2 * LOG3, 0.0, -2 * LOG3), 0.5), math.log(4 / 3), math.log(2), math.log(4))


def test_dpo_conservative() -> None:
    """e = 1/4 at b h = log 3: 3/4 log(4/3) + 1/4 log 4."""
    near(conservative(vector(2 * LOG3), 0.5, 0.25), 0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_dpo_robust() -> None:
    """e = 1/4 at b h = log 3: (3/4 log(4/3) - 1/4 log 4) / (1/2)."""
    near(robust(vector(2 * LOG3), 0.5, 0.25), (0.75 * math.log(4 / 3) - 0.25 * math.log(4)) / 0.5)


def test_robust_is_unbiased_under_flipped_labels() -> None:
    """The mean over a label flipped with probability e is the clean loss: (1-e) r(h) + e r(-h) = -log s(b
    h).
    """
    margin = vector(-3.0, 0.2, 5.0)
    mean = 0.7 * robust(margin, 0.1, 0.3) + 0.3 * robust(-margin, 0.1, 0.3)
    torch.testing.assert_close(mean, sigmoid(margin, 0.1))


def test_ipo() -> None:
    """b = 0.25 sets the target at 1 / (2 * 0.25) = 2: (5 - 2)^2 = 9, and 0 at the target."""
    near(ipo(vector(5.0, 2.0), 0.25), 9.0, 0.0)


def test_hinge() -> None:
    """1 - 0.25 * 2 = 0.5; beyond 1 / b = 4 it is 0."""
    near(hinge(vector(2.0, 4.0, 9.0), 0.25), 0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "smoothing", "expected"),
    [
        (PairLoss.SIGMOID, 0.0, math.log(4 / 3)),
        (PairLoss.CDPO, 0.25, 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
        (PairLoss.ROBUST, 0.25, 1.5 * math.log(4 / 3) - 0.5 * math.log(4)),
        (PairLoss.IPO, 0.0, (2 * LOG3 - 1.0) ** 2),
        (PairLoss.HINGE, 0.0, 0.0),
    ],
)
def test_dpo_takes_the_margin_over_the_reference(kind: PairLoss, smoothing: float, expected: float) -> None:
    """(-10 + 2 log 3) - (-11) for chosen, (-7) - (-8 + 0) for rejected: h = (1 + 2 log 3) - 1 = 2 log 3, b
    = 1/2.
    """
    loss = DpoLoss(kind, beta=0.5, label_smoothing=smoothing)
    value = loss(vector(-10 + 2 * LOG3), vector(-7.0), vector(-11.0), vector(-8.0), counts(4), counts(9))
    near(value, expected)


def test_dpo_length_normalised() -> None:
    """Log-ratios 4 over 4 tokens and -3 over 3: h = 1 - (-1) = 2, so b h = 1."""
    loss = DpoLoss(beta=0.5, length_normalised=True)
    near(
        loss(vector(-6.0), vector(-9.0), vector(-10.0), vector(-6.0), counts(4), counts(3)),
        math.log1p(math.exp(-1.0)),
    )


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.5])
def test_beta_in_range_is_silent(beta: float) -> None:
    check_beta(beta)


@pytest.mark.parametrize(("beta", "consequence"), [(0.049, "far from the reference"), (0.51, "hardly move")])
def test_beta_out_of_range_warns(beta: float, consequence: str) -> None:
    with pytest.warns(BetaWarning, match=consequence):
        DpoLoss(beta=beta)


@pytest.mark.parametrize("beta", [0.0, -0.1, float("inf"), float("nan")])
def test_beta_must_be_a_positive_number(beta: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        DpoLoss(beta=beta)


@pytest.mark.parametrize(
    ("kind", "smoothing"), [(PairLoss.CDPO, 0.5), (PairLoss.CDPO, -0.1), (PairLoss.IPO, 0.1)]
)
def test_label_smoothing_is_checked(kind: PairLoss, smoothing: float) -> None:
    with pytest.raises(ValueError, match="label_smoothing"):
        DpoLoss(kind, label_smoothing=smoothing)


def test_simpo() -> None:
    """2 (-8/4) - 2 (-9/3) - (2 - log 3) = -4 + 6 - 2 + log 3 = log 3."""
    near(simpo(vector(-8.0), vector(-9.0), counts(4), counts(3), beta=2.0, gamma=2 - LOG3), math.log(4 / 3))


def test_kto() -> None:
    """r - z0 = 2 log 3 for the good answer, z0 - r = -2 log 3 for the bad: 1 - 3/4, and 2 (1 - 1/4)."""
    value = kto(
        vector(-5.0, -5.0),
        vector(-6.0 - 2 * LOG3, -6.0 - 2 * LOG3),
        torch.tensor([True, False]),
        torch.tensor(1.0, dtype=torch.float64),
        beta=0.5,
        undesirable_weight=2.0,
    )
    near(value, 0.25, 1.5)


def test_kto_reference_point() -> None:
    """Mean of 3 and -1 is 1; a negative mean counts as 0, and neither carries a gradient."""
    policy = vector(-1.0, -5.0).requires_grad_()
    point = reference_point(policy, vector(-4.0, -4.0))
    assert point.item() == 1.0
    assert not point.requires_grad
    assert reference_point(vector(-9.0), vector(-4.0)).item() == 0.0


def test_shares() -> None:
    """Weights 1 and 3 of lengths 2 and 1: by example 1/4 and 3/4; by token 1/5 and 3/5, as 2/5 + 3/5 = 1."""
    assert example_shares([1.0, 3.0]) == [0.25, 0.75]
    assert token_shares([1.0, 3.0], [2, 1]) == [0.2, 0.6]
    assert weighted_sum(vector(8.0, 4.0), vector(0.25, 0.75)).item() == 5.0


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.01, 5.0)), min_size=1, max_size=64))
@example([(1.0, 1.0)] * 13)
@example([(1.0, 1.0)] * 26)
@example([(1.0, 1.0)] * 29)
def test_the_mean_of_an_accuracy_is_a_share_to_the_last_bit(pairs: list[tuple[float, float]]) -> None:
    """All right is exactly 1, though 13 shares of 1/13 add up to more; else numpy's average."""
    values = [value for value, _ in pairs]
    shares = example_shares([weight for _, weight in pairs])
    mean = weighted_mean(vector(*values), vector(*shares)).item()
    assert 0.0 <= mean <= 1.0
    assert mean == pytest.approx(np.average(values, weights=shares), abs=1e-12)
    if set(values) == {1.0}:
        assert mean == 1.0


def test_shares_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="zero"):
        example_shares([0.0, 0.0])
    with pytest.raises(ValueError, match="negative"):
        token_shares([1.0, -1.0], [1, 1])


def test_an_empty_micro_batch_adds_a_differentiable_zero() -> None:
    empty = torch.zeros(0, requires_grad=True)
    total = weighted_sum(empty, torch.zeros(0))
    total.backward()
    assert total.item() == 0.0
