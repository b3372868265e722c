"""Bradley-Terry strengths of policies from wins, losses and ties, with intervals, where they exist.

P(i beats j) = sigmoid(s_i - s_j) (Bradley and Terry 1952); a tie is half a win for each side. Two things can
keep the maximum-likelihood strengths from existing, and both are told rather than smoothed over:

- policies never compared, not even through others, share no ranking: each connected group has its own;
- in a group some policies never lost or tied against the rest: their lead has no finite estimate (Ford 1957:
  it exists exactly when every policy can be reached from every other along wins and ties).

Intervals are percentiles of a bootstrap that draws clusters (prompts), since votes on one prompt are not
independent. A replicate without finite estimate counts as below the lower and above the upper end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPLICATES = 1_000
LEVEL = 0.95
MAX_STEPS = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Match:
    """One vote between two policies."""

    first: str
    second: str
    score: float
    """1 where the first won, 0 where the second did, 0.5 for a tie."""
    cluster: str
    """What votes share that are not independent: the prompt."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% interval; an end is null where too many replicates have no finite estimate."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Strength:
    """One policy. Strengths are log odds; their mean over the group is zero."""

    policy: str
    matches: int
    won: float
    """Matches won, a tie as half."""
    strength: Interval | None
    """Null where the group is separable."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The first policy's strength minus the second's, as log odds of winning."""

    first: str
    second: str
    log_odds: Interval


@dataclass(frozen=True, slots=True)
class Group:
    """Policies that can be ranked against one another."""

    strengths: tuple[Strength, ...]
    """Strongest first; by name where the group is separable."""
    leads: tuple[Lead, ...]
    """Every two, the stronger first; none where the group is separable."""
    separable: bool
    """Some policy's lead over the others has no finite estimate."""
    clusters: int
    unstable_replicates: int
    """Of the bootstrap: those without finite estimate."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The groups of policies compared with one another, the largest first."""

    groups: tuple[Group, ...]
    replicates: int
    seed: int

    @property
    def common(self) -> bool:
        """Whether all policies share one ranking with finite strengths."""
        return len(self.groups) == 1 and not self.groups[0].separable

    def content(self) -> dict[str, Any]:
        """The ranking in JSON types."""
        return {"common": self.common, **asdict(self)}


def rank(matches: Iterable[Match], *, replicates: int = REPLICATES, seed: int = 0) -> Ranking:
    """Ranks policies by their matches; matches of a policy with itself say nothing and are left out.

    Args:
        matches: In any order; the result does not depend on it.
        replicates: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        ValueError: A score is none of 0, 0.5 and 1.
    """
    told = sorted(
        (match for match in matches if match.first != match.second),
        key=lambda match: (match.cluster, match.first, match.second, match.score),
    )
    for match in told:
        if match.score not in (0, 0.5, 1):
            raise ValueError(f"a match of {match.first} and {match.second} has score {match.score}")
    groups = [
        _ranked(policies, [match for match in told if match.first in policies], replicates, seed)
        for policies in connected_groups(told)
    ]
    return Ranking(tuple(groups), replicates, seed)


def connected_groups(matches: Iterable[Match]) -> list[frozenset[str]]:
    """The sets of policies compared with one another, directly or through others; the largest first."""
    group_of: dict[str, set[str]] = {}
    for match in matches:
        ours, theirs = (group_of.get(name, {name}) for name in (match.first, match.second))
        if ours is not theirs:
            ours |= theirs
            group_of.update(dict.fromkeys(ours, ours))
    distinct = {frozenset(group) for group in group_of.values()}
    return sorted(distinct, key=lambda group: (-len(group), sorted(group)))


def _ranked(policies: frozenset[str], matches: Sequence[Match], replicates: int, seed: int) -> Group:
    names = sorted(policies)
    table = _Table(names, matches)
    wins = table.wins(np.ones((1, table.clusters)))
    separable = not bool(strongly_connected(wins)[0])
    if separable:
        strengths = [
            Strength(name, table.played[place], table.won[place], None) for place, name in enumerate(names)
        ]
        return Group(tuple(strengths), (), True, table.clusters, 0)
    estimate = fit(wins)[0]
    drawn = _bootstrap(table, replicates, seed)
    order = sorted(range(len(names)), key=lambda place: (-estimate[place], names[place]))

    def interval(values: Floats, value: float) -> Interval:
        low, high = percentile_ends(values, drawn.unstable) if table.clusters > 1 else (None, None)
        return Interval(value, low, high)

    strengths = [
        Strength(
            names[place],
            table.played[place],
            table.won[place],
            interval(drawn.strengths[:, place], float(estimate[place])),
        )
        for place in order
    ]
    leads = [
        Lead(
            names[one],
            names[other],
            interval(
                drawn.strengths[:, one] - drawn.strengths[:, other],
                float(estimate[one] - estimate[other]),
            ),
        )
        for rank, one in enumerate(order)
        for other in order[rank + 1 :]
    ]
    return Group(tuple(strengths), tuple(leads), False, table.clusters, drawn.unstable)


class _Table:
    """Matches as arrays: for each, the cells of the win table it adds to, and its cluster."""

    def __init__(self, names: Sequence[str], matches: Sequence[Match]) -> None:
        place = {name: index for index, name in enumerate(names)}
        cluster = {name: index for index, name in enumerate(dict.fromkeys(m.cluster for m in matches))}
        first = np.array([place[match.first] for match in matches])
        second = np.array([place[match.second] for match in matches])
        score = np.array([match.score for match in matches], dtype=np.float64)
        self._size = len(names)
        self._cells = np.concatenate([first * self._size + second, second * self._size + first])
        self._scores = np.concatenate([score, 1 - score])
        self._clusters = np.tile(np.array([cluster[match.cluster] for match in matches]), 2)
        self.clusters = len(cluster)
        total = self.wins(np.ones((1, self.clusters)))[0]
        self.won: list[float] = total.sum(axis=1).tolist()
        self.played: list[int] = (total + total.T).sum(axis=1).astype(int).tolist()

    def wins(self, weights: Floats) -> Floats:
        """The win tables, (replicates, policies, policies), with each cluster weighted.

        Args:
            weights: (replicates, clusters).
        """
        tables = np.empty((len(weights), self._size**2))
        for place, row in enumerate(weights):
            tables[place] = np.bincount(self._cells, self._scores * row[self._clusters], self._size**2)
        return tables.reshape(-1, self._size, self._size)


@dataclass(frozen=True, slots=True)
class _Drawn:
    strengths: Floats
    """(stable replicates, policies)."""
    unstable: int


def _bootstrap(table: _Table, replicates: int, seed: int) -> _Drawn:
    generator = np.random.default_rng(seed)
    even = np.full(table.clusters, 1 / table.clusters)
    wins = np.concatenate(
        [
            table.wins(generator.multinomial(table.clusters, even, size=1).astype(np.float64))
            for _ in range(replicates)
        ]
    )
    stable = strongly_connected(wins)
    return _Drawn(fit(wins[stable]), int((~stable).sum()))


def strongly_connected(wins: Floats) -> NDArray[np.bool_]:
    """For each win table, (tables, policies, policies), whether wins and ties lead from each to each."""
    size = wins.shape[-1]
    reach: Floats = ((wins > 0) | np.eye(size, dtype=bool)).astype(np.float64)
    for _ in range(max(1, size - 1).bit_length()):
        reach = (reach @ reach > 0).astype(np.float64)
    return reach.reshape(-1, size * size).min(axis=1) > 0


def fit(wins: Floats) -> Floats:
    """Maximum-likelihood strengths of win tables, which must be strongly connected, by Newton's method.

    The log-likelihood is concave; steps are at most 1 in any strength, which keeps early ones from running
    off where wins are nearly one-sided.

    Args:
        wins: (tables, policies, policies): wins of row over column, ties half.

    Returns:
        (tables, policies), each row with mean zero.

    Raises:
        ArithmeticError: It did not converge.
    """
    size = wins.shape[-1]
    played = wins + wins.transpose(0, 2, 1)
    tolerance: Floats = 1e-12 * played.sum(axis=(1, 2))
    strengths: Floats = np.zeros(wins.shape[:2])
    for _ in range(MAX_STEPS):
        odds = strengths[:, :, None] - strengths[:, None, :]
        chance: Floats = 1 / (1 + np.exp(-odds))
        slope: Floats = (wins - played * chance).sum(axis=2)
        if bool((np.abs(slope).max(axis=1) <= tolerance).all()):
            return strengths
        weight: Floats = played * chance * (1 - chance)
        curvature: Floats = np.eye(size) * weight.sum(axis=2)[:, :, None] - weight + 1 / size
        step: Floats = np.linalg.solve(curvature, slope[:, :, None])[:, :, 0].astype(np.float64)
        strengths = strengths + step / np.abs(step).max(axis=1, keepdims=True).clip(min=1)
    raise ArithmeticError("the strengths did not converge")


def percentile_ends(values: Floats, unstable: int, level: float = LEVEL) -> tuple[float | None, float | None]:
    """Ends of the percentile interval of bootstrap values.

    Args:
        values: Of the stable replicates.
        unstable: Replicates without a finite value; each counts as below the lower and above the upper end.
        level: Of confidence.
    """
    tail = int((len(values) + unstable) * (1 - level) / 2)
    if len(values) == 0 or unstable > tail:
        return None, None
    ordered = np.sort(values)
    return float(ordered[tail - unstable]), float(ordered[len(ordered) - 1 - (tail - unstable)])
