"""Gradients against finite differences, and against every way of dividing a step."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.data.packing import pack
from trainer.losses.dpo import DpoLoss, PairLoss
from trainer.losses.kto import kto
from trainer.losses.reduce import example_shares, token_shares, weighted_sum
from trainer.losses.reward_model import bradley_terry, centring
from trainer.losses.sft import negative_log_likelihood
from trainer.losses.simpo import simpo

LENGTHS = torch.tensor([3, 5, 2])
REFERENCE = torch.tensor([-4.0, -6.0, -3.0], dtype=torch.float64)


def dpo(kind: PairLoss, **options: float) -> Callable[[Tensor, Tensor], Tensor]:
    loss = DpoLoss(kind, **options)
    return lambda chosen, rejected: loss(chosen, rejected, REFERENCE, REFERENCE - 1, LENGTHS, LENGTHS.flip(0))


@pytest.mark.parametrize(
    "loss",
    [
        dpo(PairLoss.SIGMOID),
        dpo(PairLoss.CDPO, label_smoothing=0.2),
        dpo(PairLoss.ROBUST, label_smoothing=0.2),
        dpo(PairLoss.IPO),
        dpo(PairLoss.HINGE),
        dpo(PairLoss.SIGMOID, length_normalised=True),
        lambda chosen, rejected: simpo(chosen, rejected, LENGTHS, LENGTHS.flip(0), beta=2.0, gamma=0.5),
        lambda chosen, rejected: (
            bradley_terry(chosen, rejected, -REFERENCE) + centring(chosen, rejected, 0.1)
        ),
        lambda chosen, rejected: negative_log_likelihood(chosen) + negative_log_likelihood(rejected),
        lambda chosen, rejected: (
            kto(
                chosen,
                REFERENCE,
                torch.tensor([True, False, True]),
                torch.tensor(0.3, dtype=torch.float64),
                beta=0.1,
            )
            + 0 * rejected
        ),
    ],
)
def test_gradients_are_those_of_finite_differences(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    draw = torch.Generator().manual_seed(2)
    chosen = (-5 * torch.rand(3, generator=draw, dtype=torch.float64)).requires_grad_()
    rejected = (-5 * torch.rand(3, generator=draw, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (chosen, rejected))


def test_dpo_pushes_as_the_paper_says() -> None:
    """Equation 7's gradient: -b s(-b h) for chosen, the same with the other sign for rejected. h = 0: b /
    2.
    """
    chosen, rejected = (torch.tensor([-3.0], dtype=torch.float64, requires_grad=True) for _ in range(2))
    same = torch.tensor([-3.0], dtype=torch.float64)
    DpoLoss(beta=0.1)(chosen, rejected, same, same, LENGTHS[:1], LENGTHS[:1]).backward(torch.ones(1))
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert chosen.grad.item() == pytest.approx(-0.05)
    assert rejected.grad.item() == pytest.approx(0.05)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    weights=st.data(),
    capacity=st.integers(1, 80),
    ranks=st.integers(1, 3),
    by_token=st.booleans(),
)
def test_no_division_of_a_step_changes_its_gradient(
    lengths: list[int], weights: st.DataObject, capacity: int, ranks: int, by_token: bool
) -> None:
    """Rows of any capacity on any number of ranks give the gradient of the step computed as one batch."""
    each = weights.draw(st.lists(st.floats(0.1, 5.0), min_size=len(lengths), max_size=len(lengths)))
    shares = torch.tensor(
        token_shares(each, lengths) if by_token else example_shares(each), dtype=torch.float64
    )
    features = torch.randn(len(lengths), 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    ones = torch.tensor(lengths)
    loss = DpoLoss(beta=0.3)

    def gradient(groups: list[list[int]]) -> Tensor:
        parameter = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64, requires_grad=True)
        for group in groups:
            x = features[group]
            zero = torch.zeros(len(group), dtype=torch.float64)
            values = loss(x @ parameter, -x @ parameter.square(), zero, zero, ones[group], ones[group])
            weighted_sum(values, shares[group]).backward()
        assert parameter.grad is not None
        return parameter.grad

    whole = gradient([list(range(len(lengths)))])
    divided = gradient([row for rank in pack(lengths, capacity, ranks=ranks) for row in rank])
    torch.testing.assert_close(divided, whole, rtol=1e-12, atol=1e-12)
