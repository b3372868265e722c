"""Supervised fine-tuning: maximum likelihood of the answer given the prompt.

Ouyang et al. 2022, "Training language models to follow instructions with human feedback", section 3.5 (SFT).
Prompt tokens are context, never targets: they have no log-probability here at all.
"""

from jaxtyping import Float
from torch import Tensor


def negative_log_likelihood(answers: Float[Tensor, " sequences"]) -> Float[Tensor, " sequences"]:
    """`-sum_t log p(y_t | x, y_<t)` of each answer.

    Weighted with `reduce.token_shares` every answer token of a step counts alike, with
    `reduce.example_shares` of weights divided by length every answer does.

    Args:
        answers: Log-probabilities summed over the tokens of each answer, and of nothing else.
    """
    return -answers
