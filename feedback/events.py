"""Events: joined to their responses once those are there, and inferred from what users did.

Everything here may be run twice, at the same time, or be cut off at any point: the rows end the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from feedback.privacy import Masker
from ratchet.alarms import raise_alarm
from ratchet.canonical import digest_of
from ratchet.db.models.feedback import FeedbackEvent, Watermark
from ratchet.ids import id_beside
from ratchet.prompts import history_hash

UNKNOWN_AFTER = timedelta(hours=1)
"""How long a parked event may wait for its response before it is reported."""
RETRY_AFTER = timedelta(seconds=5)
OVERLAP = timedelta(minutes=10)
"""How far back each scan for repeated prompts looks again, for rows that were written late."""
REPEAT_WITHIN = timedelta(days=7)
"""A prompt sent again later than this says nothing about its first answer."""
SCAN = "repeated-prompts"

_DUE = text("""
    SELECT event.id, event.created_at, event.state, event.key_id,
           response.id AS answer, response.key_id AS answered_to
    FROM feedback.feedback_event AS event
    LEFT JOIN serving.response AS response ON response.id = event.response_id
    WHERE event.state <> 'joined' AND (event.state <> 'unknown' OR :unknown_too)
        AND (event.settled_at IS NULL OR event.settled_at < :tried_before)
    ORDER BY event.settled_at NULLS FIRST, event.id
    LIMIT :limit
    FOR UPDATE OF event SKIP LOCKED
""")
_JOIN = text("""
    UPDATE feedback.feedback_event AS event
    SET state = 'joined', settled_at = :now, user_id = coalesce(event.user_id, response.user_id)
    FROM serving.response AS response
    WHERE event.id = ANY(:ids) AND response.id = event.response_id
""")
_SETTLE = text("UPDATE feedback.feedback_event SET state = :state, settled_at = :now WHERE id = ANY(:ids)")
_REMOVE = text("DELETE FROM feedback.feedback_event WHERE id = ANY(:ids)")
_SCAN_END = text("""
    SELECT max(id::text)::uuid FROM (SELECT id FROM serving.response WHERE id > :low ORDER BY id LIMIT :limit)
""")
_SENT_AGAIN = text("""
    SELECT later.id AS later, later.created_at, later.user_id, earlier.id AS earlier, earlier.status
    FROM serving.response AS later
    JOIN LATERAL (
        SELECT before.id, before.status, before.created_at, before.duration_ms
        FROM serving.response AS before
        WHERE before.conversation_id = later.conversation_id AND before.history_hash = later.history_hash
            AND before.id < later.id AND before.id >= :oldest
            AND before.probe IS NULL AND before.pair_of IS NULL
        ORDER BY before.id DESC LIMIT 1
    ) AS earlier ON true
    WHERE later.id > :low AND later.id <= :high AND later.probe IS NULL AND later.pair_of IS NULL
        AND later.created_at
            >= earlier.created_at + make_interval(secs => coalesce(earlier.duration_ms, 0) / 1000)
""")
_SAID_AGAIN = text("""
    SELECT id AS later, created_at, user_id, conversation_id, messages
    FROM serving.response
    WHERE id > :low AND id <= :high AND probe IS NULL AND pair_of IS NULL AND conversation_id IS NOT NULL
        AND jsonb_array_length(messages) >= 3
        AND messages -> -1 ->> 'role' = 'user' AND messages -> -2 ->> 'role' = 'assistant'
        AND messages -> -3 ->> 'role' = 'user'
        AND lower(btrim(messages -> -1 ->> 'content')) = lower(btrim(messages -> -3 ->> 'content'))
""")
_ANSWERED = text("""
    SELECT id FROM serving.response
    WHERE conversation_id = :conversation AND history_hash = :history AND id < :later AND id >= :oldest
        AND probe IS NULL AND pair_of IS NULL
    ORDER BY id DESC LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class Joined:
    """What one pass over the waiting events did."""

    joined: int
    parked: int
    unknown: int
    foreign: int
    """Events about another key's response: removed, as if they had been refused at once."""

    @property
    def seen(self) -> int:
        """Events looked at."""
        return self.joined + self.parked + self.unknown + self.foreign


def join_events(
    session: Session,
    *,
    now: datetime,
    limit: int = 1_000,
    unknown_too: bool = False,
    masker: Masker | None = None,
) -> Joined:
    """Joins waiting events to their responses.

    Args:
        session: As the role `ratchet_feedback`.
        now: The time.
        limit: Events in one pass.
        unknown_too: Looks again at those whose response never came.
        masker: Masks personal data in what users wrote, for good; None: it is kept as it is.
    """
    found = {
        "now": now, "limit": limit, "unknown_too": unknown_too, "tried_before": now - RETRY_AFTER
    }  # fmt: skip
    due = session.execute(_DUE, found).all()
    joined = [row.id for row in due if row.answer is not None and row.answered_to == row.key_id]
    foreign = [row.id for row in due if row.answer is not None and row.answered_to != row.key_id]
    waiting = [row for row in due if row.answer is None]
    unknown = [row.id for row in waiting if row.created_at < now - UNKNOWN_AFTER]
    parked = [row.id for row in waiting if row.created_at >= now - UNKNOWN_AFTER]
    session.execute(_JOIN, {"ids": joined, "now": now})
    if masker is not None:
        _mask(session, [row.id for row in due], masker)
    session.execute(_REMOVE, {"ids": foreign})
    for state, ids in (("parked", parked), ("unknown", unknown)):
        session.execute(_SETTLE, {"ids": ids, "state": state, "now": now})
    fresh = sum(row.state != "unknown" for row in waiting if row.id in set(unknown))
    if fresh:
        raise_alarm(
            session,
            "feedback-unknown-response",
            "events",
            {"newly_unknown": fresh, "mend": "clients send ids of responses that were never stored: check"
             " the response ids they keep, and the gateways' spools"},
        )  # fmt: skip
    if foreign:
        raise_alarm(session, "feedback-foreign-response", "events", {"removed": len(foreign)})
    return Joined(len(joined), len(parked), len(unknown), len(foreign))


def _mask(session: Session, ids: list[UUID], masker: Masker) -> None:
    written = session.execute(
        text("SELECT id, text FROM feedback.feedback_event WHERE id = ANY(:ids) AND text IS NOT NULL"),
        {"ids": ids},
    ).all()
    for row in written:
        masked = masker.text(row.text)
        if masked != row.text:
            session.execute(
                text("UPDATE feedback.feedback_event SET text = :text WHERE id = :id"),
                {"text": masked, "id": row.id},
            )


def infer_events(session: Session, *, limit: int = 5_000) -> int | None:
    """Looks at responses not looked at before for prompts that were sent again.

    Returns:
        Responses passed over in this pass; 0 when the end is reached, None while another worker scans.
    """
    session.execute(insert(Watermark).values(name=SCAN, position=UUID(int=0)).on_conflict_do_nothing())
    position = session.execute(
        text("SELECT position FROM feedback.watermark WHERE name = :name FOR UPDATE SKIP LOCKED"),
        {"name": SCAN},
    ).scalar()
    if position is None:
        return None
    end = session.execute(_SCAN_END, {"low": position, "limit": limit}).scalar()
    infer_between(session, _sooner(position, OVERLAP), end or position)
    if end is None:
        return 0
    session.execute(
        text("UPDATE feedback.watermark SET position = :end, updated_at = now() WHERE name = :name"),
        {"end": end, "name": SCAN},
    )
    return limit


def infer_between(session: Session, low: UUID, high: UUID) -> int:
    """Infers from responses with ids in (low, high] what their users did about earlier ones.

    The very same messages sent again mean `regenerate`, or `retry` where the earlier answer had failed or was
    cut off; the same words said again after the answer mean `retry`. A request that came before the earlier
    answer was finished means nothing.

    Returns:
        New events.
    """
    oldest = _sooner(low, REPEAT_WITHIN)
    span = {"low": low, "high": high, "oldest": oldest}
    events = [
        _inferred(row, row.earlier, "regenerate" if row.status == "ok" else "retry")
        for row in session.execute(_SENT_AGAIN, span)
    ]
    for row in session.execute(_SAID_AGAIN, {"low": low, "high": high}).all():
        earlier = _answer_before(session, row, oldest)
        if earlier is not None:
            events.append(_inferred(row, earlier, "retry"))
    return _store(session, events)


def _sooner(identity: UUID, by: timedelta) -> UUID:
    return UUID(int=max(0, identity.int - (int(by.total_seconds() * 1_000) << 80)))


def _answer_before(session: Session, row: Row[Any], oldest: UUID) -> UUID | None:
    asked: Sequence[dict[str, Any]] = row.messages[:-2]
    found = {
        "conversation": row.conversation_id,
        "history": history_hash(asked),
        "later": row.later,
        "oldest": oldest,
    }
    return session.execute(_ANSWERED, found).scalar()


def _inferred(row: Row[Any], earlier: UUID, kind: str) -> dict[str, Any]:
    facts = {"response_id": earlier, "kind": kind, "other_response_id": row.later}
    return {
        **facts,
        "id": id_beside(earlier, "inferred", kind, str(row.later)),
        "created_at": row.created_at,
        "origin": "inferred",
        "user_id": row.user_id,
        "body_sha256": digest_of({name: str(value) for name, value in facts.items()}),
        "state": "joined",
        "settled_at": row.created_at,
    }


def _store(session: Session, events: list[dict[str, Any]]) -> int:
    if not events:
        return 0
    stored = session.execute(
        insert(FeedbackEvent).on_conflict_do_nothing().returning(FeedbackEvent.id), events
    )
    return len(stored.all())
