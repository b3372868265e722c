"""The pages for operators: releases now and before, their figures over time, and the buttons of the
command line."""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from gateway.dashboard import charts
from gateway.dashboard.charts import Bound
from gateway.dashboard.render import Templates
from gateway.releases import repository, sessions
from gateway.releases.audit import By, Refused
from gateway.releases.desk import Desk
from gateway.releases.plan import Metric, ReleasePlan
from gateway.releases.repository import Document
from gateway.releases.sessions import Operator
from ratchet.db.engine import session_scope
from ratchet.errors import NotFound
from ratchet.plan import current_plans

Answer = Awaitable[Response]

COOKIE = "ratchet_operator"
REFUSALS = ("refusal_benign", "refusal_harmful")
LENGTH = "length"
Form = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Visit:
    """Who looks at a page.

    Attributes:
        operator: Who it is.
        token: Of the session.
    """

    operator: Operator
    token: str


async def _form(request: Request) -> Form:
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused("this form was sent by another site")
    document = await request.body()
    return parse_qs(document.decode("utf-8", "replace"))


def _desk(request: Request) -> Desk:
    return request.app.state.desk


def _templates(request: Request) -> Templates:
    return request.app.state.templates


At = Annotated[Desk, Depends(_desk)]
Show = Annotated[Templates, Depends(_templates)]
Fields = Annotated[Form, Depends(_form)]


def _visit(request: Request, desk: At) -> Visit:
    token = request.cookies.get(COOKIE)
    with session_scope(desk.engine) as session:
        return Visit(sessions.by_session(session, token, now=datetime.now(UTC)), token or "")


def _own_form(form: Fields, visit: Annotated[Visit, Depends(_visit)]) -> Form:
    if not sessions.is_own_form(visit.token, first(form, "form_token")):
        raise Refused("this form is not from a page of this session: load the page again")
    return form


Who = Annotated[Visit, Depends(_visit)]
OwnForm = Annotated[Form, Depends(_own_form)]

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/sign-in")
def offer(render: Show) -> Response:
    """Asks for an operator's key."""
    return render("sign_in.html")


@router.post("/sign-in")
def sign_in(form: Fields, desk: At) -> Response:
    """Begins a session."""
    now = datetime.now(UTC)
    with session_scope(desk.engine) as session:
        token, expires = sessions.sign_in(
            session, first(form, "key"), now=now, hours=desk.settings.release_session_hours
        )
    answer = to("/")
    answer.set_cookie(
        COOKIE, token, expires=expires, httponly=True, samesite="strict",
        secure=desk.settings.release_secure_cookies,
    )  # fmt: skip
    return answer


@router.post("/sign-out")
def sign_out(_: OwnForm, visit: Who, desk: At) -> Response:
    """Ends the session."""
    with session_scope(desk.engine) as session:
        sessions.sign_out(session, visit.token)
    answer = to("/sign-in")
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/")
def overview(visit: Who, desk: At, render: Show) -> Response:
    """Every model: who answers now, and its newest release."""
    with session_scope(desk.engine) as session:
        plans = current_plans(session)
        models: list[Document] = []
        for name, plan in sorted(plans.items()):
            try:
                release = repository.newest(session, name)
            except NotFound:
                release = None
            models.append(
                {
                    "name": name,
                    "plan": plan,
                    "release": release,
                    "drill": next(iter(repository.drills(session, name, most=1)), None),
                }
            )
    return render("overview.html", **frame(visit), models=models)


@router.get("/releases/{identity}")
def one(identity: UUID, visit: Who, desk: At, render: Show) -> Response:
    """One release."""
    with session_scope(desk.engine) as session:
        release = repository.by_id(session, identity)
        series = repository.series(session, identity)
        events = repository.events(session, identity)
        plan = repository.plan_of_release(session, identity)
        drill = next(iter(repository.drills(session, release["model"], most=1)), None)
    shown = [_metric(name, points, plan) for name, points in sorted(series.items())]
    return render(
        "release.html",
        **frame(visit),
        release=release,
        stages=[stage.name for stage in plan.stages] + ["holdback" if plan.holdback else "production"],
        refusals=[metric for metric in shown if metric["name"] in REFUSALS],
        metrics=[metric for metric in shown if metric["name"] not in REFUSALS],
        lengths=_lengths(series.get(LENGTH, [])),
        events=events,
        drill=drill,
    )


@router.post("/releases/{identity}/{step}")
def take(identity: UUID, step: str, form: OwnForm, visit: Who, desk: At) -> Response:
    """A button: promote, pause, resume, abort or close the release of this page, at the stage it showed."""
    with session_scope(desk.engine) as session:
        model = str(repository.by_id(session, identity)["model"])
    by = By(visit.operator.name, first(form, "reason").strip() or f"{step} by the page's button")
    seen = first(form, "stage")
    match step:
        case "promote":
            desk.control.promote(model, by, release=identity, seen=seen)
        case "pause":
            desk.control.pause(model, by, release=identity, seen=seen)
        case "resume":
            desk.control.resume(model, by, release=identity, seen=seen)
        case "abort":
            desk.control.abort(model, by, cut=bool(first(form, "cut")), release=identity)
        case "close":
            desk.control.close(model, by, release=identity, seen=seen)
        case _:
            raise NotFound(f"a release cannot be asked to {step!r}")
    return to(f"/releases/{identity}")


def refusal(request: Request, reason: str, status: int) -> Response:
    """A page for what cannot be met; those who are not signed in are asked to."""
    if status == 401:
        if request.method == "GET":
            return to("/sign-in")
        return _templates(request)("sign_in.html", status, trouble=reason)
    return _templates(request)("message.html", status, title="Not possible", text=reason)


def _metric(name: str, points: list[Document], plan: ReleasePlan) -> Document:
    metric = plan.metrics.get(name)
    last = points[-1]
    return {
        "name": name,
        "words": name.replace("_", " "),
        "last": last,
        "chart": charts.sequence(
            points, _bounds(metric), f"{name}: how much worse the candidate is, over time"
        ),
    }


def _bounds(metric: Metric | None) -> list[Bound]:
    if metric is None:
        return []
    return [Bound("harm", metric.harm), Bound("margin", metric.margin)]


def _lengths(points: list[Document]) -> Any:
    """The length of answers by arm, as the last look that has it saw it."""
    for point in reversed(points):
        quantiles: dict[str, list[float]] = point.get("quantiles") or {}
        if quantiles:
            arms = [(kind, quantiles[kind]) for kind in ("baseline", "candidate") if kind in quantiles]
            return charts.distribution(arms, "tokens", "Tokens of an answer, by policy")
    return None


def frame(visit: Visit) -> Document:
    """What every page needs to know of who looks at it."""
    return {"operator": visit.operator, "form_token": sessions.form_token(visit.token)}


def first(form: Form, name: str) -> str:
    """A field of a form; empty where it is missing."""
    return form.get(name, [""])[0]


def to(path: str) -> RedirectResponse:
    """Sends the browser on."""
    return RedirectResponse(path, status_code=303)
