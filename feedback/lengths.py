"""How far length alone explains what people chose: the commonest bias of preference data."""

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

DEFAULT_BOUND = 0.6
"""Share of wins of the longer answer above which the report warns."""

ALL = "all"


@dataclass(frozen=True, slots=True)
class LengthLine:
    """Pairs of one source. Lengths are in characters."""

    pairs: int
    longer_wins: int
    shorter_wins: int
    equal: int
    longer_share: float | None
    """Of the pairs of unequal length; null where there are none."""
    low: float | None
    high: float | None
    """95% Wilson interval of the share."""
    mean_difference: float | None
    """Chosen minus rejected; null without pairs."""
    mean_chosen: float | None
    mean_rejected: float | None


@dataclass(frozen=True, slots=True)
class LengthReport:
    """The report over all pairs (`all`) and by source, with a sentence for each line over the bound."""

    bound: float
    lines: dict[str, LengthLine]
    warnings: tuple[str, ...]

    def content(self) -> dict[str, Any]:
        """The report in JSON types."""
        lines = {name: asdict(line) for name, line in self.lines.items()}
        return {"bound": self.bound, "by_source": lines, "warnings": list(self.warnings)}


@dataclass(slots=True)
class _Count:
    longer: int = 0
    shorter: int = 0
    equal: int = 0
    chosen: int = 0
    rejected: int = 0

    def line(self) -> LengthLine:
        unequal = self.longer + self.shorter
        pairs = unequal + self.equal
        low, high = wilson(self.longer, unequal) if unequal else (None, None)
        return LengthLine(
            pairs=pairs,
            longer_wins=self.longer,
            shorter_wins=self.shorter,
            equal=self.equal,
            longer_share=self.longer / unequal if unequal else None,
            low=low,
            high=high,
            mean_difference=(self.chosen - self.rejected) / pairs if pairs else None,
            mean_chosen=self.chosen / pairs if pairs else None,
            mean_rejected=self.rejected / pairs if pairs else None,
        )


class LengthTally:
    """Counts pairs as they come by."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, _Count] = defaultdict(_Count)

    def add(self, chosen: str, rejected: str, source: str) -> None:
        """Takes one pair."""
        ours, theirs = len(chosen), len(rejected)
        for name in (ALL, source):
            count = self._counts[name]
            count.longer += ours > theirs
            count.shorter += ours < theirs
            count.equal += ours == theirs
            count.chosen += ours
            count.rejected += theirs

    def report(self, bound: float = DEFAULT_BOUND) -> LengthReport:
        """The report on what was taken so far.

        A line warns when the longer answer's share of wins is over the bound and its interval excludes one
        half, so that a handful of pairs does not raise it.

        Args:
            bound: Share of wins, 0.5 to 1.

        Raises:
            ValueError: The bound is out of its range.
        """
        if not 0.5 <= bound <= 1:
            raise ValueError(f"the length bound is {bound}; it lies between 0.5 and 1")
        names = [ALL, *sorted(self._counts.keys() - {ALL})]
        lines = {name: self._counts[name].line() for name in names}
        warnings = [_warning(name, line, bound) for name, line in lines.items() if _exceeds(line, bound)]
        return LengthReport(bound, lines, tuple(warnings))


def _exceeds(line: LengthLine, bound: float) -> bool:
    share, low = line.longer_share, line.low
    return share is not None and low is not None and share > bound and low > 0.5


def _warning(name: str, line: LengthLine, bound: float) -> str:
    where = "all sources" if name == ALL else f"source {name}"
    unequal = line.longer_wins + line.shorter_wins
    return (
        f"{where}: the longer answer wins {line.longer_wins} of {unequal} pairs of unequal length"
        f" ({line.longer_share:.0%}, bound {bound:.0%}), by a mean {line.mean_difference:+.0f} characters;"
        " training on them teaches length: balance the lengths or use a length-normalised loss"
    )


def wilson(hits: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927), 95% by default.

    Raises:
        ValueError: The total is not positive.
    """
    if total <= 0:
        raise ValueError("a proportion of nothing has no interval")
    share, spread = hits / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / total / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
