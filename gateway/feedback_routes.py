"""`POST /v1/feedback`: what a client says about one of its responses becomes a row at once.

The response itself may still be on its way into PostgreSQL: the event is accepted all the same, and joined
when the response is there. Whose a response is, is known from its row, else from what this process served.
"""

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import orjson
import psycopg
from fastapi import APIRouter, Request, Response
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from gateway.errors import ApiError, unavailable
from gateway.feedback_events import Event, MetricRule, event_of, no_such_response, parse

PATH = "/v1/feedback"
MAX_BODY_BYTES = 1 << 20
RETRY_AFTER_S = 2.0

_OWNER = "SELECT key_id FROM serving.response WHERE id = %s"
_METRIC = "SELECT type, low, high, categories FROM feedback.metric WHERE name = %s"
_STORED = "SELECT body_sha256 FROM feedback.feedback_event WHERE id = %s"
_INSERT = """
    INSERT INTO feedback.feedback_event (id, response_id, choice, origin, key_id, kind, value, text, name,
                                         other_response_id, user_id, body_sha256)
    VALUES (%s, %s, %s, 'client', %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""

Connection = psycopg.AsyncConnection[tuple[object, ...]]
Served = Callable[[UUID], UUID | None]
"""The key a response was served to, if this process did and remembers; else None."""


class Caller(Protocol):
    """Who asks."""

    @property
    def id(self) -> UUID:
        """The API key's row."""
        ...


Authenticate = Callable[[Request], Caller]
"""Who sends a request; raises `ApiError` 401 for nobody."""


def router_for(
    pool: AsyncConnectionPool[Connection], authenticate: Authenticate, served: Served
) -> APIRouter:
    """The route, for the gateway to mount; it raises `ApiError`, which the application turns into answers.

    Args:
        pool: Connections as the role `ratchet_gateway`.
        authenticate: See `Authenticate`.
        served: See `Served`.
    """
    router = APIRouter()

    @router.post(PATH, status_code=202)
    async def feedback(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        caller = authenticate(request)
        document = await request.body()
        if len(document) > MAX_BODY_BYTES:
            raise ApiError(413, "body_too_large", f"feedback may have {MAX_BODY_BYTES} bytes")
        try:
            async with pool.connection() as connection:
                event, fresh = await accept(
                    connection, document, caller.id, request.headers.get("idempotency-key"), served
                )
        except (psycopg.OperationalError, PoolTimeout) as error:
            raise unavailable(
                "database_unavailable",
                "feedback cannot be stored now; send it again with the same idempotency key",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        content = {
            "id": str(event.id),
            "response_id": str(event.response_id),
            "kind": event.kind,
            "status": "accepted" if fresh else "duplicate",
        }
        return Response(orjson.dumps(content), 202 if fresh else 200, media_type="application/json")

    return router


async def accept(
    connection: Connection, document: bytes, key_id: UUID, header_key: str | None, served: Served
) -> tuple[Event, bool]:
    """Checks one event and stores it.

    Returns:
        The event, and whether it is new.

    Raises:
        ApiError: 400 for a body that is wrong, 404 for a response that is not this key's, 409 for an
            idempotency key that was used for something else.
    """
    body = parse(document)
    metric = await _metric(connection, body.name) if body.kind == "metric" and body.name else None
    event = event_of(body, key_id=key_id, header_key=header_key, metric=metric)
    for response_id in (event.response_id, event.other_response_id):
        if response_id is not None and await _owner(connection, response_id, served) not in (None, key_id):
            raise no_such_response(str(response_id))
    inserted = await connection.execute(
        _INSERT,
        (
            event.id, event.response_id, event.choice, event.key_id, event.kind, event.value, event.text,
            event.name, event.other_response_id, event.user_id, event.body_sha256,
        ),
    )  # fmt: skip
    if inserted.rowcount == 1:
        return event, True
    stored = await (await connection.execute(_STORED, (event.id,))).fetchone()
    if stored is None or stored[0] != event.body_sha256:
        raise ApiError(
            409, "idempotency_key_reused", "this idempotency key was used for other feedback on this response"
        )
    return event, False


async def _metric(connection: Connection, name: str) -> MetricRule | None:
    row = await (await connection.execute(_METRIC, (name,))).fetchone()
    return None if row is None else MetricRule(*row)  # type: ignore[arg-type]


async def _owner(connection: Connection, response_id: UUID, served: Served) -> UUID | None:
    row = await (await connection.execute(_OWNER, (response_id,))).fetchone()
    if row is None:
        return served(response_id)
    return row[0] if isinstance(row[0], UUID) else UUID(int=0)
