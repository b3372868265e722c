"""Constraints that an instruction puts on an answer and that a program can check."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from evaluator.scorers.format import holds_json
from evaluator.scorers.outcome import TRUNCATED, Answer, Score, unscored

_SENTENCE = re.compile(r"[^.!?\n]*\w[^.!?\n]*(?:[.!?]+|$|\n)")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)


class _Constraint(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Words(_Constraint):
    """So many words, separated by white space."""

    kind: Literal["words"]
    at_least: int = Field(default=0, ge=0)
    at_most: PositiveInt | None = None

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        count = len(text.split())
        return self.at_least <= count and (self.at_most is None or count <= self.at_most)


class Sentences(_Constraint):
    """So many sentences."""

    kind: Literal["sentences"]
    at_least: int = Field(default=0, ge=0)
    at_most: PositiveInt | None = None

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        count = len(_SENTENCE.findall(text))
        return self.at_least <= count and (self.at_most is None or count <= self.at_most)


class Bullets(_Constraint):
    """Exactly so many listed points."""

    kind: Literal["bullets"]
    exactly: PositiveInt

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        return len(_BULLET.findall(text)) == self.exactly


class Mentions(_Constraint):
    """A word or phrase, at word borders and in any case, at least so often; never where that is zero."""

    kind: Literal["mentions"]
    phrase: str = Field(min_length=1)
    times: int = Field(ge=0)

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        found = len(re.findall(rf"(?<!\w){re.escape(self.phrase)}(?!\w)", text, re.IGNORECASE))
        return found >= self.times if self.times else found == 0


class LetterCase(_Constraint):
    """Every cased letter in one case."""

    kind: Literal["case"]
    case: Literal["lower", "upper"]

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        return any(letter.isalpha() for letter in text) and text == getattr(text, self.case)()


class Ends(_Constraint):
    """The answer's last words, exactly, but for white space."""

    kind: Literal["ends"]
    phrase: str = Field(min_length=1)

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        return text.rstrip().endswith(self.phrase)


class Json(_Constraint):
    """The whole answer is one JSON document, in a code fence or without."""

    kind: Literal["json"]

    def holds(self, text: str) -> bool:
        """Whether the answer keeps it."""
        return holds_json(text)


Constraint = Annotated[
    Words | Sentences | Bullets | Mentions | LetterCase | Ends | Json, Field(discriminator="kind")
]


def score_instructions(answer: Answer, constraints: Sequence[Constraint]) -> Score:
    """Right where every constraint holds; the reason names those that do not. An empty answer keeps none."""
    if not constraints:
        return unscored("the suite gives no constraint")
    if answer.truncated:
        return TRUNCATED
    if not answer.text.strip():
        return Score.of(False, "the answer is empty")
    broken = [one for one in constraints if not one.holds(answer.text)]
    return Score.of(
        not broken, "broken: " + "; ".join(map(_said, broken)) if broken else "every constraint holds"
    )


def _said(constraint: Constraint) -> str:
    return " ".join(f"{name}={value}" for name, value in constraint.model_dump(exclude_defaults=True).items())
