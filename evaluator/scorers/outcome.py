"""What a scorer is given and what it says: right, wrong, truncated or unscored, never one for another."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from evaluator.statistics.interval import LEVEL, Interval
from evaluator.statistics.wilson import wilson


class Outcome(StrEnum):
    """What became of an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    """Cut off by the token limit before it was done: nothing is known about what it would have said."""
    UNSCORED = "unscored"
    """The scorer could not tell; no fault of the policy is claimed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A policy's answer as it came from the engine."""

    text: str
    finish_reason: str | None = "stop"
    tokens: int | None = None
    """Completion tokens, where the engine counted them."""
    tool_calls: tuple[dict[str, Any], ...] = field(default=())
    """In OpenAI's form."""

    @property
    def truncated(self) -> bool:
        """Whether the engine stopped at a length limit."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Score:
    """An outcome, and in words why."""

    outcome: Outcome
    reason: str

    @classmethod
    def of(cls, right: bool, reason: str) -> "Score":
        """Right or wrong."""
        return cls(Outcome.RIGHT if right else Outcome.WRONG, reason)


TRUNCATED = Score(Outcome.TRUNCATED, "the answer was cut off at its token limit")


def unscored(reason: str) -> Score:
    """A score that says nothing about the policy."""
    return Score(Outcome.UNSCORED, reason)


@dataclass(frozen=True, slots=True)
class Tally:
    """Scores of a suite added up."""

    right: int
    wrong: int
    truncated: int
    unscored: int
    accuracy: Interval
    """Right among right and wrong, with Wilson's interval; null where there are none."""


def tally(scores: Iterable[Score], level: float = LEVEL) -> Tally:
    """Counts outcomes; truncated and unscored answers stand apart from the accuracy."""
    counts = Counter(score.outcome for score in scores)
    right, wrong = counts[Outcome.RIGHT], counts[Outcome.WRONG]
    return Tally(
        right, wrong, counts[Outcome.TRUNCATED], counts[Outcome.UNSCORED], wilson(right, right + wrong, level)
    )
