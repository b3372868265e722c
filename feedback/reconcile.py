"""The reconcile: what rows still wait for is done, whether or not its message ever came.

Messages only say that there may be something to do. A wish whose message was lost (kombu's SQLAlchemy
transport does not deliver again what a killed worker had taken) is sent again; every periodic scan starts
from the rows.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from feedback.events import infer_between, join_events
from feedback.leases import expire_leases
from feedback.privacy import Masker
from ratchet.ids import floor_of

Wish = Literal["sample_request", "snapshot_build"]

RESEND_AFTER = timedelta(minutes=10)
ATTEMPTS = 5
SCANNED_AGAIN = timedelta(hours=2)
"""How far back repeated prompts are looked for again, for rows that a gateway's spool held back."""

_DUE = """
    UPDATE feedback.{table} SET sent_at = :now WHERE id IN (
        SELECT id FROM feedback.{table}
        WHERE state = 'pending' AND (sent_at IS NULL OR sent_at < :before)
        ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id
"""
_ATTEMPT = """
    UPDATE feedback.{table} SET attempts = attempts + 1 WHERE id = (
        SELECT id FROM feedback.{table} WHERE id = :id AND state = 'pending' FOR UPDATE SKIP LOCKED)
    RETURNING attempts
"""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a reconcile found."""

    joined: int
    inferred: int
    expired: int
    forgotten: int
    """Persons whose rows had come back, from a gateway's spool."""


def due(session: Session, wish: Wish, *, now: datetime, limit: int = 100) -> list[UUID]:
    """Wishes to send a message for: never sent, or sent so long ago that the message must be lost."""
    found = {"now": now, "before": now - RESEND_AFTER, "limit": limit}
    return list(session.execute(text(_DUE.format(table=wish)), found).scalars())


def attempt(session: Session, wish: Wish, identity: UUID) -> int | None:
    """Counts an attempt; None if there is nothing to do or another worker does it."""
    return session.execute(text(_ATTEMPT.format(table=wish)), {"id": identity}).scalar()


def reconcile(session: Session, *, now: datetime, masker: Masker | None = None) -> Reconciled:
    """Joins what was parked or given up, scans the last hours again, and removes what was forgotten.

    Args:
        session: As the role `ratchet_feedback`.
        now: The time.
        masker: See `events.join_events`.
    """
    joined = join_events(session, now=now, limit=10_000, unknown_too=True, masker=masker)
    inferred = infer_between(session, floor_of(now - SCANNED_AGAIN), floor_of(now))
    expired = expire_leases(session, now=now)
    forgotten: int = session.execute(text("SELECT feedback.forget_returned()")).scalar_one()
    return Reconciled(joined.joined, inferred, expired, forgotten)
