"""Reward models from comparisons: Bradley-Terry likelihood of the observed preference.

Bradley and Terry 1952, "Rank analysis of incomplete block designs: I"; as a loss for language models in
Ouyang et al. 2022, equation 1.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def bradley_terry(
    chosen: Float[Tensor, " pairs"],
    rejected: Float[Tensor, " pairs"],
    margin: Float[Tensor, " pairs"] | None = None,
) -> Float[Tensor, " pairs"]:
    """`-log sigmoid(r_chosen - r_rejected - m)`.

    Args:
        chosen: Scores of the preferred answers.
        rejected: Scores of the others, on the same prompts.
        margin: How far apart the raters said they are; Touvron et al. 2023, "Llama 2", equation 2. None is 0.
    """
    difference = chosen - rejected
    return -F.logsigmoid(difference if margin is None else difference - margin)


def centring(
    chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"], coefficient: float
) -> Float[Tensor, " pairs"]:
    """`c (r_chosen + r_rejected)^2`: keeps scores around zero, which the likelihood alone leaves free.

    Eisenstein et al. 2023, "Helping or herding? Reward model ensembles mitigate but do not eliminate reward
    hacking". 0.01 is a common coefficient.
    """
    if coefficient < 0:
        raise ValueError(f"a centring coefficient of {coefficient} would push scores away from zero")
    return coefficient * (chosen + rejected).square()
