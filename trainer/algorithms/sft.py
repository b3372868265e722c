"""Supervised fine-tuning: every answer token of a step counts alike."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from trainer.algorithms.base import Algorithm
from trainer.config import RoundConfig
from trainer.data.examples import Example, Examples, demonstration_examples
from trainer.data.render import Renderer
from trainer.data.rows import read_demonstrations
from trainer.data.truncate import Lengths
from trainer.losses.reduce import token_shares
from trainer.losses.sft import negative_log_likelihood


class Sft(Algorithm):
    """See `losses.sft`."""

    snapshot_kind = "demonstrations"

    def examples(self, name: str, path: Path, renderer: Renderer, lengths: Lengths) -> Examples:
        """See `Algorithm.examples`."""
        return demonstration_examples(name, read_demonstrations(path), renderer, lengths)

    def shares(self, examples: Sequence[Example]) -> list[float]:
        """See `Algorithm.shares`."""
        return token_shares(
            [example.weight for example in examples], [len(example.answers[0]) for example in examples]
        )

    def losses(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> Tensor:
        """See `Algorithm.losses`."""
        return negative_log_likelihood(values)

    def measures(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> dict[str, Tensor]:
        """Nothing beside the loss, whose exponential is the perplexity of a token."""
        return {}


def make(config: RoundConfig) -> Sft:
    """The method."""
    return Sft()
