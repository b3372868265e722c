"""Direct preference optimisation, in all its kinds."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer.algorithms.base import Algorithm
from trainer.config import RoundConfig
from trainer.data.examples import Example, Examples, pair_examples
from trainer.data.render import Renderer
from trainer.data.rows import read_pairs
from trainer.data.truncate import Lengths
from trainer.losses.dpo import DpoLoss, PairLoss
from trainer.losses.reduce import example_shares


class Dpo(Algorithm):
    """See `losses.dpo`.

    Args:
        loss: Kind, beta and the rest.
    """

    uses_reference = True

    def __init__(self, loss: DpoLoss) -> None:
        self.loss = loss

    def examples(self, name: str, path: Path, renderer: Renderer, lengths: Lengths) -> Examples:
        """See `Algorithm.examples`."""
        return pair_examples(name, read_pairs(path), renderer, lengths)

    def shares(self, examples: Sequence[Example]) -> list[float]:
        """See `Algorithm.shares`."""
        return example_shares([example.weight for example in examples])

    def losses(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> Tensor:
        """See `Algorithm.losses`."""
        policy, base, tokens = _sides(values, reference, lengths)
        return self.loss(*policy, *base, *tokens)

    def measures(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> dict[str, Tensor]:
        """The implicit reward `beta log(p / p_ref)` of the chosen answer less that of the rejected
        (`reward`), whether that is above zero, half where it is zero (`accuracy`), and both log-ratios."""
        policy, base, _ = _sides(values.detach(), reference, lengths)
        gain, loss = (ours - theirs for ours, theirs in zip(policy, base, strict=True))
        margin = gain - loss
        return {
            "accuracy": (torch.sign(margin) + 1) / 2,
            "reward": self.loss.beta * margin,
            "chosen_gain": gain,
            "rejected_gain": loss,
        }


def _sides(
    values: Tensor, reference: Tensor | None, lengths: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    if reference is None:
        raise ValueError("DPO needs the reference's values of the same answers")
    sides = (tensor.view(-1, 2).unbind(1) for tensor in (values, reference, lengths))
    return next(sides), next(sides), next(sides)


def make(config: RoundConfig) -> Dpo:
    """The method."""
    loss = config.loss
    return Dpo(DpoLoss(PairLoss(config.loss_kind), loss.beta, loss.label_smoothing, loss.length_normalised))
