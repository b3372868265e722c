"""The rule's settings, and the checks that every kind of evidence passes alike."""

import hashlib
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from feedback.evidence import Answer, Candidate, order_of
from feedback.rows import (
    HUMAN_EDIT,
    DemonstrationRow,
    DropReason,
    PreferenceRow,
    Row,
    Source,
    canonical,
    utc_text,
)
from ratchet.prompts import Split, split

DEFAULT_WEIGHTS: Mapping[Source, float] = {
    Source.COMPARISON: 1.0,
    Source.EDIT: 1.0,
    Source.THUMB: 0.5,
    Source.RATING: 0.5,
    Source.COPY: 0.3,
    Source.ESCALATE: 0.3,
    Source.REGENERATE: 0.3,
    Source.RETRY: 0.2,
    Source.IMPORT: 1.0,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as a preference, and which preferences are wanted.

    Raises:
        ValueError: A setting is out of its range.
    """

    min_votes: int = 1
    """Votes a comparison needs; skips, evaluation raters and flagged raters do not count."""
    min_agreement: float = 0.6
    """Share of the counted votes, ties and both-bad among them, that the winner needs; 0.5 to 1."""
    sources: frozenset[Source] = frozenset(Source)
    policies: frozenset[str] | None = None
    """Policy versions wanted; null wants all. Imports are named too, written text is nobody's policy."""
    policy_match: Literal["both", "either"] = "both"
    """Whether both sides or one must be spoken by a wanted policy."""
    since: datetime | None = None
    until: datetime | None = None
    """Last vote or signal at or after `since` and before `until`; a row without time is in no window."""
    max_per_user: int | None = None
    """Rows that one end user may give; the earliest are kept. Rows without a user are not capped."""
    weights: Mapping[Source, float] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    """Weight of a row by source; an import keeps its own."""

    def __post_init__(self) -> None:
        if self.min_votes < 1:
            raise ValueError(f"min_votes is {self.min_votes}; at least 1 is needed")
        if not 0.5 <= self.min_agreement <= 1:
            raise ValueError(f"min_agreement is {self.min_agreement}; it lies between 0.5 and 1")
        if self.max_per_user is not None and self.max_per_user < 1:
            raise ValueError(f"max_per_user is {self.max_per_user}; at least 1 is needed")
        for source in Source:
            weight = self.weights.get(source)
            if weight is None or not (math.isfinite(weight) and weight > 0):
                raise ValueError(f"the weight of {source} is {weight}; a positive number is needed")

    def content(self) -> dict[str, Any]:
        """Every setting in JSON types, as a snapshot's manifest keeps it."""
        return {
            "min_votes": self.min_votes,
            "min_agreement": self.min_agreement,
            "sources": sorted(self.sources),
            "policies": None if self.policies is None else sorted(self.policies),
            "policy_match": self.policy_match,
            "since": None if self.since is None else utc_text(self.since),
            "until": None if self.until is None else utc_text(self.until),
            "max_per_user": self.max_per_user,
            "weights": {source.value: self.weights[source] for source in Source},
        }


RowT = TypeVar("RowT", bound=Row, covariant=True)


@dataclass(frozen=True, slots=True)
class Kept(Generic[RowT]):
    """A row, with who stands behind it."""

    row: RowT
    raters: tuple[str, ...] = ()
    """Raters who voted, or users who signalled."""
    agreement: float | None = None
    """The winner's share of the votes; null where nobody voted."""
    user: str | None = None
    """The end user whose prompt it was."""
    inputs: tuple[str, ...] = ()
    """Ids of the comparison, votes, signals or import behind it."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Evidence that became no row, and why."""

    reason: DropReason
    inputs: tuple[str, ...]


Pair = Kept[PreferenceRow]
Demonstration = Kept[DemonstrationRow]
AnyKept = Kept[Row]
Outcome = AnyKept | Dropped


def in_order(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Passes the candidates on, in the order of `evidence.order_of`: it makes the outcome repeatable.

    Raises:
        ValueError: A candidate comes twice or out of its order.
    """
    last: tuple[int, str] | None = None
    for candidate in candidates:
        place = order_of(candidate)
        if last is not None and place <= last:
            raise ValueError(f"candidate {candidate.id} is repeated or out of order")
        last = place
        yield candidate


def is_held_out(prompt_hash: str, held_out: Container[str]) -> bool:
    """Whether nothing on this prompt may train: by its split, or by a held-out suite that has it."""
    return split(prompt_hash) is Split.HELDOUT or prompt_hash in held_out


def unfit(answers: Sequence[Answer], held_out: Container[str]) -> DropReason | None:
    """Why answers to one prompt can never become a row, whatever was said about them."""
    if any(is_held_out(answer.prompt_hash, held_out) for answer in answers):
        return DropReason.HELD_OUT
    if any(answer.probe for answer in answers):
        return DropReason.PROBE
    if any(answer.prompt is None for answer in answers):
        return DropReason.UNSUPPORTED
    if len({(answer.prompt_hash, answer.history_hash) for answer in answers}) > 1:
        return DropReason.DIFFERENT_PROMPTS
    if any(answer.errored for answer in answers):
        return DropReason.ERRORED
    if any(answer.blocked for answer in answers):
        return DropReason.BLOCKED
    return unusable_texts([answer.text for answer in answers])


def unusable_texts(texts: Sequence[str]) -> DropReason | None:
    """Why texts can teach nothing: one is empty, or all are the same."""
    stripped = [text.strip() for text in texts]
    if not all(stripped):
        return DropReason.EMPTY
    if len(texts) > 1 and len(set(stripped)) == 1:
        return DropReason.IDENTICAL
    return None


KeptT = TypeVar("KeptT", bound=AnyKept)


class Gate:
    """The last checks, which need to know what was kept before: filter, repetition, cap per user."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._taken: set[bytes] = set()
        self._per_user: Counter[str] = Counter()

    def admit(self, kept: KeptT) -> KeptT | Dropped:
        """The row, or why it is left out."""
        identity, repeated = _identity(kept.row)
        reason = self._filtered(kept.row)
        if reason is None and identity in self._taken:
            reason = repeated
        if reason is None and kept.user is not None and self._is_full(kept.user):
            reason = DropReason.USER_CAP
        if reason is not None:
            return Dropped(reason, kept.inputs)
        self._taken.add(identity)
        if kept.user is not None:
            self._per_user[kept.user] += 1
        return kept

    def _is_full(self, user: str) -> bool:
        cap = self._rule.max_per_user
        return cap is not None and self._per_user[user] >= cap

    def _filtered(self, row: Row) -> DropReason | None:
        rule = self._rule
        if Source(row.source) not in rule.sources:
            return DropReason.SOURCE_EXCLUDED
        windowed = rule.since is not None or rule.until is not None
        if windowed and not _within(row.created_at, rule.since, rule.until):
            return DropReason.OUTSIDE_WINDOW
        spoken = spoken_by(row)
        if rule.policies is None or not spoken:
            return None
        wanted = [policy in rule.policies for policy in spoken]
        fresh = all(wanted) if rule.policy_match == "both" else any(wanted)
        return None if fresh else DropReason.STALE_POLICY


def spoken_by(row: Row) -> tuple[str, ...]:
    """The policy versions whose own words the row holds, chosen side first; written text is nobody's."""
    sides = (row.chosen_policy, row.rejected_policy) if isinstance(row, PreferenceRow) else (row.policy,)
    return tuple(policy for policy in sides if policy != HUMAN_EDIT)


def _within(moment: datetime | None, since: datetime | None, until: datetime | None) -> bool:
    if moment is None:
        return False
    return (since is None or moment >= since) and (until is None or moment < until)


def _identity(row: Row) -> tuple[bytes, DropReason]:
    """What may be there only once, and the reason to give for a second: the two answers, or the whole row."""
    if isinstance(row, PreferenceRow) and row.chosen_response_id and row.rejected_response_id:
        ids = sorted((row.chosen_response_id, row.rejected_response_id))
        return hashlib.sha256("\n".join(ids).encode()).digest(), DropReason.SUPERSEDED
    return hashlib.sha256(canonical(row).encode()).digest(), DropReason.DUPLICATE


def fates(outcomes: Iterable[Outcome]) -> dict[str, DropReason | None]:
    """What became of every input: null where it stands behind a row, else the reason it was left out.

    An input of several outcomes counts as used if one is a row; otherwise its first reason, in the order of
    `DropReason`, stands. So every input has exactly one fate, and the counts of a ledger add up.
    """
    order = {reason: place for place, reason in enumerate(DropReason)}
    fate: dict[str, DropReason | None] = {}
    for outcome in outcomes:
        reason = outcome.reason if isinstance(outcome, Dropped) else None
        for name in outcome.inputs:
            earlier = fate.setdefault(name, reason)
            if earlier is not None and (reason is None or order[reason] < order[earlier]):
                fate[name] = reason
    return fate
