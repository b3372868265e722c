"""Operators at the release process: by their API key, or by a session that a sign-in with that key began.

A session's token is 256 random bits, stored as their SHA-256. The token against forged forms is derived
from it, so a page of another site, which can make a browser send the cookie but cannot read it, cannot
know it.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ratchet.db.models.releases import OperatorSession
from ratchet.db.models.serving import ApiKey
from ratchet.errors import UsageError
from ratchet.keys import KeyRole, hash_key


class NotAnOperator(UsageError):
    """Nobody who may run releases."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who is at the desk.

    Attributes:
        key_id: Their API key.
        name: What the audit calls them.
    """

    key_id: UUID
    name: str


def by_key(session: Session, text: str) -> Operator:
    """The operator of an API key.

    Raises:
        NotAnOperator: The key is unknown, revoked, or of another role.
    """
    key = session.scalars(
        select(ApiKey).where(ApiKey.hash == hash_key(text.strip()), ApiKey.revoked_at.is_(None))
    ).first()
    if key is None:
        raise NotAnOperator("this API key is unknown or was revoked")
    if key.role != KeyRole.OPERATOR:
        raise NotAnOperator(f"a key of role {key.role} may not run releases: make one of role operator")
    return Operator(key.id, key.name)


def sign_in(session: Session, text: str, *, now: datetime, hours: float) -> tuple[str, datetime]:
    """Begins a session, and forgets those that are over.

    Returns:
        Its token, which is never seen again, and when it ends.

    Raises:
        NotAnOperator: See `by_key`.
    """
    operator = by_key(session, text)
    session.execute(delete(OperatorSession).where(OperatorSession.expires_at <= now))
    token, expires = secrets.token_urlsafe(32), now + timedelta(hours=hours)
    session.add(OperatorSession(hash=_hash(token), key_id=operator.key_id, expires_at=expires))
    return token, expires


def by_session(session: Session, token: str | None, *, now: datetime) -> Operator:
    """Who began a session.

    Raises:
        NotAnOperator: It is none, is over, or its key was revoked.
    """
    found = session.execute(
        select(ApiKey.id, ApiKey.name)
        .join(OperatorSession, OperatorSession.key_id == ApiKey.id)
        .where(OperatorSession.hash == _hash(token or ""), OperatorSession.expires_at > now)
        .where(ApiKey.revoked_at.is_(None))
    ).first()
    if found is None:
        raise NotAnOperator("sign in with an operator's API key")
    return Operator(found.id, found.name)


def sign_out(session: Session, token: str) -> None:
    """Ends a session."""
    session.execute(delete(OperatorSession).where(OperatorSession.hash == _hash(token)))


def form_token(token: str) -> str:
    """What a form of this session's pages must carry."""
    return hashlib.sha256(b"form\0" + token.encode()).hexdigest()


def is_own_form(token: str, given: str) -> bool:
    """Whether a form came from a page of this session."""
    return hmac.compare_digest(form_token(token).encode(), given.encode())


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
