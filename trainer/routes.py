"""Rounds over HTTP, for operators: asked for, looked at, stopped and resumed. Rows ask; the worker acts."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine, text

from ratchet.db.engine import session_scope
from ratchet.home import Home
from ratchet.keys import hash_key
from trainer.rounds import reading, repository
from trainer.rounds.asking import RoundRequest, ask_by_request


class Reason(BaseModel):
    """What stopping and resuming take."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=2_000)


def _engine(request: Request) -> Engine:
    return request.app.state.engine


At = Annotated[Engine, Depends(_engine)]


def _operator(engine: At, authorization: Annotated[str | None, Header()] = None) -> str:
    """Name of the operator's key.

    Raises:
        HTTPException: 401 for no key or an unknown one, also one that is not an operator's.
    """
    presented = hash_key((authorization or "").removeprefix("Bearer "))
    with session_scope(engine) as session:
        name = session.scalar(text("SELECT serving.operator_of_key(:hash)"), {"hash": presented})
    if name is None:
        raise HTTPException(
            401, "an operator's key is needed: `ratchet keys create --role operator` makes one",
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
    return name


Operator = Annotated[str, Depends(_operator)]

router = APIRouter(prefix="/admin/rounds")


@router.post("", status_code=202)
def ask(body: RoundRequest, engine: At, operator: Operator) -> dict[str, Any]:
    """Asks for a round."""
    identity = ask_by_request(engine, Home.resolve(), body, by=operator)
    return _shown(engine, str(identity))


@router.get("")
def list_rounds(
    engine: At, _: Operator, limit: Annotated[int, Query(ge=1, le=1_000)] = 50
) -> list[dict[str, Any]]:
    """Rounds, the newest first."""
    with session_scope(engine) as session:
        return [reading.line(row) for row in repository.list_rounds(session, limit=limit)]


@router.get("/{name}")
def show(name: str, engine: At, _: Operator) -> dict[str, Any]:
    """A round, its checkpoints and what was said to it."""
    return _shown(engine, name)


@router.post("/{name}/stop")
def stop(name: str, body: Reason, engine: At, operator: Operator) -> dict[str, Any]:
    """Stops a round, which keeps a last checkpoint."""
    with session_scope(engine) as session:
        repository.stop(session, repository.find_round(session, name).id, who=operator, why=body.reason)
    return _shown(engine, name)


@router.post("/{name}/resume")
def resume(name: str, body: Reason, engine: At, operator: Operator) -> dict[str, Any]:
    """Asks for the rest of a round that failed or was stopped."""
    with session_scope(engine) as session:
        repository.resume(session, repository.find_round(session, name).id, who=operator, why=body.reason)
    return _shown(engine, name)


def _shown(engine: Engine, name: str) -> dict[str, Any]:
    with session_scope(engine) as session:
        return reading.document(session, repository.find_round(session, name))
