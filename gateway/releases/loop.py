"""The last step of a turn of the loop: what was selected is released, or proposed to who may release it."""

from typing import Any
from uuid import UUID

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from gateway.releases import machine
from gateway.releases.audit import By
from gateway.releases.control import Control
from gateway.releases.machine import Wish
from gateway.releases.plans import plan_of_text
from ratchet.alarms import raise_alarm
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import SelectionRow
from ratchet.db.models.operations import Loop, LoopStep
from ratchet.db.models.releases import Release
from ratchet.errors import UsageError
from ratchet.loop import Due, State, Step, check, due, note

LOOP_FAILED = "loop_failed"
"""Alarm: a step of a turn of the loop failed; stands until a person clears it."""
TOLD = "alarm"
_BAD = (machine.ABORTED, machine.FAILED)


def take_steps(engine: Engine, control: Control) -> None:
    """Releases or proposes what is due, says what became of releases under way, and raises alarms.

    Args:
        engine: As the role `ratchet_operator`.
        control: What can be done with releases.
    """
    with session_scope(engine) as session:
        check(session, Step.RELEASE, _problem)
        waiting = [one for one in due(session, Step.RELEASE) if not _follow(session, one)]
    for one in waiting:
        _start(engine, control, one)
    with session_scope(engine) as session:
        _raise_alarms(session)


def _follow(session: Session, one: Due) -> bool:
    """Says how far the turn is without anything being started; False where a release is to be."""
    loop = one.loop.id
    record = session.get(SelectionRow, UUID(one.before)) if one.before else None
    if record is None or record.chosen is None:
        reason = record.reason if record else "nothing was there to choose from"
        note(session, loop, Step.RELEASE, State.SKIPPED, detail={"reason": reason})
        return True
    if not one.loop.wish["release"]:
        detail = {"proposed": record.chosen, "command": f"ratchet release start {record.chosen}"}
        note(session, loop, Step.RELEASE, State.DONE, detail=detail)
        return True
    asked = select(Release).where(Release.actor == one.signature).order_by(Release.id.desc()).limit(1)
    release = session.scalars(asked).first()
    if release is None or (release.state in _BAD and one.step.state == State.WAITING):
        return False
    detail = {"policy": release.policy, "state": release.state, "stage": release.stage}
    subject = str(release.id)
    if release.state in _BAD:
        error = f"the release of {release.policy} was {release.state}: `ratchet release history` says why"
        note(session, loop, Step.RELEASE, State.FAILED, subject=subject, detail=detail, error=error)
    elif release.state in (machine.PROMOTED, machine.CLOSED):
        note(session, loop, Step.RELEASE, State.DONE, subject=subject, detail=detail)
    elif (one.step.state, one.step.detail) != (State.RUNNING, detail):
        note(session, loop, Step.RELEASE, State.RUNNING, subject=subject, detail=detail)
    return True


def _start(engine: Engine, control: Control, one: Due) -> None:
    with session_scope(engine) as session:
        chosen = str(session.get_one(SelectionRow, UUID(str(one.before))).chosen)
    try:
        plan = plan_of_text(one.loop.wish["plan"])
        started: dict[str, Any] = control.start(Wish(chosen, plan), By(one.signature, one.loop.reason))
    except UsageError as error:
        with session_scope(engine) as session:
            note(session, one.loop.id, Step.RELEASE, State.FAILED, error=str(error))
        return
    with session_scope(engine) as session:
        note(session, one.loop.id, Step.RELEASE, State.RUNNING, subject=started["release"])


def _problem(loop: Loop) -> str | None:
    if loop.wish["plan"] is None:
        return None
    try:
        plan_of_text(loop.wish["plan"])
    except UsageError as error:
        return str(error)
    return None


def _raise_alarms(session: Session) -> None:
    """Raises one alarm for each failure of a step."""
    untold = select(LoopStep, Loop.model).join(Loop, Loop.id == LoopStep.loop_id)
    for step, model in session.execute(
        untold.where(LoopStep.state == State.FAILED, ~LoopStep.detail.has_key(TOLD))
    ).all():
        told = {"model": model, "step": step.step, "reason": step.error}
        raise_alarm(session, LOOP_FAILED, str(step.loop_id), told)
        step.detail = {**step.detail, TOLD: True}
