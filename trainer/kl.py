"""How far a policy is from its reference: KL(policy || reference), estimated from the policy's own samples.

For one sampled answer y, with d_t = log p(y_t | x, y_<t) - log p_ref(y_t | x, y_<t):

    k1 = sum_t d_t                       unbiased, may be negative
    k3 = sum_t (exp(-d_t) - 1 + d_t)     unbiased, never negative, mostly of lower variance

Schulman 2020, "Approximating KL divergence". k3 is taken token by token and summed: by the chain rule the
divergence of answers is the expected sum of the divergences of their next-token distributions, and each term
estimates one of those. (k3 of whole answers would be unbiased too, with a variance that explodes with
length.)

Both hold only for answers sampled from the policy itself, at temperature 1 and from all words; answers cut
at a length measure the divergence up to that length. Scoring policy and reference on the same rows makes
the estimate exactly zero where they are the same weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error, which is infinite where a single prompt leaves it unknown."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class KlEstimate:
    """Divergence per answer, in nats.

    Attributes:
        k1: By the log-ratio.
        k3: By the log-ratio with its control variate.
        per_token: k3 divided by the mean number of tokens of an answer.
        sequences: Answers it rests on.
        prompts: Prompts it rests on.
    """

    k1: Estimate
    k3: Estimate
    per_token: float
    sequences: int
    prompts: int


def estimate_kl(policy: Tensor, reference: Tensor, owner: Tensor, prompt: Tensor) -> KlEstimate:
    """Estimates KL(policy || reference) over answers to prompts.

    Each prompt counts alike, however many answers it has, and errors are taken between prompts: answers to
    one prompt are not independent of each other.

    Args:
        policy: [tokens], log-probabilities of the answers' tokens under the policy that sampled them.
        reference: [tokens], the same under the reference.
        owner: [tokens], the answer each token belongs to, from 0.
        prompt: [answers], the prompt each answer belongs to, any integers.

    Raises:
        ValueError: Shapes disagree, there is no answer, or a log-probability is not finite.
    """
    if policy.shape != reference.shape or policy.shape != owner.shape or not prompt.numel():
        raise ValueError(
            f"{policy.numel()} policy, {reference.numel()} reference log-probabilities and {owner.numel()} "
            f"owners for {prompt.numel()} answers: one of each per token, and at least one answer, are needed"
        )
    difference = policy.double() - reference.double()
    if not difference.isfinite().all():
        raise ValueError("a log-probability is not finite: the divergence has no value")
    answers = prompt.numel()
    per_answer = torch.zeros(2, answers, dtype=torch.float64, device=policy.device)
    per_answer.index_add_(1, owner, torch.stack([difference, torch.expm1(-difference) + difference]))
    k1, k3 = (_between(values, prompt) for values in per_answer)
    return KlEstimate(
        k1=k1,
        k3=k3,
        per_token=float(per_answer[1].sum() / max(1, owner.numel())),
        sequences=answers,
        prompts=int(prompt.unique().numel()),
    )


def _between(values: Tensor, prompt: Tensor) -> Estimate:
    """The mean of the prompts' means, and its standard error."""
    _, group, counts = prompt.unique(return_inverse=True, return_counts=True)
    means = torch.zeros(counts.numel(), dtype=values.dtype, device=values.device)
    means.index_add_(0, group, values).div_(counts)
    if means.numel() == 1:
        return Estimate(float(means[0]), float("inf"))
    return Estimate(float(means.mean()), float(means.std() / means.numel() ** 0.5))
