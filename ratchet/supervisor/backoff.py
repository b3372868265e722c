"""How long to wait before the next try."""

import random
from dataclasses import dataclass, field

FIRST_S = 1.0
LONGEST_S = 60.0
STEADY_S = 60.0
"""A process that lived this long counts as well again."""


@dataclass
class Backoff:
    """Doubles from `first` to `longest`; each wait lies between half of it and all of it, at random.

    Attributes:
        first: Seconds before the first retry.
        longest: Bound of the wait, in seconds.
        failures: Tries that failed since the last `reset`.
    """

    first: float = FIRST_S
    longest: float = LONGEST_S
    failures: int = 0
    draw: random.Random = field(default_factory=random.Random)

    def next(self) -> float:
        """Counts a failure and returns the seconds to wait."""
        whole = min(self.first * 2.0 ** min(self.failures, 30), self.longest)
        self.failures += 1
        return whole * self.draw.uniform(0.5, 1.0)

    def lived(self, seconds: float) -> None:
        """Tells how long the last try lived; long enough, and the count begins anew."""
        if seconds >= STEADY_S:
            self.failures = 0
