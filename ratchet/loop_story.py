"""Turns of the loop for people: their timeline, what became of every datum, and what each turn was worth."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from ratchet.db.models.evaluation import SelectionRow
from ratchet.db.models.operations import Loop, LoopStep
from ratchet.loop import State, Step, state_of, steps_of

Document = dict[str, Any]

_INNER = ("ledger", "staleness", "alarm", "build", "checked")
"""Parts of a step's detail that the document shows elsewhere, or not at all."""


def turns(session: Session, *, model: str | None = None, limit: int = 20) -> list[Document]:
    """Turns, the newest first.

    Args:
        session: As a role that reads selection records, such as the operator.
        model: Whose; None: everyone's.
        limit: At most so many.
    """
    wanted = select(Loop).order_by(Loop.id.desc()).limit(limit)
    if model is not None:
        wanted = wanted.where(Loop.model == model)
    return [turn(session, loop) for loop in session.scalars(wanted).all()]


def turn(session: Session, loop: Loop) -> Document:
    """One turn as its timeline, its ledger, and the held-out gain beside the share of stale rows."""
    steps = steps_of(session, loop.id)
    by_name = {step.step: step for step in steps}
    snapshot, train, selected = (by_name.get(step) for step in (Step.SNAPSHOT, Step.TRAIN, Step.SELECT))
    record = _record(session, selected)
    return {
        "loop": str(loop.id),
        "model": loop.model,
        "policy": loop.policy,
        "method": loop.method,
        "state": state_of(loop, steps).value,
        "releases": loop.wish["release"],
        "asked_by": loop.asked_by,
        "reason": loop.reason,
        "created_at": loop.created_at,
        "ended_at": _ended(steps),
        "stopped_by": loop.stopped_by,
        "stop_reason": loop.stop_reason,
        "steps": [_step(step) for step in steps],
        "ledger": ledger(snapshot.detail if snapshot else {}, train.detail if train else {}),
        "stale_share": stale_share((snapshot.detail if snapshot else {}).get("staleness")),
        "chosen": record.chosen if record else None,
        "gain": gain_of(record.record, record.chosen) if record else None,
        "words": words(loop, steps),
    }


def ledger(snapshot: Document, training: Document) -> Document | None:
    """What became of every datum: trained on, held out, or left out and why; null before the snapshot is.

    A datum is a vote, a comparison, a signal or an import. `data` is the sum of the other counts. Rows of the
    snapshot that training then leaves out are counted apart, in rows: several data may stand behind one.

    Args:
        snapshot: Detail of the step `snapshot`.
        training: Detail of the step `train`.
    """
    read = snapshot.get("ledger")
    if not read:
        return None
    used: Document | None = training.get("data") or None
    return {
        "data": read["data"],
        "in_the_snapshot": read["used"],
        "held_out": read["held_out"],
        "left_out": read["left_out"],
        "rows_trained_on": None if used is None else used["used"],
        "rows_left_out": None if used is None else used["dropped"],
    }


def stale_share(staleness: Document | None) -> float | None:
    """Share of rows in which a policy speaks that is not the one trained on; null where it is not known."""
    if not staleness or not staleness["rows"]:
        return None
    fresh: int = staleness["by_distance"].get("0", 0) + staleness["unspoken"]
    return 1 - fresh / staleness["rows"]


def gain_of(record: Document, chosen: str | None) -> Document | None:
    """How much better the chosen policy is by the figure that ranked it; null where none was chosen.

    Args:
        record: A selection record.
        chosen: The policy it chose.
    """
    shown = next((one for one in record["candidates"] if one["policy"] == chosen), None)
    if shown is None or shown["primary"] is None:
        return None
    primary: Document = shown["primary"]
    nothing: float = primary["nothing_gained"]
    ends = {name: primary[name] for name in ("estimate", "low", "high")}
    return {
        "name": primary["name"],
        **{name: None if value is None else value - nothing for name, value in ends.items()},
    }


def words(loop: Loop, steps: list[LoopStep]) -> str:
    """One line on how a turn stands."""
    broken = next((step for step in steps if step.state == State.FAILED), None)
    if broken is not None:
        return f"{broken.step} failed: {broken.error}"
    if loop.stopped_at is not None:
        return f"stopped by {loop.stopped_by}: {loop.stop_reason}"
    working = next((step for step in steps if step.state not in (State.DONE, State.SKIPPED)), None)
    if working is not None:
        return f"{working.step} is {working.state}"
    last = steps[-1]
    if last.state == State.SKIPPED:
        return f"nothing is proposed: {last.detail.get('reason', 'there was nothing to choose')}"
    if "proposed" in last.detail:
        return f"{last.detail['proposed']} is proposed: `{last.detail['command']}` releases it"
    if "policy" in last.detail:
        return f"{last.detail['policy']} is in production"
    return "done"


def _record(session: Session, selected: LoopStep | None) -> SelectionRow | None:
    if selected is None or selected.subject is None:
        return None
    return session.get(SelectionRow, UUID(selected.subject))


def _step(step: LoopStep) -> Document:
    return {
        "step": step.step,
        "state": step.state,
        "subject": step.subject,
        "detail": {name: value for name, value in step.detail.items() if name not in _INNER},
        "error": step.error,
        "tries": step.tries,
        "started_at": step.started_at,
        "ended_at": step.ended_at,
    }


def _ended(steps: list[LoopStep]) -> datetime | None:
    moments = [step.ended_at for step in steps if step.ended_at is not None]
    return max(moments) if len(moments) == len(steps) else None
