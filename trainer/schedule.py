"""What changes as a round goes on: the learning rate by step, candidates by distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, total: int) -> float:
    """The learning rate of a step.

    It rises in a line over the warm-up, reaching `lr` at its last step, then keeps, or falls in a line or
    half a cosine wave to `lr * final_lr_share`, which the step behind the last would have.

    Args:
        config: Rate, schedule, warm-up.
        step: From 0.
        total: Steps of the whole round.
    """
    warmup = math.ceil(config.warmup * total)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.lr
    progress = (step - warmup) / max(1, total - warmup)
    fall = progress if config.schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return config.lr * (1 - fall * (1 - config.final_lr_share))


@dataclass
class KlSchedule:
    """Distances at which candidates are kept.

    Attributes:
        distances: Ascending, in nats an answer.
        budget: The farthest a policy may go; None is no bound.
        reached: How many of the distances lie behind.
    """

    distances: Sequence[float]
    budget: float | None = None
    reached: int = 0

    def passes(self, kl: float) -> bool:
        """Whether a measured distance reaches the schedule's next one, or several: one candidate is due."""
        before = self.reached
        while self.reached < len(self.distances) and kl >= self.distances[self.reached]:
            self.reached += 1
        return self.reached > before

    def spent(self, kl: float) -> bool:
        """Whether a measured distance is beyond the budget."""
        return self.budget is not None and kl > self.budget
