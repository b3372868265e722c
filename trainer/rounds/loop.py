"""The second step of a turn of the loop: a round on the turn's snapshot, asked for and followed by rows."""

from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from ratchet.db.engine import session_scope
from ratchet.db.models.training import Checkpoint, TrainingRound
from ratchet.errors import DatabaseUnavailable, RatchetError
from ratchet.home import Home
from ratchet.loop import Due, State, Step, due, note, signature, stopped
from trainer.config import Method, RoundConfig, parse
from trainer.rounds import repository
from trainer.rounds.asking import ask_for, prepare

_UNDER_WAY = ("asked", "running")


def take_steps(engine: Engine, home: Home) -> None:
    """Asks for the rounds that are due, and says what became of those under way.

    Args:
        engine: As the role `ratchet_trainer`.
        home: The data folder.
    """
    with session_scope(engine) as session:
        _stop(session)
        waiting = [one for one in due(session, Step.TRAIN) if not _follow(session, one)]
    for one in waiting:
        _ask(engine, home, one)


def _follow(session: Session, one: Due) -> bool:
    """Says how far the turn's round is; False where there is none yet."""
    row = _round(session, one.signature)
    if row is None:
        return False
    error: str | None = None
    match row.state:
        case "failed" | "stopped" if one.step.state == State.WAITING:
            repository.resume(session, row.id, who=one.signature, why="the turn was taken up again")
            state = State.RUNNING
        case "failed":
            state, error = State.FAILED, row.error or "it failed"
        case "stopped":
            state = State.STOPPED
        case "done":
            state = State.DONE
        case _:
            state = State.RUNNING
    detail = _told(session, row)
    note(session, one.loop.id, Step.TRAIN, state, subject=str(row.id), detail=detail, error=error)
    return True


def _ask(engine: Engine, home: Home, one: Due) -> None:
    def build(given: dict[str, Any]) -> RoundConfig:
        return parse({**one.loop.wish["config"], "method": one.loop.method, **given}, source="config")

    try:
        prepared = prepare(
            engine, home, Method(one.loop.method), build, policy=one.loop.policy, snapshot=one.before
        )
        identity = ask_for(engine, home, prepared, by=one.signature, reason=one.loop.reason)
    except DatabaseUnavailable:
        raise
    except RatchetError as error:
        with session_scope(engine) as session:
            note(session, one.loop.id, Step.TRAIN, State.FAILED, error=str(error))
        return
    with session_scope(engine) as session:
        note(session, one.loop.id, Step.TRAIN, State.RUNNING, subject=str(identity))


def _stop(session: Session) -> None:
    """Stops the rounds of turns that were stopped."""
    for step in stopped(session, Step.TRAIN):
        row = _round(session, signature(step.loop_id))
        if row is None or row.state not in _UNDER_WAY:
            continue
        word = repository.newest_word(session, row.id)
        if word is None or word.word != "stop":
            repository.stop(session, row.id, who=signature(step.loop_id), why="its turn was stopped")


def _round(session: Session, by: str) -> TrainingRound | None:
    asked = select(TrainingRound).where(TrainingRound.asked_by == by)
    return session.scalars(asked.order_by(TrainingRound.id.desc()).limit(1)).first()


def _told(session: Session, row: TrainingRound) -> dict[str, Any]:
    """How far it is, and what became of its rows; the evaluator reads this, so nothing of rewards."""
    candidates = select(func.count(Checkpoint.policy.distinct())).where(Checkpoint.round_id == row.id)
    data = row.data or {}
    return {
        "step": row.step,
        "total_steps": row.total_steps,
        "candidates": session.scalar(candidates),
        "data": {name: data[name] for name in ("used", "dropped") if name in data},
    }
