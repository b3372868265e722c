"""Comparisons from traffic: two answers to one prompt that are worth a rater's time.

They come from shadow pairs (the production answer and the shadow policy's), from the first two of several
choices, from regenerations, and from edits (the edited text and the original). Candidates of the last day are
listed narrowly, spread over strata, and only those chosen are read whole. Making is idempotent: the same two
answers are one row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from feedback.blinding import names_a_policy
from feedback.evidence import Answer
from feedback.privacy import Masker
from feedback.repository import EDIT_PREFIX, answers_of
from feedback.rows import HUMAN_EDIT, messages_of
from feedback.rule import unfit
from feedback.sampling import length_class, spread
from feedback.settings import Stratum
from feedback.similarity import bands_of
from ratchet.db.models.feedback import ComparisonRow
from ratchet.ids import floor_of, new_id
from ratchet.prompts import prompt_text, split

Source = Literal["shadow", "choices", "regenerate", "edit", "sampled"]

DAY = timedelta(days=1)
THIN_WITHIN = timedelta(days=30)
CANDIDATES = 2_000
"""Of each source, the newest; more are not needed to fill a day's share."""
UNKNOWN_LANGUAGE = "und"

_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext('feedback.comparisons'))")
_MADE = text("""
    SELECT a_answer, b_answer FROM feedback.comparison
    WHERE pool = 'preference' AND source IN ('shadow', 'choices', 'regenerate', 'edit')
        AND created_at > :after
""")
_COLUMNS = """
    {first}.id AS first, {second} AS second, {first}.policy AS first_policy, {second_policy} AS second_policy,
    coalesce({first}.labels ->> 'language', 'und') AS language,
    length({first}.messages::text) AS characters
"""
_USABLE = "{row}.status = 'ok' AND {row}.probe IS NULL AND {row}.prompt_hash IS NOT NULL"


def _query(first: str, second: str, second_policy: str, rest: str) -> Any:
    columns = _COLUMNS.format(first=first, second=second, second_policy=second_policy)
    return text(f"SELECT {columns} FROM {rest} LIMIT {CANDIDATES}")  # noqa: S608


_SOURCES: dict[Source, Any] = {
    "shadow": _query(
        "shown",
        "shadow.id",
        "shadow.policy",
        "serving.response AS shadow JOIN serving.response AS shown ON shown.id = shadow.pair_of"
        " WHERE shadow.id >= :low AND shown.id >= :earlier AND "
        + _USABLE.format(row="shown")
        + " AND shadow.status = 'ok' ORDER BY shadow.id DESC",
    ),
    "choices": _query(
        "shown",
        "NULL::uuid",
        "shown.policy",
        "serving.response AS shown WHERE shown.id >= :low AND jsonb_array_length(shown.outputs) > 1 AND "
        + _USABLE.format(row="shown")
        + " ORDER BY shown.id DESC",
    ),
    "regenerate": _query(
        "shown",
        "later.id",
        "later.policy",
        "feedback.feedback_event AS event JOIN serving.response AS shown ON shown.id = event.response_id"
        " JOIN serving.response AS later ON later.id = event.other_response_id"
        " AND later.history_hash = shown.history_hash"
        " WHERE event.kind = 'regenerate' AND event.state = 'joined' AND event.created_at > :after AND "
        + _USABLE.format(row="shown")
        + " AND later.status = 'ok' ORDER BY event.id DESC",
    ),
    "edit": _query(
        "shown",
        "event.id",
        f"'{HUMAN_EDIT}'",
        "feedback.feedback_event AS event JOIN serving.response AS shown ON shown.id = event.response_id"
        " WHERE event.kind = 'edit' AND event.state = 'joined' AND event.created_at > :after AND "
        + _USABLE.format(row="shown")
        + " ORDER BY event.id DESC",
    ),
}
_RESPONSES = text("""
    SELECT id, created_at, status, finish_reason, policy, decode, user_id, history_hash, prompt_hash,
           messages, outputs, output, verdicts, probe, pair_of
    FROM serving.response WHERE id IN (:first, :second) ORDER BY id
""")
_EDIT = text("SELECT text, choice, created_at FROM feedback.feedback_event WHERE id = :id")
_HELD_OUT = text("SELECT DISTINCT prompt_hash FROM feedback.heldout_prompt")
_LIKE = text("""
    SELECT EXISTS (
        SELECT FROM feedback.comparison
        WHERE bands && CAST(:bands AS bigint[]) AND pool = 'preference' AND created_at > :after
            AND least(a_policy, b_policy) = least(:one, :other)
            AND greatest(a_policy, b_policy) = greatest(:one, :other))
""")


@dataclass(frozen=True, slots=True)
class Plan:
    """How many comparisons are made, and over what they are spread."""

    per_day: int
    wanted: int
    """Votes each needs."""
    strata: tuple[Stratum, ...]
    masker: Masker | None = None
    """Masks personal data in the answers that are kept; None: they are kept as they are."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Two answers, by id."""

    source: Source
    first: UUID
    second: UUID | None
    """The other response, or the edit's event; None for a further choice of the first."""
    policies: tuple[str, str]
    language: str
    length: str

    @property
    def name(self) -> str:
        """Its identity."""
        return f"{self.first} {self.second}"

    def stratum(self, strata: tuple[Stratum, ...]) -> tuple[Any, ...]:
        """Where it belongs; sources are always told apart."""
        parts = {"policy": frozenset(self.policies), "language": self.language, "length": self.length}
        return (self.source, *(parts[stratum] for stratum in strata))


def make_comparisons(session: Session, plan: Plan, *, now: datetime) -> int:
    """Makes what is left of the day's share.

    Args:
        session: As the role `ratchet_feedback`.
        plan: How many, and of what.
        now: The time.

    Returns:
        Comparisons made; 0 too while another worker makes them.
    """
    if not session.execute(_LOCK).scalar():
        return 0
    made = {frozenset((row.a_answer, row.b_answer)) for row in session.execute(_MADE, {"after": now - DAY})}
    left = plan.per_day - len(made)
    if left <= 0:
        return 0
    held_out = frozenset(session.execute(_HELD_OUT).scalars())
    fresh = 0
    candidates = list(_candidates(session, now))
    for candidate in spread(candidates, lambda each: each.stratum(plan.strata), lambda each: each.name):
        pair = _read(session, candidate)
        if pair is None or frozenset(_names(candidate, pair)) in made or unfit(pair, held_out) is not None:
            continue
        fresh += store(
            session, candidate.source, pair, _names(candidate, pair), candidate.language, plan, now
        )
        if fresh == left:
            break
    return fresh


def _candidates(session: Session, now: datetime) -> Iterator[Candidate]:
    span = {"low": floor_of(now - DAY), "earlier": floor_of(now - 2 * DAY), "after": now - DAY}
    for source, query in _SOURCES.items():
        for row in session.execute(query, span):
            yield Candidate(
                source,
                row.first,
                row.second,
                (row.first_policy or "", row.second_policy or ""),
                row.language,
                length_class(row.characters),
            )


def _read(session: Session, candidate: Candidate) -> tuple[Answer, Answer] | None:
    rows = session.execute(_RESPONSES, {"first": candidate.first, "second": candidate.second}).all()
    answers: dict[UUID, tuple[Answer, ...]] = {row.id: answers_of(row) for row in rows}
    shown = answers.get(candidate.first, ())
    if candidate.source == "edit":
        edit = session.execute(_EDIT, {"id": candidate.second}).first()
        if edit is None or edit.choice >= len(shown):
            return None
        original = shown[int(edit.choice)]
        return original, _edited(original, edit)
    if candidate.source == "choices":
        return (shown[0], shown[1]) if len(shown) > 1 else None
    later = answers.get(candidate.second or candidate.first, ())
    return (shown[0], later[0]) if shown and later else None


def _edited(original: Answer, edit: Row[Any]) -> Answer:
    return Answer(
        id=None,
        prompt=original.prompt,
        prompt_hash=original.prompt_hash,
        history_hash=original.history_hash,
        text=edit.text,
        policy=HUMAN_EDIT,
        decode=None,
        created_at=edit.created_at,
        user=original.user,
    )


def _names(candidate: Candidate, pair: tuple[Answer, Answer]) -> tuple[str, str]:
    first, second = pair
    return first.id or "", second.id or f"{EDIT_PREFIX}{candidate.second}"


def store(
    session: Session,
    source: Source,
    pair: tuple[Answer, Answer],
    names: tuple[str, str],
    language: str,
    plan: Plan,
    now: datetime,
    identity: UUID | None = None,
) -> int:
    """Keeps a comparison of two answers, unless they are compared already or one like it was, lately.

    Returns:
        1 if it is new.
    """
    (a_name, a), (b_name, b) = sorted(zip(names, pair, strict=True), key=lambda side: side[0])
    if a.prompt is None:
        return 0
    messages = messages_of(a.prompt)
    bands = bands_of(prompt_text(messages))
    policies = (a.policy, b.policy)
    like = {"bands": bands, "after": now - THIN_WITHIN, "one": a.policy, "other": b.policy}
    if session.execute(_LIKE, like).scalar():
        return 0
    mask = plan.masker.text if plan.masker else str
    values = {
        "id": identity or new_id(),
        "created_at": now,
        "pool": "preference",
        "source": source,
        "prompt": messages,
        "prompt_hash": a.prompt_hash,
        "history_hash": a.history_hash,
        "split": split(a.prompt_hash).value,
        "a_answer": a_name,
        "a_text": mask(a.text),
        "a_policy": a.policy,
        "a_decode": a.decode,
        "b_answer": b_name,
        "b_text": mask(b.text),
        "b_policy": b.policy,
        "b_decode": b.decode,
        "answered_at": max(a.created_at, b.created_at),
        "user_id": a.user or b.user,
        "language": language,
        "length": length_class(len(prompt_text(messages))),
        "names_policy": names_a_policy((a.text, b.text), policies),
        "bands": bands,
        "wanted": plan.wanted,
    }
    made = session.execute(
        insert(ComparisonRow).values(values).on_conflict_do_nothing().returning(ComparisonRow.id)
    )
    return len(made.all())
