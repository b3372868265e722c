"""Direct preference optimisation and its close relatives.

All are functions of one number per pair, the margin by which the policy prefers the chosen answer more than
the reference does:

    h = [log p(chosen) - log p_ref(chosen)] - [log p(rejected) - log p_ref(rejected)]

| kind | loss | source |
|-|-|-|
| sigmoid | -log s(b h) | Rafailov et al. 2023, "Direct preference optimization", equation 7 |
| cdpo | -(1-e) log s(b h) - e log s(-b h) | Mitchell 2023, "A note on DPO with noisy preferences" |
| robust | [-(1-e) log s(b h) + e log s(-b h)] / (1-2e) | Chowdhury et al. 2024, "Provably robust DPO" |
| ipo | (h - 1/(2b))^2 | Azar et al. 2023, "A general theoretical paradigm", equation 17 |
| hinge | max(0, 1 - b h) | Zhao et al. 2023, "SLiC-HF"; Liu et al. 2023, "RSO" |

`s` is the logistic function, `b` is beta, `e` the probability that a label is flipped. Length-normalised
variants take the mean log-ratio per answer token in place of the sum (Lambert et al. 2024, "Tulu 3",
section 5); IPO's published results use it too.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trainer.losses.beta import check_beta


class PairLoss(StrEnum):
    """The loss that is taken of a pair's margin."""

    SIGMOID = "sigmoid"
    CDPO = "cdpo"
    ROBUST = "robust"
    IPO = "ipo"
    HINGE = "hinge"


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """A DPO loss, checked.

    Attributes:
        kind: Which one.
        beta: Strength of the pull towards the reference; IPO's tau. Outside 0.05 to 0.5 it warns.
        label_smoothing: Probability that a label is flipped, in [0, 0.5); for cdpo and robust only.
        length_normalised: Log-ratios are means per answer token instead of sums.

    Raises:
        ValueError: A value that makes no sense, on creation.
    """

    kind: PairLoss = PairLoss.SIGMOID
    beta: float = 0.1
    label_smoothing: float = 0.0
    length_normalised: bool = False

    def __post_init__(self) -> None:
        check_beta(self.beta)
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it must be from 0 to below 0.5")
        if self.label_smoothing and self.kind not in (PairLoss.CDPO, PairLoss.ROBUST):
            raise ValueError(
                f"label_smoothing has no meaning for {self.kind}; choose cdpo or robust, or leave it 0"
            )

    def __call__(
        self,
        chosen: Float[Tensor, " pairs"],
        rejected: Float[Tensor, " pairs"],
        reference_chosen: Float[Tensor, " pairs"],
        reference_rejected: Float[Tensor, " pairs"],
        chosen_tokens: Int[Tensor, " pairs"],
        rejected_tokens: Int[Tensor, " pairs"],
    ) -> Float[Tensor, " pairs"]:
        """The loss of each pair.

        Args:
            chosen: Summed log-probabilities of the chosen answers under the policy.
            rejected: The same of the rejected answers.
            reference_chosen: The same under the reference.
            reference_rejected: The same of the rejected answers under the reference.
            chosen_tokens: Numbers of answer tokens those sums ran over.
            rejected_tokens: The same of the rejected answers.
        """
        gain = chosen - reference_chosen
        loss = rejected - reference_rejected
        if self.length_normalised:
            gain, loss = gain / chosen_tokens, loss / rejected_tokens
        margin = gain - loss
        match self.kind:
            case PairLoss.SIGMOID:
                return sigmoid(margin, self.beta)
            case PairLoss.CDPO:
                return conservative(margin, self.beta, self.label_smoothing)
            case PairLoss.ROBUST:
                return robust(margin, self.beta, self.label_smoothing)
            case PairLoss.IPO:
                return ipo(margin, self.beta)
            case PairLoss.HINGE:
                return hinge(margin, self.beta)


def sigmoid(margin: Float[Tensor, " pairs"], beta: float) -> Float[Tensor, " pairs"]:
    """`-log s(b h)`."""
    return -F.logsigmoid(beta * margin)


def conservative(
    margin: Float[Tensor, " pairs"], beta: float, label_smoothing: float
) -> Float[Tensor, " pairs"]:
    """`-(1-e) log s(b h) - e log s(-b h)`: a label that is wrong with probability e, as a soft target."""
    return (1 - label_smoothing) * sigmoid(margin, beta) + label_smoothing * sigmoid(-margin, beta)


def robust(margin: Float[Tensor, " pairs"], beta: float, label_smoothing: float) -> Float[Tensor, " pairs"]:
    """Unbiased for the clean loss when each label is flipped with probability e; may be negative."""
    kept = (1 - label_smoothing) * sigmoid(margin, beta)
    flipped = label_smoothing * sigmoid(-margin, beta)
    return (kept - flipped) / (1 - 2 * label_smoothing)


def ipo(margin: Float[Tensor, " pairs"], beta: float) -> Float[Tensor, " pairs"]:
    """`(h - 1/(2b))^2`: a target for the margin, so that sure labels cannot push it to infinity."""
    return (margin - 1 / (2 * beta)).square()


def hinge(margin: Float[Tensor, " pairs"], beta: float) -> Float[Tensor, " pairs"]:
    """`max(0, 1 - b h)`."""
    return F.relu(1 - beta * margin)
