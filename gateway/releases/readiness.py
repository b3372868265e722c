"""Is an engine ready for a policy's first request? Proved by a gateway, and since then the same engine."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from ratchet.db.models.registry import EngineProof, EngineRow
from ratchet.db.models.releases import Release


def why_not_ready(session: Session, release: Release) -> str | None:
    """Why the engine of a release may get no request yet; None once it is proved."""
    return why_no_request(session, session.get_one(EngineRow, release.engine_id))


def why_not_served(session: Session, policy: str) -> str | None:
    """Why no engine of a policy may get a request; None where one may."""
    wanted = select(EngineRow).where(EngineRow.policy == policy, EngineRow.desired == "up")
    engines = session.scalars(wanted.order_by(EngineRow.id.desc())).all()
    reasons = [why_no_request(session, engine) for engine in engines]
    return "no engine serves it" if not reasons else None if None in reasons else reasons[0]


def why_no_request(session: Session, engine: EngineRow) -> str | None:
    """Why an engine may get no request yet; None once it is proved.

    A proof counts only for the boot it was made of: a managed engine has a new fingerprint after each start.
    """
    if engine.desired != "up":
        return "its engine is not wanted any more"
    if engine.managed and engine.state != "up":
        told = f", last error: {engine.last_error}" if engine.last_error else ""
        return f"its engine is {engine.state}{told}"
    proof = session.scalars(
        select(EngineProof).where(EngineProof.engine_id == engine.id).order_by(EngineProof.id.desc()).limit(1)
    ).first()
    if proof is None:
        return "no gateway has proved its engine yet"
    if not proof.ok:
        return f"its engine is not the policy: {proof.reason}"
    if engine.managed and proof.fingerprint != engine.fingerprint:
        return "its engine has restarted and is to be proved anew"
    return None
