"""What a client may say about a response, checked and put into the columns of `feedback.feedback_event`."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import ApiError, bad_request
from ratchet.canonical import digest_of
from ratchet.ids import id_beside, time_of
from ratchet.prompts import storable

Kind = Literal[
    "thumb", "rating", "comment", "edit", "regenerate", "retry", "copy", "escalate", "outcome", "metric"
]
Text = Annotated[str, Field(max_length=200_000)]

ID_PREFIXES = ("chatcmpl-", "cmpl-")
CLOCK_SKEW = timedelta(minutes=5)
RATING_LIMIT = 1_000
THUMBS = {"up": 1.0, "down": -1.0, 1: 1.0, -1: -1.0}
OUTCOMES = {"success": 1.0, "partial": 0.5, "failure": 0.0}


class Body(BaseModel):
    """The JSON document of `POST /v1/feedback`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    response_id: str
    """As in the header `x-ratchet-response-id`."""
    kind: Kind
    value: bool | int | float | str | None = None
    """thumb: `up` or `down`; rating: a number; outcome: `success`, `partial`, `failure`; metric: its own."""
    text: Text | None = None
    """comment: the words; edit: the corrected answer; copy: what was copied; escalate: why."""
    name: Annotated[str, Field(max_length=200)] | None = None
    """metric: its registered name."""
    other_response_id: str | None = None
    """regenerate, retry: the response that came instead."""
    choice: Annotated[int, Field(ge=0, le=127)] = 0
    """Which of several choices is meant."""
    user: Annotated[str, Field(max_length=1_000)] | None = None
    """Who says it, where that is not the user of the response."""
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The same key about the same response is the same event; the header `Idempotency-Key` says the same."""


@dataclass(frozen=True, slots=True)
class MetricRule:
    """A registered metric, as `feedback.metric` has it."""

    type: str
    low: float | None
    high: float | None
    categories: list[str] | None


@dataclass(frozen=True, slots=True)
class Event:
    """A row of `feedback.feedback_event`."""

    id: UUID
    response_id: UUID
    choice: int
    key_id: UUID
    kind: Kind
    value: float | None
    text: str | None
    name: str | None
    other_response_id: UUID | None
    user_id: str | None
    body_sha256: str


def parse(document: bytes) -> Body:
    """Reads the body.

    Raises:
        ApiError: 400; the message names the field.
    """
    try:
        return Body.model_validate_json(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][:1]) or None
        raise bad_request(field, f"{field or 'body'}: {first['msg']}") from error


def event_of(body: Body, *, key_id: UUID, header_key: str | None, metric: MetricRule | None) -> Event:
    """The event a body means.

    Args:
        body: What the client sent.
        key_id: Whose API key.
        header_key: The header `Idempotency-Key`.
        metric: The metric that `body.name` names, if it is registered.

    Raises:
        ApiError: 400 for a value that does not fit the kind, 404 for an id no response can have.
    """
    if header_key and body.idempotency_key and header_key != body.idempotency_key:
        raise bad_request("idempotency_key", "the header Idempotency-Key and idempotency_key differ")
    response_id = response_id_of(body.response_id)
    value, text = _content(body, metric)
    other = None if body.other_response_id is None else response_id_of(body.other_response_id)
    if other is not None and body.kind not in ("regenerate", "retry"):
        raise bad_request("other_response_id", f"other_response_id does not belong to {body.kind}")
    if other == response_id:
        raise bad_request("other_response_id", "a response cannot come instead of itself")
    once = header_key or body.idempotency_key or uuid4().hex
    return Event(
        id=id_beside(response_id, str(key_id), once),
        response_id=response_id,
        choice=body.choice,
        key_id=key_id,
        kind=body.kind,
        value=value,
        text=None if text is None else storable(text),
        name=body.name,
        other_response_id=other,
        user_id=None if body.user is None else storable(body.user),
        body_sha256=digest_of(body.model_dump(exclude={"idempotency_key"})),
    )


def response_id_of(text: str) -> UUID:
    """A response id, bare or as the OpenAI body has it.

    Raises:
        ApiError: 404; no response can have this id.
    """
    bare = text
    for prefix in ID_PREFIXES:
        bare = bare.removeprefix(prefix)
    try:
        identity = UUID(bare)
        made = time_of(identity)
    except ValueError as error:
        raise no_such_response(text) from error
    if made > datetime.now(UTC) + CLOCK_SKEW:
        raise no_such_response(text)
    return identity


def no_such_response(text: str) -> ApiError:
    """404, the same for a response that is not there and for another key's."""
    return ApiError(404, "response_not_found", f"this key has no response {text[:80]!r}", param="response_id")


def _content(body: Body, metric: MetricRule | None) -> tuple[float | None, str | None]:
    value, text = body.value, body.text
    if body.name is not None and body.kind != "metric":
        raise bad_request("name", f"name does not belong to {body.kind}")
    match body.kind:
        case "thumb":
            if isinstance(value, bool | float | None) or value not in THUMBS:
                raise bad_request("value", "a thumb's value is 'up' or 'down'")
            return THUMBS[value], text
        case "rating":
            return _rating(value), text
        case "comment" | "edit":
            if value is not None:
                raise bad_request("value", f"value does not belong to {body.kind}; its words go into text")
            if text is None or not text.strip():
                raise bad_request("text", f"{body.kind} needs text")
            return None, text
        case "outcome":
            if not isinstance(value, str) or value not in OUTCOMES:
                raise bad_request("value", "an outcome's value is 'success', 'partial' or 'failure'")
            return OUTCOMES[value], text
        case "metric":
            return _metric(body, metric)
        case "regenerate" | "retry" | "copy" | "escalate":
            if value is not None:
                raise bad_request("value", f"value does not belong to {body.kind}")
            return None, text


def _rating(value: Any) -> float:
    number = _number(value)
    if number is None or abs(number) > RATING_LIMIT:
        raise bad_request("value", f"a rating's value is a number between -{RATING_LIMIT} and {RATING_LIMIT}")
    return number


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _metric(body: Body, metric: MetricRule | None) -> tuple[float | None, str | None]:
    if body.name is None:
        raise bad_request("name", "a metric needs its name")
    if metric is None:
        raise bad_request(
            "name", f"no metric {body.name!r} is registered: `ratchet feedback metric add` registers one"
        )
    if metric.type == "boolean":
        if not isinstance(body.value, bool):
            raise bad_request("value", f"metric {body.name} is true or false")
        return float(body.value), body.text
    if metric.type == "category":
        if not isinstance(body.value, str) or body.value not in (metric.categories or []):
            raise bad_request("value", f"metric {body.name} is one of {', '.join(metric.categories or [])}")
        return None, body.value
    number = None if isinstance(body.value, str) else _number(body.value)
    if number is None:
        raise bad_request("value", f"metric {body.name} is a number")
    if (metric.low is not None and number < metric.low) or (metric.high is not None and number > metric.high):
        raise bad_request("value", f"metric {body.name} lies between {metric.low} and {metric.high}")
    return number, body.text
