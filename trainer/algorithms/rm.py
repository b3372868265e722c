"""Reward modelling: a value head learns which of two answers people preferred."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainer.algorithms.base import Algorithm
from trainer.attention import BranchAttention
from trainer.batches import Batch
from trainer.config import RoundConfig
from trainer.data.examples import Example, Examples, pair_examples
from trainer.data.render import Renderer
from trainer.data.rows import read_pairs
from trainer.data.truncate import Lengths
from trainer.logprobs import CausalModel
from trainer.losses.reduce import example_shares
from trainer.losses.reward_model import bradley_terry, centring
from trainer.reward.model import load_reward_model
from trainer.reward.pooling import scores


class RewardModelling(Algorithm):
    """See `losses.reward_model`.

    Args:
        margin: How far apart two scores must be.
        centring: Weight of the squared sum of a pair's scores.
        seed: Decides the new value head.
    """

    is_policy = False
    trained_whole = ("score",)

    def __init__(self, margin: float, centring: float, seed: int) -> None:
        self.margin = margin
        self.centring = centring
        self.seed = seed

    def load(self, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
        """The policy's backbone with a new value head, or a reward model as it was saved."""
        return load_reward_model(folder, seed=self.seed, dtype=dtype)

    def values(self, forward: CausalModel, batch: Batch, attention: BranchAttention) -> Tensor:
        """[sequences]: scores."""
        return scores(forward, batch, attention)

    def examples(self, name: str, path: Path, renderer: Renderer, lengths: Lengths) -> Examples:
        """See `Algorithm.examples`."""
        return pair_examples(name, read_pairs(path), renderer, lengths)

    def shares(self, examples: Sequence[Example]) -> list[float]:
        """See `Algorithm.shares`."""
        return example_shares([example.weight for example in examples])

    def losses(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> Tensor:
        """See `Algorithm.losses`."""
        chosen, rejected = values.view(-1, 2).unbind(1)
        margin = torch.full_like(chosen, self.margin)
        return bradley_terry(chosen, rejected, margin) + centring(chosen, rejected, self.centring)

    def measures(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> dict[str, Tensor]:
        """`reward`: the chosen answer's score less the rejected one's; `accuracy`: whether it is above zero,
        half where it is zero; `off_centre`: the sum of both, which centring keeps near zero."""
        chosen, rejected = values.detach().view(-1, 2).unbind(1)
        return {
            "accuracy": (torch.sign(chosen - rejected) + 1) / 2,
            "reward": chosen - rejected,
            "off_centre": chosen + rejected,
        }


def make(config: RoundConfig) -> RewardModelling:
    """The method."""
    return RewardModelling(config.loss.margin, config.loss.centring, config.seed)
