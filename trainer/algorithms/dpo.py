"""Direct preference optimisation, in all its kinds; SimPO is asked for as one of them."""

import torch
from torch import Tensor

from trainer.algorithms.pairs import PairAlgorithm, sides
from trainer.algorithms.simpo import Simpo
from trainer.config import RoundConfig
from trainer.losses.dpo import DpoLoss, PairLoss


class Dpo(PairAlgorithm):
    """See `losses.dpo`.

    Args:
        loss: Kind, beta and the rest.
    """

    uses_reference = True

    def __init__(self, loss: DpoLoss) -> None:
        self.loss = loss

    def losses(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> Tensor:
        """See `Algorithm.losses`."""
        return self.loss(*sides(values), *sides(_known(reference)), *sides(lengths))

    def measures(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> dict[str, Tensor]:
        """The implicit reward `beta log(p / p_ref)` of the chosen answer less that of the rejected
        (`reward`), whether that is above zero, half where it is zero (`accuracy`), and both log-ratios."""
        gain, loss = sides(values.detach() - _known(reference))
        margin = gain - loss
        return {
            "accuracy": (torch.sign(margin) + 1) / 2,
            "reward": self.loss.beta * margin,
            "chosen_gain": gain,
            "rejected_gain": loss,
        }


def _known(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError("DPO needs the reference's values of the same answers")
    return reference


def make(config: RoundConfig) -> Dpo | Simpo:
    """The method."""
    loss = config.loss
    if config.loss_kind == "simpo":
        return Simpo(loss.beta, loss.gamma)
    return Dpo(DpoLoss(PairLoss(config.loss_kind), loss.beta, loss.label_smoothing, loss.length_normalised))
