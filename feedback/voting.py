"""Votes: one for each lease, turned back from left and right, taken back once, and weighed by gold items."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from feedback.errors import LeaseLost, NothingToUndo
from feedback.gold import GoldRule, Standing, standing
from feedback.leases import LeaseRule, lock_rater
from ratchet.alarms import raise_alarm
from ratchet.ids import new_id

Shown = Literal["left", "right", "tie", "both_bad", "skip"]

UNDO_WITHIN = timedelta(hours=1)
LONGEST_S = 6 * 3_600.0

_LEASE = text("SELECT comparison_id FROM feedback.lease WHERE id = :lease AND rater_id = :rater")
_LOCK_ITEM = text("""
    SELECT gold_choice, wanted, leased, voted FROM feedback.comparison WHERE id = :item FOR UPDATE
""")
_LOCK_LEASE = text("""
    SELECT state, left_side, pool, leased_at FROM feedback.lease WHERE id = :lease FOR UPDATE
""")
_RATE = text("""
    INSERT INTO feedback.rating
        (id, lease_id, comparison_id, rater_id, pool, choice, left_side, reasons, note, seconds, created_at)
    VALUES (:id, :lease, :item, :rater, :pool, :choice, :left, :reasons, :note, :seconds, :now)
""")
_END = text("UPDATE feedback.lease SET state = :state WHERE id = :lease")
_COUNT = text("""
    UPDATE feedback.comparison SET leased = leased + :leased, voted = voted + :voted WHERE id = :item
""")
_GOLD_ANSWERS = text("""
    SELECT item.gold_choice, rating.choice
    FROM feedback.rating AS rating JOIN feedback.comparison AS item ON item.id = rating.comparison_id
    WHERE rating.rater_id = :rater AND rating.undone_at IS NULL AND item.gold_choice IS NOT NULL
""")
_LAST = text("""
    SELECT id, lease_id, comparison_id, choice, created_at, undone_at FROM feedback.rating
    WHERE rater_id = :rater ORDER BY created_at DESC, id DESC LIMIT 1
""")
_UNDO = text("UPDATE feedback.rating SET undone_at = :now WHERE id = :rating")
_PUT_BEHIND = text("UPDATE feedback.lease SET state = 'waiting' WHERE rater_id = :rater AND state = 'open'")
_OPEN_AGAIN = text("UPDATE feedback.lease SET state = 'open', expires_at = :expires WHERE id = :lease")
_CLOSE_RATER = text("""
    UPDATE feedback.rater SET status = 'set_aside', set_aside_at = :now, set_aside_reason = :reason
    WHERE id = :rater
""")
_FLAG = text("""
    UPDATE feedback.rating SET flagged = true WHERE rater_id = :rater AND undone_at IS NULL AND NOT flagged
""")
_LOCK_ITEMS_OF = text("""
    SELECT id FROM feedback.comparison WHERE id IN (
        SELECT comparison_id FROM feedback.lease
        WHERE rater_id = :rater AND state IN ('open', 'waiting', 'voted'))
    ORDER BY id FOR UPDATE
""")
_GIVE_BACK = text("""
    UPDATE feedback.comparison AS item
    SET leased = leased - (lease.state IN ('open', 'waiting'))::int,
        voted = voted - (lease.state = 'voted')::int
    FROM feedback.lease AS lease
    WHERE lease.comparison_id = item.id AND lease.rater_id = :rater
        AND lease.state IN ('open', 'waiting', 'voted')
""")
_REVOKE = text("""
    UPDATE feedback.lease SET state = 'revoked'
    WHERE rater_id = :rater AND state IN ('open', 'waiting', 'voted')
""")


@dataclass(frozen=True, slots=True)
class Vote:
    """What a rater decided, as it was shown."""

    lease: UUID
    shown: Shown
    seconds: float | None
    """Time spent on it; None: since it was leased."""
    reasons: Sequence[str] = ()
    note: str | None = None


def cast_vote(session: Session, rater: UUID, vote: Vote, gold: GoldRule, *, now: datetime) -> bool:
    """Counts a vote; the same lease voted on twice, as by a double click, counts once.

    Args:
        session: As the role `ratchet_feedback`.
        rater: Who votes.
        vote: The vote.
        gold: When a rater fails; one who now does is set aside.
        now: The time.

    Returns:
        Whether the rater is still asked.

    Raises:
        SetAside: The rater is no longer asked.
        LeaseLost: The item went back when its time was over, or is not this rater's.
    """
    person = lock_rater(session, rater)
    item_id = session.execute(_LEASE, {"lease": vote.lease, "rater": rater}).scalar()
    if item_id is None:
        raise LeaseLost("this item is not yours")
    item = session.execute(_LOCK_ITEM, {"item": item_id}).one()
    lease = session.execute(_LOCK_LEASE, {"lease": vote.lease}).one()
    if lease.state in ("voted", "skipped"):
        return True
    if lease.state not in ("open", "waiting"):
        raise LeaseLost("the time for this item was over and it went to somebody else; here is the next one")
    choice = _unblind(vote.shown, lease.left_side)
    spent = (now - lease.leased_at).total_seconds() if vote.seconds is None else vote.seconds
    session.execute(
        _RATE,
        {
            "id": new_id(), "lease": vote.lease, "item": item_id, "rater": rater, "pool": lease.pool,
            "choice": choice, "left": lease.left_side, "reasons": list(vote.reasons), "note": vote.note,
            "seconds": min(max(spent, 0.0), LONGEST_S), "now": now,
        },
    )  # fmt: skip
    skipped = choice == "skip"
    session.execute(_END, {"lease": vote.lease, "state": "skipped" if skipped else "voted"})
    session.execute(_COUNT, {"item": item_id, "leased": -1, "voted": 0 if skipped else 1})
    return item.gold_choice is None or not _failed(session, person, gold, now)


def _unblind(shown: Shown, left_side: str) -> str:
    if shown == "left":
        return left_side
    if shown == "right":
        return "b" if left_side == "a" else "a"
    return shown


def _failed(session: Session, person: Row[Any], gold: GoldRule, now: datetime) -> bool:
    answers = session.execute(_GOLD_ANSWERS, {"rater": person.id})
    judged = standing(((row.gold_choice, row.choice) for row in answers), gold)
    if judged.state == "failed":
        set_aside(session, person, judged, now=now)
    return judged.state == "failed"


def set_aside(session: Session, person: Row[Any], judged: Standing, *, now: datetime) -> None:
    """Asks a rater no more, flags what they voted, and gives their items to others."""
    reason = f"{judged.right} of {judged.seen} gold items right"
    found = {"rater": person.id, "now": now, "reason": reason}
    session.execute(_CLOSE_RATER, found)
    session.execute(_FLAG, found)
    session.execute(_LOCK_ITEMS_OF, found)
    session.execute(_GIVE_BACK, found)
    session.execute(_REVOKE, found)
    raise_alarm(session, "rater-set-aside", person.name, {"reason": reason, "pool": person.pool})


def undo_last(session: Session, rater: UUID, rule: LeaseRule, *, now: datetime) -> UUID:
    """Takes the rater's last vote back and opens its item again; what is on the page now comes after it.

    Returns:
        The lease that is open again.

    Raises:
        NothingToUndo: There is no vote, it was taken back already, it is too long ago, or, of a skipped item,
            others took its place.
    """
    lock_rater(session, rater)
    last = session.execute(_LAST, {"rater": rater}).first()
    if last is None or last.undone_at is not None or last.created_at < now - UNDO_WITHIN:
        raise NothingToUndo("there is no vote to take back")
    item = session.execute(_LOCK_ITEM, {"item": last.comparison_id}).one()
    skipped = last.choice == "skip"
    if skipped and item.wanted is not None and item.leased + item.voted >= item.wanted:
        raise NothingToUndo("others have taken the place of the vote you skipped")
    session.execute(_UNDO, {"rating": last.id, "now": now})
    session.execute(_COUNT, {"item": last.comparison_id, "leased": 1, "voted": 0 if skipped else -1})
    session.execute(_PUT_BEHIND, {"rater": rater})
    session.execute(_OPEN_AGAIN, {"lease": last.lease_id, "expires": now + rule.lifetime})
    return last.lease_id
