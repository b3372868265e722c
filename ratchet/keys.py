"""API keys: 256 random bits, shown once, stored as their SHA-256 (no dictionary reaches those)."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from ratchet.db.models.serving import ApiKey
from ratchet.errors import NotFound, UsageError
from ratchet.ids import new_id

PREFIX = "rk-"
SHOWN = 10


class KeyRole(StrEnum):
    """What a key may do."""

    CLIENT = "client"
    """Ask for answers, and speak of its own."""
    RATER = "rater"
    """Sign in to the rating page."""
    OPERATOR = "operator"
    """Run releases, read every response."""
    SERVICE = "service"
    """Ask on behalf of Ratchet itself, such as probes."""


@dataclass(frozen=True)
class NewKey:
    """A key just minted.

    Attributes:
        text: The key itself; shown once, never stored.
        prefix: Its first characters, by which people recognise it.
        hash: What is stored.
    """

    text: str
    prefix: str
    hash: bytes


def hash_key(text: str) -> bytes:
    """The 32 bytes that are stored for a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def mint() -> NewKey:
    """A fresh key."""
    text = PREFIX + secrets.token_urlsafe(32)
    return NewKey(text=text, prefix=text[:SHOWN], hash=hash_key(text))


def create_key(
    session: Session,
    role: KeyRole,
    name: str,
    *,
    rpm: int | None = None,
    concurrency: int | None = None,
) -> tuple[ApiKey, str]:
    """Adds a key.

    Args:
        session: As the operator.
        role: What it may do.
        name: Whose it is, for people.
        rpm: Requests a minute; None without bound.
        concurrency: Requests in flight at once; None without bound.

    Returns:
        Its row, and its text, which is never seen again.

    Raises:
        UsageError: A limit is below 1.
    """
    limits = {
        limit: value for limit, value in (("rpm", rpm), ("concurrency", concurrency)) if value is not None
    }
    if any(value < 1 for value in limits.values()):
        raise UsageError("a limit is at least 1; leave it out for none")
    key = mint()
    row = ApiKey(
        id=new_id(),
        name=name,
        role=role.value,
        prefix=key.prefix,
        hash=key.hash,
        limits=limits,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row, key.text


def list_keys(session: Session) -> Sequence[ApiKey]:
    """Every key, also those revoked, newest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id.desc())).all()


def revoke_key(session: Session, which: str) -> ApiKey:
    """Revokes a key; every gateway refuses it within moments. One revoked before keeps its time.

    Args:
        session: As the operator.
        which: Its id, its shown prefix, or the key itself.

    Raises:
        NotFound: No key is called so.
        UsageError: The prefix is that of several keys.
    """
    found = session.scalars(select(ApiKey).where(_called(which))).all()
    if not found:
        raise NotFound("no such key; `ratchet keys list` shows ids and prefixes")
    if len(found) > 1:
        raise UsageError(f"{len(found)} keys begin with {which}: give the id of the one you mean")
    key = found[0]
    if key.revoked_at is None:
        key.revoked_at = datetime.now(UTC)
    return key


def _called(which: str) -> ColumnElement[bool]:
    try:
        return ApiKey.id == UUID(which)
    except ValueError:
        return ApiKey.prefix == which if len(which) == SHOWN else ApiKey.hash == hash_key(which)
