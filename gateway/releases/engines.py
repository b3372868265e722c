"""Engines of releases: wanted at the start, let go some time after the end."""

from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from ratchet.db.models.registry import EngineRow
from ratchet.db.models.releases import Release
from ratchet.ids import new_id
from ratchet.plan import current_plans

DRAIN = timedelta(minutes=11)
"""Engines of a policy that was taken back stay so long: an answer under way may take ten minutes."""


def want_engine(session: Session, policy: str, url: str | None) -> tuple[EngineRow, bool]:
    """The policy's engine, and whether it is wanted from now on only."""
    if url is not None:
        engine = EngineRow(id=new_id(), policy=policy, managed=False, desired="up", state="up", url=url)
        session.add(engine)
        session.flush()
        return engine, True
    rows = session.scalars(
        select(EngineRow).where(EngineRow.policy == policy).order_by(EngineRow.id.desc())
    ).all()
    engine = next((row for row in rows if row.desired == "up"), None)
    if engine is not None:
        return engine, False
    engine = next((row for row in rows if row.managed), None)
    if engine is None:
        engine = EngineRow(id=new_id(), policy=policy, managed=True, desired="up", state="waiting")
        session.add(engine)
    else:
        engine.desired = "up"
        engine.state = "waiting"
    session.flush()
    return engine, True


def let_engines_go(session: Session, now: datetime) -> list[str]:
    """Wants no managed engine any more of policies whose release is over and that nothing names.

    Returns:
        The policies.
    """
    ended = session.scalars(
        select(Release).where(Release.ended_at < now - DRAIN, Release.engines_down.is_(None))
    ).all()
    if not ended:
        return []
    open_ones = session.scalars(select(Release).where(Release.ended_at.is_(None))).all()
    needed = {policy for plan in current_plans(session).values() for policy in plan.policies}
    needed |= {policy for release in open_ones for policy in (release.policy, release.baseline)}
    gone: list[str] = []
    for release in ended:
        release.engines_down = now
        for policy in (release.policy, release.baseline):
            if policy in needed or (policy == release.policy and not release.engine_own):
                continue
            down = session.execute(
                update(EngineRow)
                .where(EngineRow.policy == policy, EngineRow.desired == "up")
                .where(EngineRow.managed | (EngineRow.id == release.engine_id))
                .values(desired="down", updated_at=func.now())
                .returning(EngineRow.id)
            )
            gone += [policy] if down.all() else []
    return gone
