"""The rating page: rendered here, usable without a script, with no word on who answered."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from feedback.desk import Desk
from feedback.errors import LeaseLost, NothingToUndo, QuotaReached, RatingError, UnknownRater
from feedback.raters import SignedIn
from feedback.settings import FeedbackSettings
from feedback.voting import Shown, Vote
from feedback.web.markup import to_html

COOKIE = "ratchet_rater"
CHOICES: tuple[Shown, ...] = ("left", "right", "tie", "both_bad", "skip")
FOLDER = Path(__file__).parent

Form = dict[str, list[str]]


class Forged(RatingError):
    """A form that another site sent."""


async def _form(request: Request) -> Form:
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forged("this form was sent by another site")
    document = await request.body()
    return parse_qs(document.decode("utf-8", "replace"))


def _first(form: Form, name: str) -> str:
    return form.get(name, [""])[0]


class Pages:
    """Renders templates."""

    def __init__(self, settings: FeedbackSettings) -> None:
        self._templates = Environment(
            loader=PackageLoader("feedback.web"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
        )
        self.reasons = settings.feedback_reasons
        self.secure_cookies = settings.feedback_secure_cookies
        chosen = settings.feedback_guidelines or FOLDER / "guidelines.md"
        self.guidelines = to_html(chosen.read_text("utf-8"))

    def __call__(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A template as an answer."""
        values.setdefault("rater", None)
        return HTMLResponse(self._templates.get_template(template).render(values), status)

    def message(
        self, title: str, text: str, rater: SignedIn | None = None, status: int = 200
    ) -> HTMLResponse:
        """A page that says one thing."""
        return self("message.html", status, title=title, text=text, rater=rater)

    def refusal(self, error: RatingError) -> HTMLResponse:
        """A page for what cannot be met."""
        if isinstance(error, UnknownRater):
            return self.message("Please sign in", str(error).capitalize() + ".", status=401)
        return self.message("Not possible", str(error).capitalize() + ".", status=403)


def _pages(request: Request) -> Pages:
    return request.app.state.pages


Show = Annotated[Pages, Depends(_pages)]


def _desk(request: Request) -> Desk:
    return request.app.state.desk


At = Annotated[Desk, Depends(_desk)]


def _who(request: Request, desk: At) -> SignedIn:
    return desk.who(request.cookies.get(COOKIE))


Rater = Annotated[SignedIn, Depends(_who)]
Fields = Annotated[Form, Depends(_form)]

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/")
def index() -> Response:
    """Where the address alone leads."""
    return _to("/rate")


@router.get("/sign-in/{link}")
def offer(link: str, render: Show) -> Response:
    """Offers to sign in; opening a link alone does nothing, since mail programs open links too."""
    return render("sign_in.html", link=link)


@router.post("/sign-in")
def sign_in(form: Fields, desk: At, render: Show) -> Response:
    """Turns the link into a session."""
    token, expires = desk.sign_in(_first(form, "link"))
    answer = _to("/rate")
    answer.set_cookie(
        COOKIE, token, expires=expires, httponly=True, samesite="lax", secure=render.secure_cookies
    )
    return answer


@router.post("/sign-out")
def sign_out(request: Request, _: Fields, desk: At, render: Show) -> Response:
    """Ends the session."""
    desk.sign_out(request.cookies.get(COOKIE, ""))
    answer = render.message("You are signed out", "Open your link to go on.")
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/guidelines")
def guidelines(rater: Rater, render: Show) -> Response:
    """Content warning, guidelines and keys."""
    return render("guidelines.html", rater=rater, guidelines=render.guidelines)


@router.post("/guidelines")
def accept(rater: Rater, _: Fields, desk: At) -> Response:
    """Notes that they were read."""
    desk.accept_guidelines(rater.id)
    return _to("/rate")


@router.get("/rate")
def rate(rater: Rater, desk: At, render: Show, notice: str = "") -> Response:
    """The item the rater is at."""
    if not rater.guidelines_read:
        return _to("/guidelines")
    try:
        item = desk.next_item(rater.id)
    except QuotaReached as reached:
        return render.message("That is all for today", f"{reached}.".capitalize(), rater)
    if item is None:
        return render.message("Nothing to rate now", "You have seen every item there is.", rater)
    return render(
        "rate.html",
        rater=rater,
        item=item,
        turns=[(role, to_html(text)) for role, text in item.turns],
        answers=[("A", to_html(item.left)), ("B", to_html(item.right))],
        reasons=render.reasons,
        notice=_NOTICES.get(notice, ""),
    )


@router.post("/vote")
def vote(rater: Rater, form: Fields, desk: At) -> Response:
    """Counts a vote and goes on."""
    try:
        desk.vote(rater.id, _ballot(form))
    except LeaseLost:
        return _to("/rate?notice=lost")
    return _to("/rate")


@router.post("/undo")
def undo(rater: Rater, _: Fields, desk: At) -> Response:
    """Takes the last vote back."""
    try:
        desk.undo(rater.id)
    except NothingToUndo:
        return _to("/rate?notice=nothing-to-undo")
    return _to("/rate?notice=undone")


_NOTICES = {
    "lost": "The time for that item was over, so your vote on it was not counted.",
    "undone": "Your last vote was taken back. Vote again.",
    "nothing-to-undo": "There is no vote to take back.",
}


def _ballot(form: Form) -> Vote:
    choice = _first(form, "choice")
    if choice not in CHOICES:
        raise LeaseLost("no such choice")
    try:
        lease = UUID(_first(form, "lease"))
    except ValueError as error:
        raise LeaseLost("no such item") from error
    try:
        seconds = float(_first(form, "seconds"))
    except ValueError:
        seconds = None
    if seconds is not None and not 0 <= seconds < float("inf"):
        seconds = None
    return Vote(lease, choice, seconds, form.get("reason", []), _first(form, "note")[:5_000] or None)


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, status_code=303)
