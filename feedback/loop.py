"""The first step of a turn of the loop: a snapshot of pairs, asked for and followed by rows."""

from typing import Any
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from feedback.builds import request_build
from feedback.pairing import BuildRequest
from ratchet.loop import Due, State, Step, due, note

_BUILD = text("""
    SELECT build.id, build.state, build.digest, build.error, build.ledger, build.staleness,
        CAST(made.manifest -> 'by_split' ->> 'train' AS integer) AS training_rows
    FROM feedback.snapshot_build AS build LEFT JOIN feedback.dataset_snapshot AS made USING (digest)
    WHERE build.requested_by = :by ORDER BY build.id DESC LIMIT 1
""")
_KIND = {"sft": "demonstrations"}


def take_steps(session: Session) -> None:
    """Asks for the snapshots that are due, and says what became of those under way.

    Args:
        session: As the role `ratchet_feedback`.
    """
    for one in due(session, Step.SNAPSHOT):
        _take(session, one)


def _take(session: Session, one: Due) -> None:
    build = session.execute(_BUILD, {"by": one.signature}).one_or_none()
    error = None if build is None else _error(build)
    if build is None or (error is not None and one.step.state == State.WAITING):
        _ask(session, one)
    elif build.state != "pending":
        state = State.DONE if error is None else State.FAILED
        detail = {"build": str(build.id), "ledger": build.ledger, "staleness": build.staleness}
        note(session, one.loop.id, Step.SNAPSHOT, state, subject=build.digest, detail=detail, error=error)


def _error(build: Row[Any]) -> str | None:
    """Why a build is no ground to train on; None where it is, or is not done."""
    if build.state == "done" and build.training_rows == 0:
        left = ", ".join(f"{number} {reason}" for reason, number in build.ledger["left_out"].items())
        return f"no datum became a training row: of {build.ledger['data']}, left out: {left or 'none'}"
    return build.error


def _ask(session: Session, one: Due) -> None:
    filters = {"kind": _KIND.get(one.loop.method, "pairs"), **one.loop.wish["pairs"]}
    try:
        request = BuildRequest.model_validate(filters)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        note(session, one.loop.id, Step.SNAPSHOT, State.FAILED, error=f"pairs.{place}: {first['msg']}")
        return
    build: UUID = request_build(session, request, one.signature)
    note(session, one.loop.id, Step.SNAPSHOT, State.RUNNING, detail={"build": str(build)})
