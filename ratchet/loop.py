"""A turn of the loop as rows: snapshot, train, select, release, one after the other.

    asked --> snapshot --> train --> select --> release
              feedback     trainer   evaluator  the release process

Each step is carried out by the subsystem it belongs to, as its own database role, which can change no other
step (row-level security). What a step asks for bears the turn's `signature`, so a step that is taken up again
finds what it asked for already, and asks once. A step ends `done`, or `skipped` where there is nothing to do;
one that `failed` or was `stopped` waits for `retry`, and whatever comes after it waits too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Text, cast, func, select, update
from sqlalchemy.orm import Session, aliased

from ratchet.db.models.operations import Loop, LoopStep
from ratchet.errors import NotFound, UsageError
from ratchet.ids import new_id

_SHORTEST = 6
_CHECKED = "checked"


class Step(StrEnum):
    """What a turn consists of, in its order."""

    SNAPSHOT = "snapshot"
    TRAIN = "train"
    SELECT = "select"
    RELEASE = "release"


class State(StrEnum):
    """How far a step, or a whole turn, is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    STOPPED = "stopped"


OPEN = (State.WAITING, State.RUNNING)
PASSED = (State.DONE, State.SKIPPED)
BROKEN = (State.FAILED, State.STOPPED)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a turn is asked to do.

    Attributes:
        model: Whose.
        policy: `name@version` that is trained on.
        method: `sft`, `dpo`, or `rm`, which leaves nothing to select and ends with training.
        config: The round's configuration, without model and snapshot.
        pairs: The snapshot's filter, as the feedback subsystem understands it.
        selection: What the evaluator is asked: `suites` (a name, or the text of a file), `judge`, `raters`,
            `primary`, `data`, `seed`.
        release: Start the release of what was selected; else it is only proposed.
        plan: Name of a release plan, or the text of its file; None where nothing is released.
    """

    model: str
    policy: str
    method: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pairs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    selection: Mapping[str, Any] = field(default_factory=dict[str, Any])
    release: bool = False
    plan: str | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps it takes."""
        return (Step.SNAPSHOT, Step.TRAIN) if self.method == "rm" else tuple(Step)


@dataclass(frozen=True, slots=True)
class Due:
    """A step that may be worked on.

    Attributes:
        loop: Its turn.
        step: The step.
        before: Subject of the step before it; None for the first.
    """

    loop: Loop
    step: LoopStep
    before: str | None

    @property
    def signature(self) -> str:
        """What whatever this turn asks for is signed with."""
        return signature(self.loop.id)


def signature(loop: UUID) -> str:
    """How a turn signs what it asks for."""
    return f"loop {loop}"


def begin(session: Session, wish: Wish, *, by: str, reason: str) -> UUID:
    """Asks for a turn.

    Args:
        session: As the operator.
        wish: What it does.
        by: Who asks, for people.
        reason: Why.

    Raises:
        UsageError: A turn of this model is under way.
    """
    session.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"ratchet loop {wish.model}"))))
    newest = select(Loop).where(Loop.model == wish.model).order_by(Loop.id.desc()).limit(1)
    other = session.scalars(newest).first()
    if other is not None and state_of(other, steps_of(session, other.id)) in OPEN:
        raise UsageError(
            f"a turn of {wish.model} is under way ({other.id}): wait for its end, or "
            f"`ratchet loop stop {other.id}`"
        )
    loop = Loop(
        id=new_id(), model=wish.model, policy=wish.policy, method=wish.method, asked_by=by, reason=reason,
        wish={name: value for name, value in asdict(wish).items() if name not in _COLUMNS},
    )  # fmt: skip
    session.add(loop)
    session.flush()
    session.add_all(
        LoopStep(loop_id=loop.id, step=step.value, place=place) for place, step in enumerate(wish.steps)
    )
    session.flush()
    return loop.id


_COLUMNS = ("model", "policy", "method")


def due(session: Session, step: Step) -> list[Due]:
    """The steps of a kind whose time has come, the oldest first; none of a turn of which a step failed."""
    mine, other = aliased(LoopStep), aliased(LoopStep)
    blocked = select(other).where(
        other.loop_id == mine.loop_id,
        (other.state == State.FAILED) | (other.place < mine.place) & other.state.not_in(PASSED),
    )
    rows = session.execute(
        select(Loop, mine)
        .join(mine, mine.loop_id == Loop.id)
        .where(mine.step == step, mine.state.in_(OPEN), Loop.stopped_at.is_(None), ~blocked.exists())
        .order_by(Loop.id)
    ).all()
    return [Due(loop, row, _before(session, row)) for loop, row in rows]


def check(session: Session, step: Step, problem: Callable[[Loop], str | None]) -> None:
    """Lets the owner of a late step look at what it will be asked, before the first step begins.

    Args:
        session: As the role the step belongs to.
        step: The step.
        problem: Says what is wrong with a turn's wish; None where nothing is.
    """
    unchecked = (
        select(Loop)
        .join(LoopStep, LoopStep.loop_id == Loop.id)
        .where(LoopStep.step == step, LoopStep.state == State.WAITING, ~LoopStep.detail.has_key(_CHECKED))
    )
    for loop in session.scalars(unchecked).all():
        error = problem(loop)
        if error is None:
            note(session, loop.id, step, State.WAITING, detail={_CHECKED: True})
        else:
            note(session, loop.id, step, State.FAILED, error=error)


def note(
    session: Session,
    loop: UUID,
    step: Step,
    state: State,
    *,
    subject: str | None = None,
    detail: Mapping[str, Any] | None = None,
    error: str | None = None,
) -> bool:
    """Says how far an open step is.

    Args:
        session: As the role the step belongs to.
        loop: The turn.
        step: The step.
        state: Its new state.
        subject: What it is about: a build, a round, a record, a release; None leaves it.
        detail: Figures for people; None leaves them.
        error: Why it failed.

    Returns:
        Whether it was still open; one that was stopped meanwhile stays so.
    """
    now = datetime.now(UTC)
    values: dict[str, Any] = {"state": state, "error": error}
    if subject is not None:
        values["subject"] = subject
    if detail is not None:
        values["detail"] = dict(detail)
    values["ended_at"] = None if state in OPEN else now
    if state is not State.WAITING:
        values["started_at"] = func.coalesce(LoopStep.started_at, now)
    changed = session.scalars(
        update(LoopStep)
        .where(LoopStep.loop_id == loop, LoopStep.step == step, LoopStep.state.in_(OPEN))
        .values(values)
        .returning(LoopStep.step)
    ).one_or_none()
    return changed is not None


def stop(session: Session, loop: UUID, *, who: str, why: str) -> None:
    """Stops a turn: the step under way is stopped by its subsystem, those after it are not begun.

    Raises:
        UsageError: It has ended.
    """
    row = session.get_one(Loop, loop, with_for_update=True)
    steps = steps_of(session, loop)
    if (state := state_of(row, steps)) not in OPEN:
        raise UsageError(f"this turn is {state} already")
    row.stopped_at, row.stopped_by, row.stop_reason = datetime.now(UTC), who, why
    for step in steps:
        if step.state in OPEN:
            note(session, loop, Step(step.step), State.STOPPED)


def retry(session: Session, loop: UUID) -> Step:
    """Takes a turn up again at the step that failed or was stopped.

    Returns:
        That step.

    Raises:
        UsageError: No step of it failed or was stopped.
    """
    row = session.get_one(Loop, loop, with_for_update=True)
    steps = steps_of(session, loop)
    broken = [step for step in steps if step.state in BROKEN]
    if not broken:
        raise UsageError(f"no step of this turn failed or was stopped: it is {state_of(row, steps)}")
    row.stopped_at = row.stopped_by = row.stop_reason = None
    for step in broken:
        step.state, step.error, step.ended_at, step.detail = State.WAITING, None, None, {}
        step.tries += 1
    return Step(broken[0].step)


def stopped(session: Session, step: Step) -> list[LoopStep]:
    """Steps of a kind that were stopped while they were worked on."""
    return list(
        session.scalars(
            select(LoopStep).where(
                LoopStep.step == step, LoopStep.state == State.STOPPED, LoopStep.subject.is_not(None)
            )
        )
    )


def steps_of(session: Session, loop: UUID) -> list[LoopStep]:
    """The steps of a turn, in their order."""
    return list(
        session.scalars(
            select(LoopStep)
            .where(LoopStep.loop_id == loop)
            .order_by(LoopStep.place)
            .execution_options(populate_existing=True)
        )
    )


def state_of(loop: Loop, steps: Sequence[LoopStep]) -> State:
    """How far a whole turn is."""
    states = {step.state for step in steps}
    if State.FAILED in states:
        return State.FAILED
    if loop.stopped_at is not None:
        return State.STOPPED
    if states <= set(PASSED):
        return State.DONE
    return State.WAITING if states == {State.WAITING} else State.RUNNING


def find_loop(session: Session, text: str) -> Loop:
    """The turn a person names: its id, the beginning or end of it, or `last`.

    Raises:
        NotFound: None is called so, or several are.
    """
    newest_first = select(Loop).order_by(Loop.id.desc())
    if text == "last":
        found = session.scalars(newest_first.limit(1)).all()
    elif len(text) < _SHORTEST:
        found = ()
    else:
        name = cast(Loop.id, Text)
        found = session.scalars(
            newest_first.where(name.startswith(text) | name.endswith(text)).limit(2)
        ).all()
    if len(found) != 1:
        several = "several turns are" if found else "no turn is"
        raise NotFound(f"{several} called {text!r}: `ratchet loop list` shows their ids")
    return found[0]


def _before(session: Session, step: LoopStep) -> str | None:
    return session.scalar(
        select(LoopStep.subject).where(LoopStep.loop_id == step.loop_id, LoopStep.place == step.place - 1)
    )
