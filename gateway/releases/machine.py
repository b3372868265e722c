"""The way of a release, one function a step: each changes the release, the traffic plan and the audit
together.

    preparing --> running <--> paused          any open state --> aborted
        |            |            |
        |            +-- last stage of the plan --> promoted --> closed
        +--> failed

Every step first takes the model's lock, so that of two operators in the same second one is first, and the
other is told what became of it. The session is the caller's, who commits once.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from gateway.releases.audit import By, Refused, note, note_plan, standing
from gateway.releases.engines import want_engine
from gateway.releases.plan import HOLDBACK, ReleasePlan
from gateway.releases.replication import observed_of, predicted_by, selection_of
from ratchet.db.models.releases import Drill, OfflineAbort, Release
from ratchet.ids import new_id
from ratchet.plan import Arm, Enforcement, Plan, PlannedArm, current_plan, publish
from ratchet.registry import resolve

PREPARING = "preparing"
RUNNING = "running"
PAUSED = "paused"
PROMOTED = "promoted"
CLOSED = "closed"
ABORTED = "aborted"
FAILED = "failed"
PRODUCTION = "production"


_LOCK = text("SELECT pg_advisory_xact_lock(hashtext('ratchet release ' || :model))")


@dataclass(frozen=True, slots=True)
class Wish:
    """What an operator starts.

    Attributes:
        policy: `name@version`, or a name for its newest version.
        plan: How it is released.
        engine_url: Where an engine of it listens already; None: the supervisor starts one.
        predicted: Effects that are expected: metric to `{"estimate", "low", "high"}`; None takes those of the
            newest selection that chose the policy.
        override: Release it though no selection chose it; the audit and every page say so.
    """

    policy: str
    plan: ReleasePlan
    engine_url: str | None = None
    predicted: dict[str, Any] | None = None
    override: bool = False


def lock(session: Session, model: str) -> None:
    """Waits until no other step of this model's releases is under way, and keeps others out until the
    commit."""
    session.execute(_LOCK, {"model": model})


def open_release(session: Session, model: str) -> Release | None:
    """The release of a model that is not over."""
    return session.scalars(
        select(Release).where(Release.model == model, Release.ended_at.is_(None))
    ).one_or_none()


def expect(session: Session, model: str, release: UUID | None, seen: str | None) -> None:
    """Makes sure that the open release of a model is still what somebody saw; None takes any.

    Args:
        session: As the operator, with the model's lock.
        model: Whose release.
        release: Its id.
        seen: The name of its stage.

    Raises:
        Refused: Another one is open, none is, or it is at another stage.
    """
    found = open_release(session, model)
    if release is not None and (found is None or found.id != release):
        meant = session.get(Release, release)
        over = (
            f"the release of {meant.policy} is {meant.state}" if meant else f"there is no release {release}"
        )
        raise Refused(f"{over}" + (f"; open is one of {found.policy}" if found else ""))
    if seen is not None and found is not None and found.stage != seen:
        raise Refused(f"the release of {found.policy} has meanwhile gone on from {seen} to {found.stage}")


def start(session: Session, wish: Wish, by: By) -> Release:
    """Begins a release: an engine is wanted; no request reaches the policy before it is proved and warm.

    Raises:
        NotFound: The policy is not registered.
        Refused: Nothing is in production, the policy already is, a release is open, no drill is young
            enough, or no selection chose the policy and the wish does not override that.
    """
    policy = resolve(session, wish.policy)
    model = policy.name
    lock(session, model)
    current = current_plan(session, model)
    if current is None:
        raise Refused(
            f"{model} has no policy in production yet: `ratchet up --model {model}` serves its first one"
        )
    if current.production == policy.ref:
        raise Refused(f"{policy.ref} is in production already")
    other = open_release(session, model)
    if other is not None:
        raise Refused(
            f"a release of {other.policy} is {other.state} (stage {other.stage}): one at a time for {model};"
            " close it where it is promoted, else abort it first"
        )
    _need_drill(session, model, wish.plan)
    chosen_by = selection_of(session, policy.ref)
    if chosen_by is None and not wish.override:
        raise Refused(
            f"no selection chose {policy.ref}: `ratchet select --round ID` writes the record that a release"
            " rests on; --override releases it without one, and the audit says so"
        )
    engine, own = want_engine(session, policy.ref, wish.engine_url)
    release = Release(
        id=new_id(),
        model=model,
        policy=policy.ref,
        baseline=current.production,
        plan_name=wish.plan.name,
        plan=wish.plan.model_dump(mode="json"),
        salt=secrets.token_hex(8),
        state=PREPARING,
        stage=PREPARING,
        stage_number=-1,
        engine_id=engine.id,
        engine_own=own,
        actor=by.actor,
        reason=by.reason,
        selection_id=chosen_by.id if chosen_by else None,
        overridden=chosen_by is None,
        predicted=wish.predicted or (predicted_by(chosen_by) if chosen_by else None),
    )
    session.add(release)
    session.flush()
    told = f"{by.reason}; overridden: no selection chose it" if release.overridden else by.reason
    note(session, release, "started", By(by.actor, told), before=None)
    return release


def enter(session: Session, release: Release, number: int, by: By) -> None:
    """Gives the policy the traffic of a stage of its plan, or, past the last one, of production."""
    plan = plan_of(release)
    promoted = number >= len(plan.stages)
    name = (HOLDBACK if plan.holdback else PRODUCTION) if promoted else plan.stages[number].name
    before = standing(release)
    arms = arms_of(release, plan, number)
    version = _publish(session, release, name, arms, by, fallback=release.baseline if promoted else None)
    release.state = PROMOTED if promoted else RUNNING
    release.stage = name
    release.stage_number = min(number, len(plan.stages))
    release.stage_since = datetime.now(UTC)
    release.stage_plan = version
    release.paused_at = None
    release.first_plan = release.first_plan or version
    note(session, release, PROMOTED if promoted else "advanced", by, before=before, plan_version=version)


def advance(
    session: Session, model: str, by: By, *, seen: int | None = None, to_end: bool = False
) -> Release:
    """Goes on to the next stage, or at once to production.

    Args:
        session: As the operator.
        model: Whose release.
        by: Who, and why.
        seen: The stage that the decision was taken at; None takes whatever there is.
        to_end: Skip the stages between.

    Raises:
        Refused: The release is not at that stage, or has no next one.
    """
    lock(session, model)
    release = _demand(session, model, "promoted", (RUNNING, PAUSED))
    if seen is not None and release.stage_number != seen:
        raise Refused(f"the release of {release.policy} has meanwhile gone on to {release.stage}")
    enter(session, release, len(plan_of(release).stages) if to_end else release.stage_number + 1, by)
    return release


def pause(session: Session, model: str, by: By) -> Release:
    """Keeps the shares as they are; harm still aborts.

    Raises:
        Refused: Nothing is running.
    """
    lock(session, model)
    release = _demand(session, model, "paused", (RUNNING,))
    before = standing(release)
    release.state = PAUSED
    release.paused_at = datetime.now(UTC)
    note(session, release, "paused", by, before=before)
    return release


def resume(session: Session, model: str, by: By) -> Release:
    """Lets a paused release go on.

    Raises:
        Refused: Nothing is paused.
    """
    lock(session, model)
    release = _demand(session, model, "resumed", (PAUSED,))
    before = standing(release)
    release.state = RUNNING
    if release.paused_at is not None:
        release.stage_since += datetime.now(UTC) - release.paused_at
        release.paused_at = None
    note(session, release, "resumed", by, before=before)
    return release


def abort(session: Session, model: str, by: By, *, cut: bool = False) -> Release:
    """Sends all traffic back to the last good policy, from any open state.

    Args:
        session: As the operator.
        model: Whose release.
        by: Who, and why.
        cut: End answers under way of the bad policy with an error.

    Raises:
        Refused: No release is open.
    """
    lock(session, model)
    release = _demand(session, model, "aborted", (PREPARING, RUNNING, PAUSED, PROMOTED))
    before = standing(release)
    arms = (PlannedArm(Arm.PRODUCTION, release.baseline, 1.0),)
    version = None
    if release.first_plan:
        version = _publish(session, release, PRODUCTION, arms, by, cut=cut)
        release.observed = observed_of(session, release)
    _end(release, ABORTED)
    note(session, release, "aborted", by, before=before, plan_version=version)
    return release


def fail(session: Session, model: str, by: By) -> Release:
    """Ends a release whose engine never became ready; no request ever reached it.

    Raises:
        Refused: The release is past that.
    """
    lock(session, model)
    release = _demand(session, model, "failed", (PREPARING,))
    before = standing(release)
    _end(release, FAILED)
    note(session, release, "failed", by, before=before)
    return release


def close(session: Session, model: str, by: By, observed: dict[str, Any] | None = None) -> Release:
    """Ends a release that was promoted: no holdback, and the previous policy's engine may go.

    Raises:
        Refused: It was not promoted.
    """
    lock(session, model)
    release = _demand(session, model, "closed", (PROMOTED,))
    before = standing(release)
    arms = (PlannedArm(Arm.PRODUCTION, release.policy, 1.0),)
    version = _publish(session, release, PRODUCTION, arms, by)
    release.observed = observed
    _end(release, CLOSED)
    note(session, release, "closed", by, before=before, plan_version=version)
    return release


def settle_offline(session: Session, told: OfflineAbort) -> None:
    """Makes a switch that was thrown on a gateway's host the plan of every gateway.

    A release that was started since then is not the one it was thrown for, and stays.
    """
    lock(session, told.model)
    by = By(
        told.actor,
        f"{told.reason} (switched offline at {told.switched_at:%Y-%m-%d %H:%M:%S} on {told.gateway})",
    )
    current = current_plan(session, told.model)
    release = open_release(session, told.model)
    if release is not None and release.created_at > told.switched_at:
        spared = By(by.actor, f"{by.reason}: this release was started since then")
        note(session, release, "abort-skipped", spared, before=standing(release))
    elif release is not None:
        abort(session, told.model, by, cut=told.cut)
    elif current is not None:
        arms = current.withdrawn().arms
        version = publish(
            session, model=current.model, stage=PRODUCTION, arms=arms, actor=by.actor, reason=by.reason,
            enforcement=current.enforcement, salt=current.salt, cut=told.cut,
        )  # fmt: skip
        note_plan(session, current, "withdrawn", by, version)
    told.settled_at = datetime.now(UTC)


def plan_of(release: Release) -> ReleasePlan:
    """The plan a release follows.

    Raises:
        ConfigError: It was checked by another version of Ratchet, and is none to this one.
    """
    return ReleasePlan.parse(release.plan, source=f"the plan of {release.policy}")


def arms_of(release: Release, plan: ReleasePlan, number: int) -> tuple[PlannedArm, ...]:
    """Who gets which share at a stage; past the last one the policy is in production, but for a holdback."""
    new, old = release.policy, release.baseline
    if number >= len(plan.stages):
        held = plan.holdback.share if plan.holdback else 0.0
        production = PlannedArm(Arm.PRODUCTION, new, 1 - held)
        return (production, PlannedArm(Arm.HOLDBACK, old, held)) if held else (production,)
    stage = plan.stages[number]
    if stage.kind == "shadow":
        return PlannedArm(Arm.PRODUCTION, old, 1.0), PlannedArm(Arm.SHADOW, new, stage.share)
    return PlannedArm(Arm.PRODUCTION, old, 1 - stage.share), PlannedArm(Arm.CANARY, new, stage.share)


def _publish(
    session: Session,
    release: Release,
    stage: str,
    arms: tuple[PlannedArm, ...],
    by: By,
    *,
    fallback: str | None = None,
    cut: bool = False,
) -> int:
    current: Plan | None = current_plan(session, release.model)
    return publish(
        session,
        model=release.model,
        stage=stage,
        arms=arms,
        actor=by.actor,
        reason=by.reason,
        enforcement=current.enforcement if current else Enforcement.REPLACE,
        salt=release.salt,
        fallback=fallback,
        cut=cut,
    )


def _demand(session: Session, model: str, word: str, states: tuple[str, ...]) -> Release:
    release = open_release(session, model)
    if release is None:
        last = session.scalars(
            select(Release).where(Release.model == model).order_by(Release.id.desc()).limit(1)
        ).first()
        told = (
            f"; that of {last.policy} was {last.state} at {last.ended_at:%Y-%m-%d %H:%M:%S} UTC"
            if last
            else ""
        )
        raise Refused(f"no release of {model} is open{told}")
    if release.state not in states:
        raise Refused(
            f"the release of {release.policy} is {release.state} and cannot be {word};"
            f" that takes one that is {' or '.join(states)}"
        )
    return release


def _end(release: Release, state: str) -> None:
    release.state = state
    release.paused_at = None
    release.ended_at = datetime.now(UTC)


def _need_drill(session: Session, model: str, plan: ReleasePlan) -> None:
    newest = select(Drill).where(Drill.model == model).order_by(Drill.id.desc())
    if session.scalars(newest.where(Drill.finished_at.is_(None)).limit(1)).first() is not None:
        raise Refused(f"a drill of {model} is under way: wait for its end")
    good = session.scalars(newest.where(Drill.state == "good").limit(1)).first()
    command = f"`ratchet release drill {model}` pulls the switch on live traffic and back"
    if good is None or good.finished_at is None:
        raise Refused(f"the abort switch of {model} has never been tried well: {command}")
    age = datetime.now(UTC) - good.finished_at
    if age > timedelta(days=plan.drill_max_age_days):
        raise Refused(
            f"the last good drill of {model} is {age / timedelta(days=1):.1f} days old, and the plan allows"
            f" {plan.drill_max_age_days:g}: {command}"
        )
