"""Raters: who they are, and how they sign in: a link gives a session; both are random, and stored hashed."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import psycopg
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from feedback.errors import SetAside, UnknownRater
from ratchet.db.models.feedback import Rater, RaterToken
from ratchet.errors import NotFound, UsageError
from ratchet.ids import new_id

DEFAULT_QUOTA = 200
LINK_DAYS = 7

_LIST = text("""
    SELECT rater.name, rater.pool, rater.status, rater.daily_quota, rater.set_aside_reason, rater.created_at,
           count(rating.id) FILTER (WHERE rating.choice <> 'skip') AS votes,
           count(rating.id) FILTER (WHERE rating.choice = 'skip') AS skips,
           count(rating.id) FILTER (WHERE item.gold_choice IS NOT NULL AND rating.choice <> 'skip') AS gold,
           count(rating.id) FILTER (WHERE item.gold_choice = rating.choice) AS gold_right,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY rating.seconds) AS median_seconds
    FROM feedback.rater AS rater
    LEFT JOIN feedback.rating AS rating ON rating.rater_id = rater.id AND rating.undone_at IS NULL
    LEFT JOIN feedback.comparison AS item ON item.id = rating.comparison_id
    GROUP BY rater.id ORDER BY rater.name
""")
_NOTE_GUIDELINES = text("""
    UPDATE feedback.rater SET guidelines_read_at = coalesce(guidelines_read_at, :now) WHERE id = :id
""")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who a session belongs to."""

    id: UUID
    name: str
    pool: str
    guidelines_read: bool


def add_rater(
    session: Session, name: str, pool: Literal["preference", "evaluation"], daily_quota: int
) -> UUID:
    """Makes a rater, in one pool for ever.

    Args:
        session: As the role `ratchet_operator`.
        name: Who it is, such as an e-mail address; one person has one, whatever the case of its letters.
        pool: `preference` feeds training, `evaluation` judges candidates.
        daily_quota: Items in one day at most.

    Raises:
        UsageError: The name is taken, or empty.
    """
    if not name.strip():
        raise UsageError("a rater needs a name, such as an e-mail address")
    rater = Rater(id=new_id(), name=name.strip(), pool=pool, daily_quota=daily_quota)
    session.add(rater)
    try:
        session.flush()
    except IntegrityError as error:
        if not isinstance(error.orig, psycopg.errors.UniqueViolation):
            raise
        raise UsageError(
            f"{name.strip()!r} is a rater already, and a person stays in one pool: `ratchet rater list`"
        ) from error
    return rater.id


def make_link(session: Session, name: str, *, now: datetime, days: float = LINK_DAYS) -> tuple[str, datetime]:
    """A sign-in token for a rater; earlier links stay valid.

    Returns:
        The token, shown once, and until when it is good.

    Raises:
        NotFound: No rater has this name.
    """
    rater = session.scalar(select(Rater).where(text("lower(name) = lower(:name)")), {"name": name.strip()})
    if rater is None:
        raise NotFound(f"no rater is named {name!r}: `ratchet rater list` names them")
    return _new_token(session, rater.id, "link", now + timedelta(days=days))


def list_raters(session: Session) -> list[dict[str, Any]]:
    """Every rater with votes, skips, gold results and median seconds an item."""
    return [dict(row) for row in session.execute(_LIST).mappings()]


def sign_in(session: Session, link: str, *, now: datetime, hours: float) -> tuple[str, datetime]:
    """Turns a link into a session.

    Raises:
        UnknownRater: The link is not good, or no longer.
        SetAside: The rater is no longer asked.
    """
    rater = _holder(session, link, "link", now)
    return _new_token(session, rater.id, "session", now + timedelta(hours=hours))


def signed_in(session: Session, token: str | None, *, now: datetime) -> SignedIn:
    """Who a session token belongs to.

    Raises:
        UnknownRater: There is no such session, or no longer.
        SetAside: The rater is no longer asked.
    """
    rater = _holder(session, token or "", "session", now)
    return SignedIn(rater.id, rater.name, rater.pool, rater.guidelines_read_at is not None)


def note_guidelines(session: Session, rater: UUID, *, now: datetime) -> None:
    """Notes that a rater read the guidelines and the content warning and wants to go on."""
    session.execute(
        _NOTE_GUIDELINES,
        {"id": rater, "now": now},
    )


def sign_out(session: Session, token: str) -> None:
    """Ends a session."""
    found = session.get(RaterToken, _hash(token))
    if found is not None:
        session.delete(found)


def _holder(session: Session, token: str, kind: str, now: datetime) -> Rater:
    rater = session.scalar(
        select(Rater)
        .join(RaterToken, RaterToken.rater_id == Rater.id)
        .where(RaterToken.hash == _hash(token), RaterToken.kind == kind, RaterToken.expires_at > now)
    )
    if rater is None:
        raise UnknownRater("this link or session is not good any more; ask for a new link")
    if rater.status != "active":
        raise SetAside("rating is closed for you; thank you for what you did")
    return rater


def _new_token(session: Session, rater: UUID, kind: str, expires: datetime) -> tuple[str, datetime]:
    token = secrets.token_urlsafe(32)
    session.add(RaterToken(hash=_hash(token), rater_id=rater, kind=kind, expires_at=expires))
    session.flush()
    return token, expires


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
