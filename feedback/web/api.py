"""The rating desk as JSON, for a rating tool of one's own: sign in with a link, lease, vote, take back."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from feedback.desk import Desk
from feedback.raters import SignedIn
from feedback.voting import Vote


class Link(BaseModel):
    """What `POST /api/session` takes."""

    model_config = ConfigDict(extra="forbid")

    link: str
    """The token of a sign-in link."""


class Ballot(BaseModel):
    """What `POST /api/leases/{id}/vote` takes."""

    model_config = ConfigDict(extra="forbid")

    choice: Literal["left", "right", "tie", "both_bad", "skip"]
    reasons: list[str] = Field(default_factory=list[str], max_length=50)
    note: Annotated[str, Field(max_length=5_000)] | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


def _desk(request: Request) -> Desk:
    return request.app.state.desk


At = Annotated[Desk, Depends(_desk)]


def _who(desk: At, authorization: Annotated[str | None, Header()] = None) -> SignedIn:
    return desk.who((authorization or "").removeprefix("Bearer "))


Rater = Annotated[SignedIn, Depends(_who)]

router = APIRouter(prefix="/api")


@router.post("/session")
def session(body: Link, desk: At) -> dict[str, Any]:
    """A bearer token for a link."""
    token, expires = desk.sign_in(body.link)
    return {"token": token, "expires_at": expires}


@router.post("/leases", response_model=None)
def lease(rater: Rater, desk: At) -> dict[str, Any] | Response:
    """The item the rater is at; 204 while there is none."""
    item = desk.next_item(rater.id)
    if item is None:
        return Response(status_code=204)
    return {
        "lease": item.lease,
        "prompt": [{"role": role, "content": text} for role, text in item.turns],
        "left": item.left,
        "right": item.right,
        "expires_at": item.expires_at,
    }


@router.post("/leases/{lease_id}/vote")
def vote(lease_id: UUID, body: Ballot, rater: Rater, desk: At) -> dict[str, bool]:
    """Counts a vote."""
    ballot = Vote(lease_id, body.choice, body.seconds, body.reasons, body.note)
    return {"active": desk.vote(rater.id, ballot)}


@router.post("/undo")
def undo(rater: Rater, desk: At) -> dict[str, UUID]:
    """Takes the last vote back."""
    return {"lease": desk.undo(rater.id)}
