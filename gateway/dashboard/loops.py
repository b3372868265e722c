"""The pages of the loop: every turn with its gain beside how stale its data were, and one turn's timeline."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from gateway.dashboard import charts
from gateway.dashboard.charts import Bound
from gateway.dashboard.pages import At, OwnForm, Show, Who, first, frame, to
from ratchet import loop
from ratchet.db.engine import session_scope
from ratchet.db.models.operations import Loop
from ratchet.errors import NotFound
from ratchet.loop_story import Document, turn, turns

SHOWN = 50

router = APIRouter(prefix="/loops", default_response_class=HTMLResponse)


@router.get("")
def every(visit: Who, desk: At, render: Show) -> Response:
    """Every turn, the newest first."""
    with session_scope(desk.engine) as session:
        found = turns(session, limit=SHOWN)
    return render("loops.html", **frame(visit), turns=found, charts=_gains(found))


@router.get("/{identity}")
def one(identity: UUID, visit: Who, desk: At, render: Show) -> Response:
    """One turn."""
    with session_scope(desk.engine) as session:
        document = turn(session, _found(session.get(Loop, identity), identity))
    return render("loop.html", **frame(visit), turn=document)


@router.post("/{identity}/{step}")
def take(identity: UUID, step: str, form: OwnForm, visit: Who, desk: At) -> Response:
    """A button: stop or retry."""
    with session_scope(desk.engine) as session:
        _found(session.get(Loop, identity), identity)
        match step:
            case "stop":
                why = first(form, "reason").strip() or "stopped by the page's button"
                loop.stop(session, identity, who=visit.operator.name, why=why)
            case "retry":
                loop.retry(session, identity)
            case _:
                raise NotFound(f"a turn cannot be asked to {step!r}")
    return to(f"/loops/{identity}")


def _found(row: Loop | None, identity: UUID) -> Loop:
    if row is None:
        raise NotFound(f"no turn {identity}")
    return row


def _gains(found: list[Document]) -> list[tuple[str, Any]]:
    """Of each model, the held-out gain of its turns over time."""
    by_model: dict[str, list[Document]] = {}
    for each in reversed(found):
        if each["gain"] is not None:
            point = {"at": each["created_at"], "stage": each["method"], **each["gain"]}
            by_model.setdefault(each["model"], []).append(point)
    title = "held-out gain of each turn, over time"
    return [
        (model, charts.sequence(points, [Bound("margin", 0.0)], f"{model}: {title}"))
        for model, points in sorted(by_model.items())
    ]
