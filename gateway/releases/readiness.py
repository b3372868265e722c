"""Is the candidate's engine ready for its first request? Proved by a gateway, and since then the same
engine."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from ratchet.db.models.registry import EngineProof, EngineRow
from ratchet.db.models.releases import Release


def why_not_ready(session: Session, release: Release) -> str | None:
    """Why the engine of a release may get no request yet; None once it is proved.

    A proof counts only for the boot it was made of: a managed engine has a new fingerprint after each start.
    """
    engine = session.get_one(EngineRow, release.engine_id)
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
