"""Rows of rounds: asked for, claimed by one worker at a time, ended, told what to do.

A claim is fenced: every later change a worker makes names its claim (`Ticket`), so that one which was given
up for lost changes nothing any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Text, case, cast, func, insert, null, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ratchet.db.models.training import RoundControl, TrainingRound
from ratchet.errors import DatabaseUnavailable, NotFound, UsageError
from ratchet.ids import new_id
from trainer.config import RoundConfig
from trainer.sink import Word

End = Literal["done", "failed", "stopped"]

ATTEMPTS = 3
"""Times a round is begun before it counts as one that cannot be carried out."""
YOUNG = timedelta(seconds=3)
_SHORTEST = 6


class RoundLost(Exception):
    """The round belongs to another worker now, or to none; the one that was told stops at once."""


@dataclass(frozen=True)
class Ticket:
    """One claim of a round.

    Attributes:
        id: The round.
        worker: Who claimed it.
        attempt: Which of its beginnings this is, from 1.
    """

    id: UUID
    worker: str
    attempt: int


@dataclass(frozen=True)
class Asked:
    """What a round is asked to do.

    Attributes:
        config: The whole configuration; the folders in it are those of the machine it was asked on.
        policy: `name@version` of the policy that is trained on.
        reference: `name@version` of the policy that KL is measured from.
        snapshot: Digest of the snapshot.
        by: Who asks, for people.
        reason: Why.
        sweep: Shared by the rounds of one sweep.
    """

    config: RoundConfig
    policy: str
    reference: str
    snapshot: str
    by: str
    reason: str
    sweep: UUID | None = None


def away(error: Exception) -> bool:
    """Whether an error says that PostgreSQL cannot be reached now; the same may work later."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated
    return isinstance(error, DatabaseUnavailable)


def ask(session: Session, asked: Asked) -> UUID:
    """Notes the wish for a round; the trainer's worker carries it out."""
    identity = new_id()
    session.execute(
        insert(TrainingRound).values(
            id=identity,
            method=asked.config.method.value,
            config=asked.config.content(),
            config_digest=asked.config.digest,
            snapshot=asked.snapshot,
            policy=asked.policy,
            reference=asked.reference,
            sweep=asked.sweep,
            asked_by=asked.by,
            reason=asked.reason,
        )
    )
    return identity


def due(session: Session) -> UUID | None:
    """The round that was asked for first and that nobody carries out yet.

    One that was asked for a moment ago may be carried out by whoever asked (`ratchet train`).
    """
    waiting = select(TrainingRound.id).where(
        TrainingRound.state == "asked", TrainingRound.created_at < func.now() - YOUNG
    )
    return session.scalars(waiting.order_by(TrainingRound.id).limit(1)).first()


def claim(
    session: Session, identity: UUID, *, worker: str, code_version: str, folder: str
) -> tuple[Ticket, TrainingRound] | None:
    """Takes a round that was asked for; None if it is another's or needs nothing done."""
    taken = session.scalars(
        update(TrainingRound)
        .where(TrainingRound.id == identity, TrainingRound.state == "asked")
        .values(
            state="running",
            worker=worker,
            beat_at=func.now(),
            attempts=TrainingRound.attempts + 1,
            started_at=func.coalesce(TrainingRound.started_at, func.now()),
            ended_at=null(),
            error=null(),
            code_version=code_version,
            folder=folder,
        )
        .returning(TrainingRound)
    ).one_or_none()
    return None if taken is None else (Ticket(identity, worker, taken.attempts), taken)


def held(session: Session, ticket: Ticket, **values: Any) -> None:
    """Changes a claimed round and says that its worker lives.

    Raises:
        RoundLost: The claim no longer holds.
    """
    changed = session.scalars(
        update(TrainingRound)
        .where(
            TrainingRound.id == ticket.id,
            TrainingRound.state == "running",
            TrainingRound.worker == ticket.worker,
            TrainingRound.attempts == ticket.attempt,
        )
        .values(beat_at=func.now(), **values)
        .returning(TrainingRound.id)
    ).one_or_none()
    if changed is None:
        raise RoundLost(f"round {ticket.id} is no longer {ticket.worker}'s")


def end(
    session: Session,
    ticket: Ticket,
    state: End,
    *,
    summary: dict[str, Any] | None = None,
    error: str | None = None,
) -> None:
    """Ends a claimed round.

    Raises:
        RoundLost: The claim no longer holds.
    """
    values: dict[str, Any] = {} if summary is None else {"summary": summary}
    held(session, ticket, state=state, ended_at=func.now(), error=error, **values)


def give_back(session: Session, ticket: Ticket) -> None:
    """Lets others claim a round whose worker has to end; this beginning does not count.

    Raises:
        RoundLost: The claim no longer holds.
    """
    held(session, ticket, state="asked", attempts=TrainingRound.attempts - 1)


def find_lost(session: Session, *, silent_for: timedelta) -> tuple[list[UUID], list[UUID]]:
    """Gives rounds whose worker fell silent back to be asked for; gives up those begun too often.

    Returns:
        Those that are asked for again, and those that failed.
    """
    too_often = TrainingRound.attempts >= ATTEMPTS
    reason = func.format(
        "its worker died %s times; the log in its folder says of what", TrainingRound.attempts
    )
    rows = session.execute(
        update(TrainingRound)
        .where(TrainingRound.state == "running", TrainingRound.beat_at < func.now() - silent_for)
        .values(
            state=case((too_often, "failed"), else_="asked"),
            error=case((too_often, reason), else_=null()),
            ended_at=case((too_often, func.now()), else_=null()),
        )
        .returning(TrainingRound.id, TrainingRound.state)
    ).all()
    again = [identity for identity, state in rows if state == "asked"]
    return again, [identity for identity, state in rows if state == "failed"]


def speak(session: Session, identity: UUID, word: Word, *, who: str, why: str) -> None:
    """Says a word to a round; the newest holds."""
    session.execute(insert(RoundControl).values(id=new_id(), round_id=identity, word=word, who=who, why=why))


def newest_word(session: Session, identity: UUID) -> RoundControl | None:
    """The word that holds for a round; None where none was ever said."""
    words = select(RoundControl).where(RoundControl.round_id == identity)
    return session.scalars(
        words.order_by(RoundControl.created_at.desc(), RoundControl.id.desc()).limit(1)
    ).first()


def stop(session: Session, identity: UUID, *, who: str, why: str) -> str:
    """Stops a round: one that runs keeps a last checkpoint, one that waits is never begun.

    Returns:
        Its state now: `stopped`, or `running` until it obeys.

    Raises:
        UsageError: It has ended.
    """
    found = _locked(session, identity)
    if found.state == "asked":
        found.state, found.ended_at, found.error = "stopped", datetime.now(UTC), None
    elif found.state != "running":
        raise UsageError(f"round {identity} is {found.state} already")
    speak(session, identity, "stop", who=who, why=why)
    return found.state


def resume(session: Session, identity: UUID, *, who: str, why: str) -> None:
    """Asks for the rest of a round that failed or was stopped.

    Raises:
        UsageError: It is done, or under way.
    """
    found = _locked(session, identity)
    if found.state not in ("failed", "stopped"):
        raise UsageError(f"round {identity} is {found.state}: only one that failed or was stopped is resumed")
    found.state, found.attempts, found.ended_at, found.error = "asked", 0, None, None
    speak(session, identity, "ok", who=who, why=why)


def find_round(session: Session, text: str) -> TrainingRound:
    """The round a person names: its id, the beginning or end of it, or `last`.

    Raises:
        NotFound: None is called so, or several are.
    """
    newest_first = select(TrainingRound).order_by(TrainingRound.id.desc())
    if text == "last":
        found = session.scalars(newest_first.limit(1)).all()
    elif len(text) < _SHORTEST:
        found = ()
    else:
        name = cast(TrainingRound.id, Text)
        found = session.scalars(
            newest_first.where(name.startswith(text) | name.endswith(text)).limit(2)
        ).all()
    if len(found) != 1:
        several = "several rounds are" if found else "no round is"
        raise NotFound(f"{several} called {text!r}: `ratchet round list` shows their ids")
    return found[0]


def list_rounds(session: Session, *, limit: int) -> Sequence[TrainingRound]:
    """Rounds, the newest first."""
    return session.scalars(select(TrainingRound).order_by(TrainingRound.id.desc()).limit(limit)).all()


def _locked(session: Session, identity: UUID) -> TrainingRound:
    found = session.get(TrainingRound, identity, with_for_update=True)
    if found is None:
        raise NotFound(f"no round {identity}: `ratchet round list` shows their ids")
    return found
