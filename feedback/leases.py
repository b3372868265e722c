"""Leases: which item a rater sees next, decided in one transaction and exact under any number of requests.

Locks are taken in one order everywhere (rater, comparison, lease): the rater's row makes one person's
requests take turns, and the item's row guards its quota, which the schema checks once more. An item is first
looked for among those nobody holds a lock on (`FOR UPDATE SKIP LOCKED`); only if there is none does the
request wait for those that others are deciding on, and begins anew where PostgreSQL finds that two such
requests wait for each other.
"""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from psycopg.errors import DeadlockDetected
from sqlalchemy import Row, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from feedback.errors import QuotaReached, SetAside, UnknownRater
from feedback.gold import GoldRule, gold_is_due
from ratchet.ids import new_id

EXPIRED_AT_ONCE = 50
WAITS = 10

_RATER = text("SELECT id, name, pool, status, daily_quota FROM feedback.rater WHERE id = :rater FOR UPDATE")
_HELD = text("""
    SELECT id, comparison_id, state, expires_at FROM feedback.lease
    WHERE rater_id = :rater AND state IN ('open', 'waiting') AND expires_at > :now
    ORDER BY state = 'waiting', leased_at DESC LIMIT 1
""")
_COUNTS = text("""
    SELECT count(*) AS ever, count(*) FILTER (WHERE leased_at >= :midnight
        AND state IN ('open', 'waiting', 'voted', 'skipped')) AS today
    FROM feedback.lease WHERE rater_id = :rater
""")
_FREE = """
    SELECT id FROM feedback.comparison AS item
    WHERE pool = :pool AND wanted IS NOT NULL AND leased + voted < wanted
        AND NOT EXISTS (SELECT FROM feedback.lease WHERE comparison_id = item.id AND rater_id = :rater)
    ORDER BY leased, voted DESC, id LIMIT 1 FOR UPDATE
"""
_FREE_UNLOCKED = text(_FREE + " SKIP LOCKED")
_FREE_WAITING = text(_FREE)
_GOLD = text("""
    SELECT id FROM feedback.comparison AS item
    WHERE pool = :pool AND gold_choice IS NOT NULL
        AND NOT EXISTS (SELECT FROM feedback.lease WHERE comparison_id = item.id AND rater_id = :rater)
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
""")
_TAKE = text("UPDATE feedback.comparison SET leased = leased + 1 WHERE id = :item")
_LEASE = text("""
    INSERT INTO feedback.lease (id, comparison_id, rater_id, pool, left_side, state, leased_at, expires_at)
    VALUES (:id, :item, :rater, :pool, :left, 'open', :now, :expires)
""")
_REOPEN = text("UPDATE feedback.lease SET state = 'open' WHERE id = :lease")
_EXPIRE = text("""
    WITH due AS (
        SELECT comparison_id FROM feedback.lease
        WHERE state IN ('open', 'waiting') AND expires_at <= :now AND (rater_id = :rater OR :everybody)
        ORDER BY expires_at LIMIT :limit
    ), held AS (
        SELECT id FROM feedback.comparison WHERE id IN (SELECT comparison_id FROM due)
        FOR UPDATE SKIP LOCKED
    ), ended AS (
        UPDATE feedback.lease SET state = 'expired'
        WHERE state IN ('open', 'waiting') AND expires_at <= :now AND comparison_id IN (SELECT id FROM held)
        RETURNING comparison_id
    )
    UPDATE feedback.comparison AS item SET leased = leased - back.leases
    FROM (SELECT comparison_id, count(*) AS leases FROM ended GROUP BY comparison_id) AS back
    WHERE item.id = back.comparison_id
    RETURNING back.leases
""")
_ITEM = text("""
    SELECT lease.id, lease.comparison_id, lease.left_side, lease.expires_at, item.pool, item.prompt,
           CASE lease.left_side WHEN 'a' THEN item.a_text ELSE item.b_text END AS left_text,
           CASE lease.left_side WHEN 'a' THEN item.b_text ELSE item.a_text END AS right_text,
           item.a_policy, item.b_policy
    FROM feedback.lease AS lease JOIN feedback.comparison AS item ON item.id = lease.comparison_id
    WHERE lease.id = :lease
""")


@dataclass(frozen=True, slots=True)
class LeaseRule:
    """How items are given out."""

    lifetime: timedelta
    gold: GoldRule
    secret: str
    """Keeps which items are gold unforeseen."""


@dataclass(frozen=True, slots=True)
class Item:
    """What a rater is shown, and the policies whose names must not show."""

    lease: UUID
    comparison: UUID
    pool: str
    prompt: list[dict[str, Any]]
    left: str
    right: str
    policies: tuple[str, str]
    left_side: Literal["a", "b"]
    expires_at: datetime


def lease_next(session: Session, rater: UUID, rule: LeaseRule, *, now: datetime) -> Item | None:
    """The item the rater is at, else the next one.

    Args:
        session: As the role `ratchet_feedback`; the lease stands once it commits.
        rater: Who asks.
        rule: How items are given out.
        now: The time.

    Returns:
        The item, or None while there is none this rater has not seen.

    Raises:
        UnknownRater: Nobody has this id.
        SetAside: The rater is no longer asked.
        QuotaReached: The rater had as many items as one day may bring.
    """
    person = lock_rater(session, rater)
    held = session.execute(_HELD, {"rater": rater, "now": now}).first()
    if held is not None:
        session.execute(_REOPEN, {"lease": held.id})
        return shown_item(session, held.id)
    expire_leases(session, now=now, rater=rater)
    expire_leases(session, now=now, limit=EXPIRED_AT_ONCE)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    counts = session.execute(_COUNTS, {"rater": rater, "midnight": midnight}).one()
    if counts.today >= person.daily_quota:
        raise QuotaReached(f"{person.daily_quota} items today are all a rater may have; go on tomorrow")
    item = _choose(session, person, rule, counts.ever)
    if item is None:
        return None
    session.execute(_TAKE, {"item": item})
    lease = new_id()
    session.execute(
        _LEASE,
        {
            "id": lease, "item": item, "rater": rater, "pool": person.pool, "now": now,
            "left": random.SystemRandom().choice("ab"), "expires": now + rule.lifetime,
        },
    )  # fmt: skip
    return shown_item(session, lease)


def _choose(session: Session, person: Row[Any], rule: LeaseRule, position: int) -> UUID | None:
    wish = {"pool": person.pool, "rater": person.id}
    free = session.execute(_FREE_UNLOCKED, wish).scalar()
    if free is None:
        free = _wait_for_one(session, wish)
    if free is None or not gold_is_due(str(person.id), position, rule.gold, secret=rule.secret):
        return free
    return session.execute(_GOLD, wish).scalar() or free


def _wait_for_one(session: Session, wish: dict[str, Any]) -> UUID | None:
    """An item others were deciding on. Of two who hold what the other waits for, one begins anew."""
    for _ in range(WAITS):
        try:
            with session.begin_nested():
                return session.execute(_FREE_WAITING, wish).scalar()
        except OperationalError as error:
            if not isinstance(error.orig, DeadlockDetected):
                raise
    return session.execute(_FREE_UNLOCKED, wish).scalar()


def lock_rater(session: Session, rater: UUID) -> Row[Any]:
    """The rater's row, locked until the transaction ends: one person's requests take turns.

    Raises:
        UnknownRater: Nobody has this id.
        SetAside: The rater is no longer asked.
    """
    person = session.execute(_RATER, {"rater": rater}).first()
    if person is None:
        raise UnknownRater("this rater is not known")
    if person.status != "active":
        raise SetAside("rating is closed for you; thank you for what you did")
    return person


def shown_item(session: Session, lease: UUID) -> Item:
    """What a lease shows."""
    row = session.execute(_ITEM, {"lease": lease}).one()
    return Item(
        lease=row.id,
        comparison=row.comparison_id,
        pool=row.pool,
        prompt=row.prompt,
        left=row.left_text,
        right=row.right_text,
        policies=(row.a_policy, row.b_policy),
        left_side=row.left_side,
        expires_at=row.expires_at,
    )


def expire_leases(session: Session, *, now: datetime, limit: int = 1_000, rater: UUID | None = None) -> int:
    """Gives items back whose time is over; those another request is deciding on are left to it.

    Args:
        session: As the role `ratchet_feedback`.
        now: The time.
        limit: Leases looked at.
        rater: Only this rater's; None: everybody's.

    Returns:
        Leases ended.
    """
    found = {"now": now, "limit": limit, "rater": rater or UUID(int=0), "everybody": rater is None}
    return sum(row.leases for row in session.execute(_EXPIRE, found))
