"""`/admin/releases`: what the command line does, over HTTP, for keys of role operator.

A release plan is named, never sent: what a plan calls and allows is decided on this machine.
"""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.releases import repository
from gateway.releases.audit import By
from gateway.releases.desk import Desk
from gateway.releases.drill import run_drill
from gateway.releases.machine import Wish
from gateway.releases.plans import shipped_plan
from gateway.releases.replication import Effect
from gateway.releases.sessions import NotAnOperator, Operator, by_key
from ratchet.db.engine import session_scope

PREFIX = "/admin/releases"


class Said(BaseModel):
    """Why."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class Start(Said):
    """A release to begin."""

    policy: str
    plan: str = "default"
    predicted: dict[str, Effect] | None = None
    override: bool = False


class Promote(Said):
    """How far, and from which stage: where it is named, a release that has gone on meanwhile stays."""

    stage: str | None = None
    to_production: bool = False


class Abort(Said):
    """How hard."""

    cut: bool = False


class DrillWish(Said):
    """How often, and to what."""

    to: str | None = None
    switches: Annotated[int, Field(ge=1, le=1000)] = 10


def _operator(request: Request) -> Operator:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise NotAnOperator("no API key: send an operator's as `Authorization: Bearer rk-...`")
    with session_scope(_desk(request).engine) as session:
        return by_key(session, key)


def _desk(request: Request) -> Desk:
    return request.app.state.desk


Who = Annotated[Operator, Depends(_operator)]
At = Annotated[Desk, Depends(_desk)]

router = APIRouter(prefix=PREFIX)


@router.get("")
def every(desk: At, _: Who) -> Response:
    """The newest release of every model."""
    return _json(desk.control.everything())


@router.post("")
def start(body: Start, desk: At, who: Who) -> Response:
    """Begins a release."""
    predicted = body.model_dump()["predicted"]
    wish = Wish(body.policy, shipped_plan(body.plan), predicted=predicted, override=body.override)
    return _json(desk.control.start(wish, _by(who, body)), 201)


@router.get("/{model}")
def status(model: str, desk: At, _: Who) -> Response:
    """The newest release of a model."""
    return _json(desk.control.status(model))


@router.get("/{model}/history")
def history(model: str, desk: At, _: Who) -> Response:
    """Its releases with their audit."""
    return _json(desk.control.history(model))


@router.get("/{model}/drills")
def drills(model: str, desk: At, _: Who) -> Response:
    """Its drills."""
    with session_scope(desk.engine) as session:
        return _json(repository.drills(session, model))


@router.post("/{model}/promote")
def promote(model: str, body: Promote, desk: At, who: Who) -> Response:
    """Goes on."""
    by = _by(who, body)
    return _json(desk.control.promote(model, by, to_end=body.to_production, seen=body.stage))


@router.post("/{model}/pause")
def pause(model: str, body: Said, desk: At, who: Who) -> Response:
    """Keeps the shares as they are."""
    return _json(desk.control.pause(model, _by(who, body)))


@router.post("/{model}/resume")
def resume(model: str, body: Said, desk: At, who: Who) -> Response:
    """Lets a paused release go on."""
    return _json(desk.control.resume(model, _by(who, body)))


@router.post("/{model}/abort")
def abort(model: str, body: Abort, desk: At, who: Who) -> Response:
    """Sends all traffic back."""
    return _json(desk.control.abort(model, _by(who, body), cut=body.cut))


@router.post("/{model}/close")
def close(model: str, body: Said, desk: At, who: Who) -> Response:
    """Ends a release that was promoted."""
    return _json(desk.control.close(model, _by(who, body)))


@router.post("/{model}/drill")
def drill(model: str, body: DrillWish, desk: At, who: Who) -> Response:
    """Pulls the switch on live traffic and undoes it."""
    by = _by(who, body)
    return _json(run_drill(desk.engine, model, by, desk.gateway_url, other=body.to, switches=body.switches))


def _by(operator: Operator, body: Said) -> By:
    return By(operator.name, body.reason)


def _json(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
