"""Retention: whole months are dropped, and partitions for the months ahead are made in time."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

MONTHS_AHEAD = 3

_DROP = text("SELECT feedback.drop_months_before(:moment)")
_OLD_COMPARISONS = text("""
    DELETE FROM feedback.comparison WHERE id IN (
        SELECT id FROM feedback.comparison
        WHERE answered_at < :moment AND gold_choice IS NULL AND pool = 'preference' ORDER BY id LIMIT :limit)
    RETURNING id
""")
_OLD_TOKENS = text("DELETE FROM feedback.rater_token WHERE expires_at < now()")


@dataclass(frozen=True, slots=True)
class Retired:
    """What went."""

    partitions: tuple[str, ...]
    comparisons: int


def ensure_partitions(session: Session) -> int:
    """Makes the partitions of this month and the next ones; returns how many were made."""
    made = session.execute(
        text("SELECT serving.ensure_response_partitions(:months)"), {"months": MONTHS_AHEAD}
    )
    events = session.execute(
        text("SELECT feedback.ensure_event_partitions(:months)"), {"months": MONTHS_AHEAD}
    )
    return int(made.scalar_one()) + int(events.scalar_one())


def retire(session: Session, *, now: datetime, keep: timedelta, limit: int = 1_000) -> Retired:
    """Drops the months of responses and events that ended before `now - keep`, and comparisons as old.

    Args:
        session: As the role `ratchet_feedback`.
        now: The time.
        keep: How long rows are kept.
        limit: Comparisons removed in one run.
    """
    moment = now - keep
    partitions: list[str] = session.execute(_DROP, {"moment": moment}).scalar_one()
    gone = session.execute(_OLD_COMPARISONS, {"moment": moment, "limit": limit}).all()
    session.execute(_OLD_TOKENS)
    return Retired(tuple(partitions), len(gone))
