"""Gold items: comparisons with a known answer, mixed in unannounced, that tell if a rater pays attention."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GoldRule:
    """How often gold is shown, and when a rater fails.

    Raises:
        ValueError: A setting is out of its range.
    """

    share: float = 0.1
    """Of the items shown, 0 to 1."""
    min_seen: int = 5
    """Gold items before anything is concluded."""
    min_right: float = 0.7
    """Share of right answers below which a rater has failed."""

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.min_right <= 1):
            raise ValueError(f"share {self.share} and min_right {self.min_right} lie between 0 and 1")
        if self.min_seen < 1:
            raise ValueError(f"min_seen is {self.min_seen}; at least 1 is needed")


@dataclass(frozen=True, slots=True)
class Standing:
    """What a rater's gold items say; skipped ones do not count."""

    state: Literal["unproven", "trusted", "failed"]
    seen: int
    right: int


def standing(answers: Iterable[tuple[str, str]], rule: GoldRule) -> Standing:
    """Judges a rater by their gold items.

    Args:
        answers: Expected and given choice of each gold item.
        rule: When a rater fails.
    """
    given = [(expected, choice) for expected, choice in answers if choice != "skip"]
    right = sum(expected == choice for expected, choice in given)
    if len(given) < rule.min_seen:
        return Standing("unproven", len(given), right)
    return Standing("failed" if right < rule.min_right * len(given) else "trusted", len(given), right)


def gold_is_due(rater: str, position: int, rule: GoldRule, *, secret: str) -> bool:
    """Whether a rater's item number `position` is to be gold; repeatable; the secret keeps it unforeseen."""
    drawn = hashlib.blake2b(f"{rater}\n{position}".encode(), key=secret.encode()[:64], digest_size=8).digest()
    return int.from_bytes(drawn) < rule.share * 2**64
