"""SimPO: a preference loss on mean log-probabilities, without a reference."""

from torch import Tensor

from trainer.algorithms.pairs import PairAlgorithm, sides
from trainer.losses.simpo import simpo


class Simpo(PairAlgorithm):
    """See `losses.simpo`.

    Args:
        beta: Scale of the reward.
        gamma: Target margin.
    """

    def __init__(self, beta: float, gamma: float) -> None:
        self.beta = beta
        self.gamma = gamma

    def losses(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> Tensor:
        """See `Algorithm.losses`."""
        return simpo(*sides(values), *sides(lengths), beta=self.beta, gamma=self.gamma)

    def measures(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> dict[str, Tensor]:
        """Whether the chosen answer's mean log-probability is the higher one, half where both are alike
        (`accuracy`). Its reward is no difference from a reference, so it is not shown."""
        chosen, rejected = sides(values.detach() / lengths)
        return {"accuracy": ((chosen - rejected).sign() + 1) / 2}
