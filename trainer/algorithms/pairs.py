"""What methods that learn from pairs have in common: every pair counts by its weight, chosen comes first."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from trainer.algorithms.base import Algorithm
from trainer.data.examples import Example, Examples, pair_examples
from trainer.data.render import Renderer
from trainer.data.rows import read_pairs
from trainer.data.truncate import Lengths
from trainer.losses.reduce import example_shares


class PairAlgorithm(Algorithm):
    """A method on the log-probabilities of a chosen and a rejected answer."""

    snapshot_kind = "pairs"

    def examples(self, name: str, path: Path, renderer: Renderer, lengths: Lengths) -> Examples:
        """See `Algorithm.examples`."""
        return pair_examples(name, read_pairs(path), renderer, lengths)

    def shares(self, examples: Sequence[Example]) -> list[float]:
        """See `Algorithm.shares`."""
        return example_shares([example.weight for example in examples])


def sides(values: Tensor) -> tuple[Tensor, Tensor]:
    """[sequences] to the pairs' chosen and rejected ones, [pairs] each."""
    chosen, rejected = values.view(-1, 2).unbind(1)
    return chosen, rejected
