"""Snapshots on request: a wish is a row, carried out once, whoever asked."""

from datetime import datetime
from pathlib import Path
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from feedback.pairing import BuildRequest, build_snapshot
from feedback.privacy import Masker
from ratchet.canonical import canonical_json
from ratchet.db.engine import session_scope
from ratchet.errors import RatchetError, UsageError
from ratchet.ids import new_id

_ASK = text("""
    INSERT INTO feedback.snapshot_build (id, kind, request, requested_by)
    VALUES (:id, :kind, CAST(:request AS jsonb), :by)
""")
_TAKE = text("""
    SELECT request FROM feedback.snapshot_build WHERE id = :id AND state = 'pending' FOR UPDATE SKIP LOCKED
""")
_DONE = text("""
    UPDATE feedback.snapshot_build
    SET state = 'done', digest = :digest, ledger = CAST(:ledger AS jsonb),
        staleness = CAST(:staleness AS jsonb), finished_at = :now
    WHERE id = :id
""")
_FAILED = text("""
    UPDATE feedback.snapshot_build SET state = 'failed', error = :error, finished_at = :now WHERE id = :id
""")


def request_build(session: Session, request: BuildRequest, by: str) -> UUID:
    """Notes the wish for a snapshot; the feedback worker carries it out.

    Args:
        session: As a role that may insert into `feedback.snapshot_build`, such as `ratchet_trainer`.
        request: What is wanted.
        by: Who asks, for people.
    """
    identity = new_id()
    content = request.model_dump_json()
    session.execute(_ASK, {"id": identity, "kind": request.kind.value, "request": content, "by": by})
    return identity


def carry_out(engine: Engine, root: Path, build: UUID, *, now: datetime, masker: Masker | None) -> str | None:
    """Builds what was asked for, under a lock on the wish.

    Returns:
        The digest, or None if there was nothing to do or the wish cannot be met (its row says why).
    """
    with session_scope(engine) as session:
        wish = session.execute(_TAKE, {"id": build}).scalar()
        if wish is None:
            return None
        try:
            request = _parse(wish)
            built = build_snapshot(engine, root, request, now=now, masker=masker)
        except RatchetError as error:
            session.execute(_FAILED, {"id": build, "error": str(error), "now": now})
            return None
        digest = built.snapshot.manifest.digest
        session.execute(
            _DONE,
            {
                "id": build, "digest": digest, "ledger": canonical_json(built.ledger),
                "staleness": None if built.staleness is None else canonical_json(built.staleness), "now": now,
            },
        )  # fmt: skip
        return digest


def give_up(session: Session, build: UUID, reason: str, *, now: datetime) -> None:
    """Ends a wish that cannot be carried out."""
    session.execute(_FAILED, {"id": build, "error": reason, "now": now})


def _parse(wish: object) -> BuildRequest:
    try:
        return BuildRequest.model_validate(wish)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
