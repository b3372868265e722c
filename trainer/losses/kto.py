"""KTO: learning from single answers called good or bad.

Ethayarajh et al. 2024, "KTO: model alignment as prospect theoretic optimization", section 4.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def reference_point(
    mismatched: Float[Tensor, " pairs"], mismatched_reference: Float[Tensor, " pairs"]
) -> Float[Tensor, ""]:
    """The KL estimate `z0` that answers are judged against: the mean log-ratio, not below zero, no gradient.

    Args:
        mismatched: Summed log-probabilities under the policy of answers paired with *other* prompts, of the
            whole step over all ranks; a step split in parts must use one common value.
        mismatched_reference: The same under the reference.
    """
    return (mismatched - mismatched_reference).detach().mean().clamp(min=0)


def kto(
    policy: Float[Tensor, " answers"],
    reference: Float[Tensor, " answers"],
    desirable: Bool[Tensor, " answers"],
    z0: Float[Tensor, ""],
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Tensor, " answers"]:
    """`l_d (1 - s(b (r - z0)))` for good answers and `l_u (1 - s(b (z0 - r)))` for bad ones, `r` the
    log-ratio.

    Args:
        policy: Summed log-probabilities of the answers under the policy.
        reference: The same under the reference.
        desirable: Which answers were called good.
        z0: From `reference_point`.
        beta: Risk aversion.
        desirable_weight: `l_d`; with `undesirable_weight` it balances unequal numbers of good and bad
            answers.
        undesirable_weight: `l_u`.
    """
    distance = policy - reference - z0
    value = torch.sigmoid(beta * torch.where(desirable, distance, -distance))
    return torch.where(desirable, desirable_weight * (1 - value), undesirable_weight * (1 - value))
