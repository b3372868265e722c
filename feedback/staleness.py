"""How far pairs lie behind the policy now served: what they describe may no longer be there to learn from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from feedback.rows import Row
from feedback.rule import spoken_by


@dataclass(frozen=True, slots=True)
class StalenessReport:
    """Rows by distance from the policy now served."""

    current: str
    rows: int
    by_distance: dict[int, int]
    """Steps back along the parents, from 0 for the current policy; a row counts by its farthest side."""
    unrelated: int
    """A side was spoken by a policy that is no ancestor of the current one: imports, siblings."""
    unspoken: int
    """Every side was written by a person."""

    def shares(self) -> dict[str, float | None]:
        """Each number over all rows, by distance, `unrelated` and `unspoken`; null without rows."""
        counts = {str(distance): rows for distance, rows in self.by_distance.items()}
        counts |= {"unrelated": self.unrelated, "unspoken": self.unspoken}
        return {name: rows / self.rows if self.rows else None for name, rows in counts.items()}

    def content(self) -> dict[str, Any]:
        """The report in JSON types."""
        return {
            "current": self.current,
            "rows": self.rows,
            "by_distance": {str(distance): rows for distance, rows in self.by_distance.items()},
            "unrelated": self.unrelated,
            "unspoken": self.unspoken,
            "shares": self.shares(),
        }


def lineage(current: str, parents: Mapping[str, str | None]) -> dict[str, int]:
    """The current policy and its ancestors, each with its distance.

    Raises:
        ValueError: The parents run in a circle.
    """
    distances: dict[str, int] = {}
    policy: str | None = current
    while policy is not None:
        if policy in distances:
            raise ValueError(f"policy {policy} is its own ancestor")
        distances[policy] = len(distances)
        policy = parents.get(policy)
    return distances


def staleness(rows: Iterable[Row], current: str, parents: Mapping[str, str | None]) -> StalenessReport:
    """Counts rows by how far their policies lie behind.

    Args:
        rows: Read once.
        current: The policy now served.
        parents: Each policy version's parent, null or absent for the first.

    Raises:
        ValueError: The parents run in a circle.
    """
    distances = lineage(current, parents)
    by_distance: Counter[int] = Counter()
    total = unrelated = unspoken = 0
    for row in rows:
        total += 1
        sides = [distances.get(policy) for policy in spoken_by(row)]
        known = [distance for distance in sides if distance is not None]
        if not sides:
            unspoken += 1
        elif len(known) < len(sides):
            unrelated += 1
        else:
            by_distance[max(known)] += 1
    return StalenessReport(current, total, dict(sorted(by_distance.items())), unrelated, unspoken)
