"""How far raters agree, with chance taken out where that is defined, and null where it is not.

Ratings are nominal labels: item, rater, label. A rater has one label an item. Skips are no ratings.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import comb
from typing import Any

from feedback.evidence import Comparison
from feedback.votes import standing_votes

Ratings = Mapping[str, Mapping[str, str]]
"""Item to rater to label."""


@dataclass(frozen=True, slots=True)
class Cohen:
    """Two raters on the items both rated."""

    raters: tuple[str, str]
    items: int
    raw: float
    kappa: float | None


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """Agreement over all items with at least two ratings."""

    items: int
    raters: int
    ratings: int
    raw: float | None
    cohen: tuple[Cohen, ...]
    """Each two raters that share an item."""
    mean_kappa: float | None
    """Mean of the defined kappas, weighted by shared items."""
    alpha: float | None
    """Krippendorff's, nominal."""

    def content(self) -> dict[str, Any]:
        """The report in JSON types."""
        return asdict(self)


def raw_agreement(ratings: Ratings) -> float | None:
    """Share of the pairs of ratings of one item that agree, over all items; null where no item has two."""
    counts = [Counter(labels.values()) for labels in ratings.values()]
    pairs = sum(comb(count.total(), 2) for count in counts)
    equal = sum(comb(number, 2) for count in counts for number in count.values())
    return equal / pairs if pairs else None


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Cohen's kappa of two raters' labels of the same items (Cohen 1960, eq. 1).

    Null without items, and where chance alone gives full agreement: both always say the same one label.

    Raises:
        ValueError: The two do not have as many labels.
    """
    total = len(first)
    if total == 0 and not second:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True))
    ours, theirs = Counter(first), Counter(second)
    expected = sum(ours[label] * theirs[label] for label in ours)
    if expected == total * total:
        return None
    return (observed * total - expected) / (total * total - expected)


def krippendorff_alpha(ratings: Ratings) -> float | None:
    """Krippendorff's alpha for nominal data, any number of raters, missing ratings allowed.

    From the coincidence matrix (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", C). Null
    where no item has two ratings, or all pairable ratings are the same label: nothing varies, so nothing can
    be explained.
    """
    pairable = [Counter(labels.values()) for labels in ratings.values() if len(labels) > 1]
    totals: Counter[str] = Counter()
    for count in pairable:
        totals.update(count)
    n = totals.total()
    expected = n * n - sum(number * number for number in totals.values())
    if expected == 0:
        return None
    disagreement = sum(_disagreeing_pairs(count) / (count.total() - 1) for count in pairable)
    return 1 - (n - 1) * disagreement / expected


def _disagreeing_pairs(count: Counter[str]) -> int:
    """Ordered pairs of one item's ratings that differ."""
    total = count.total()
    return total * total - sum(number * number for number in count.values())


def agreement(ratings: Ratings) -> AgreementReport:
    """Every measure at once."""
    shared = {item: labels for item, labels in ratings.items() if len(labels) > 1}
    cohen = tuple(_cohens(shared))
    defined = [(pair.kappa, pair.items) for pair in cohen if pair.kappa is not None]
    weight = sum(items for _, items in defined)
    return AgreementReport(
        items=len(shared),
        raters=len({rater for labels in shared.values() for rater in labels}),
        ratings=sum(len(labels) for labels in shared.values()),
        raw=raw_agreement(shared),
        cohen=cohen,
        mean_kappa=sum(kappa * items for kappa, items in defined) / weight if weight else None,
        alpha=krippendorff_alpha(shared),
    )


def _cohens(ratings: Ratings) -> Iterable[Cohen]:
    labels: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for given in ratings.values():
        for one, other in combinations(sorted(given), 2):
            labels[one, other].append((given[one], given[other]))
    for raters, pairs in sorted(labels.items()):
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        same = sum(a == b for a, b in pairs)
        yield Cohen(raters, len(pairs), same / len(pairs), cohen_kappa(first, second))


def ratings_of(comparisons: Iterable[Comparison]) -> dict[str, dict[str, str]]:
    """The standing votes as ratings; skips and flagged raters left out, of either pool."""
    return {
        comparison.id: {
            vote.rater: vote.choice
            for vote in standing_votes(comparison.votes)
            if vote.choice != "skip" and not vote.flagged
        }
        for comparison in comparisons
    }
