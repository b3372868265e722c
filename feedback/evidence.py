"""What the rule for pairs reads: answers, the votes of raters on them, and the signals of their users.

These are plain values. Whoever builds them (a repository from rows, a test by hand) vouches for two things:
sides are already turned back into answers (`a` and `b`, not left and right), and a thread holds every answer
given at one point of one conversation.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from feedback.rows import DemonstrationRow, PreferenceRow, Prompt

Choice = Literal["a", "b", "tie", "both_bad", "skip"]
Pool = Literal["preference", "evaluation"]
SignalKind = Literal[
    "thumb",
    "rating",
    "comment",
    "edit",
    "regenerate",
    "retry",
    "copy",
    "escalate",
    "outcome",
    "metric",
]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to one prompt."""

    id: str | None
    """The response's id, `<id>/<choice>` for further choices of one response; null for written text."""
    prompt: Prompt | None
    """Null where the prompt holds more than text (`rows.turns_of`)."""
    prompt_hash: str
    history_hash: str
    text: str
    policy: str
    decode: str | None
    created_at: datetime
    user: str | None = None
    """The end user who asked, if the client named one."""
    errored: bool = False
    """It failed, was cut off, or its client left."""
    blocked: bool = False
    """A guardrail blocked or changed it."""
    probe: bool = False
    """We asked ourselves."""
    shown: bool = True
    """A user saw it; shadow answers are not shown."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One rater's choice between two answers."""

    id: str
    rater: str
    choice: Choice
    created_at: datetime
    pool: Pool = "preference"
    flagged: bool = False
    """The rater failed gold items."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt and every standing vote on them."""

    id: str
    a: Answer
    b: Answer
    votes: tuple[Vote, ...] = ()
    gold: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    """What a user did about a response."""

    id: str
    response_id: str
    kind: SignalKind
    created_at: datetime
    user: str | None = None
    value: float | None = None
    """A thumb's +1 or -1, or a rating."""
    text: str | None = None
    """An edit's corrected text."""


@dataclass(frozen=True, slots=True)
class Thread:
    """Every answer given at one point of one conversation, and every signal about them."""

    id: str
    answers: tuple[Answer, ...]
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedPair:
    """A pair read from a file."""

    id: str
    row: PreferenceRow


@dataclass(frozen=True, slots=True)
class ImportedDemonstration:
    """A demonstration read from a file."""

    id: str
    row: DemonstrationRow


Candidate = Comparison | Thread | ImportedPair | ImportedDemonstration

_STAGES: dict[type[Candidate], int] = {
    Comparison: 0,
    Thread: 1,
    ImportedPair: 2,
    ImportedDemonstration: 3,
}


def order_of(candidate: Candidate) -> tuple[int, str]:
    """Where a candidate stands in the order the rule reads: comparisons, threads, imports; each by id.

    Ids are UUIDv7 in their usual text, so the order within a kind is that of time.
    """
    return _STAGES[type(candidate)], candidate.id
