"""SimPO: a preference loss without a reference.

Meng, Xia and Chen 2024, "SimPO: simple preference optimization with a reference-free reward", equation 6.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def simpo(
    chosen: Float[Tensor, " pairs"],
    rejected: Float[Tensor, " pairs"],
    chosen_tokens: Int[Tensor, " pairs"],
    rejected_tokens: Int[Tensor, " pairs"],
    *,
    beta: float,
    gamma: float,
) -> Float[Tensor, " pairs"]:
    """`-log s(b mean log p(chosen) - b mean log p(rejected) - g)`.

    Args:
        chosen: Summed log-probabilities of the chosen answers under the policy.
        rejected: The same of the rejected answers.
        chosen_tokens: Numbers of answer tokens those sums ran over.
        rejected_tokens: The same of the rejected answers.
        beta: Scale of the reward; the paper uses 2 to 10. DPO's range does not apply: these are means.
        gamma: Target margin in units of the reward; the paper keeps gamma / beta between 0 and 1.

    Raises:
        ValueError: beta is not above zero, or gamma is negative.
    """
    if not beta > 0:
        raise ValueError(f"beta is {beta}; a number above zero is expected")
    if gamma < 0:
        raise ValueError(f"gamma is {gamma}; a margin of zero or more is expected")
    difference = chosen / chosen_tokens - rejected / rejected_tokens
    return -F.logsigmoid(beta * difference - gamma)
