"""Sums under explicit weights: why micro-batches, accumulation and ranks never change a gradient.

A step's loss is `sum_i w_i l_i / sum_i w_i` over all examples `i` of the step, wherever they are computed.
The denominator is known before any of them is, from the rows alone; so each micro-batch on each rank adds
its own terms, already divided, and gradients simply add up. An engine that averages over `k` micro-batches
or ranks multiplies by `k`.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


def weighted_sum(values: Float[Tensor, " n"], weights: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The sum of `weights * values`; zero, and differentiable, when there are none."""
    return (weights * values).sum()


def weighted_mean(values: Float[Tensor, " n"], weights: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The mean of values under weights of which none is negative and one is above zero.

    Values from 0 to 1 have a mean from 0 to 1, to the last bit, though weights that are shares may add up to
    a little more than 1: both sums are taken in the same order, and rounding keeps an order.
    """
    return (weights * values).sum() / weights.sum()


def example_shares(weights: Sequence[float]) -> list[float]:
    """Each example's share of its step: `w_i / sum w`, for losses with one value per example.

    Args:
        weights: The weights of all examples of the step, over all micro-batches and ranks; none negative.

    Raises:
        ValueError: A weight is negative, or all are zero.
    """
    return _shares(weights, [1] * len(weights))


def token_shares(weights: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """The share of *one token* of each example: `w_i / sum (w * n)`, so that every token counts alike.

    Args:
        weights: The weights of all examples of the step, over all micro-batches and ranks; none negative.
        lengths: Their numbers of answer tokens.

    Raises:
        ValueError: A weight is negative, or the step holds no weighted token.
    """
    return _shares(weights, lengths)


def _shares(weights: Sequence[float], counts: Sequence[int]) -> list[float]:
    if any(weight < 0 for weight in weights):
        raise ValueError("an example's weight is negative")
    total = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    if total <= 0:
        raise ValueError("the weights of a step add up to zero: it has nothing to learn from")
    return [weight / total for weight in weights]
