"""The audit of releases: who did or tried what, why, and what it changed."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from ratchet.db.models.releases import Release, ReleaseEvent
from ratchet.errors import UsageError
from ratchet.ids import new_id
from ratchet.plan import Plan, current_plan


class Refused(UsageError):
    """A step that the release's state does not allow."""


@dataclass(frozen=True, slots=True)
class By:
    """Who does something, and why."""

    actor: str
    reason: str


def standing(release: Release) -> dict[str, Any]:
    """What an event keeps of a release."""
    return {"state": release.state, "stage": release.stage}


def note(
    session: Session,
    release: Release,
    kind: str,
    by: By,
    *,
    before: dict[str, Any] | None,
    plan_version: int | None = None,
) -> None:
    """Adds an event, with the plan as it is now beside the release."""
    session.flush()
    plan = current_plan(session, release.model)
    session.add(
        ReleaseEvent(
            id=new_id(),
            release_id=release.id,
            model=release.model,
            kind=kind,
            actor=by.actor,
            reason=by.reason,
            before=before,
            after={**standing(release), "arms": _arms(plan), "plan_version": plan.version if plan else None},
            plan_version=plan_version,
        )
    )


def note_plan(session: Session, before: Plan, kind: str, by: By, version: int) -> None:
    """Adds an event of a plan that was changed while no release was open."""
    plan = current_plan(session, before.model)
    session.add(
        ReleaseEvent(
            id=new_id(),
            model=before.model,
            kind=kind,
            actor=by.actor,
            reason=by.reason,
            before={"stage": before.stage, "arms": _arms(before)},
            after={"stage": plan.stage, "arms": _arms(plan)} if plan else None,
            plan_version=version,
        )
    )


def _arms(plan: Plan | None) -> dict[str, Any]:
    return {arm.arm.value: {"policy": arm.policy, "share": arm.share} for arm in plan.arms} if plan else {}


def note_refusal(session: Session, model: str, kind: str, by: By, release: Release | None, why: str) -> None:
    """Adds an event of a step that was refused."""
    session.add(
        ReleaseEvent(
            id=new_id(),
            release_id=release.id if release else None,
            model=model,
            kind=f"{kind}-refused",
            actor=by.actor,
            reason=by.reason,
            before=standing(release) if release else None,
            after={"refused": why},
        )
    )
