"""Events from the client's request to the joined row, on a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from fastapi import FastAPI, Request, Response
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import Engine

from feedback.events import Joined, infer_between, infer_events, join_events
from gateway.errors import ApiError
from gateway.feedback_routes import router_for
from gateway.keys_cache import KnownKey
from ratchet.db.engine import libpq_url, session_scope
from ratchet.db.roles import Role
from ratchet.ids import floor_of, new_id
from ratchet.keys import KeyRole
from tests.conftest import Database
from tests.support.feedback import KEY, OTHER_KEY, TRAIN_PROMPT, put, response, user

NOW = datetime.now(UTC)
NOBODY_ELSE = UUID(int=(1 << 128) - 1)


@asynccontextmanager
async def gateway(database: Database, served: dict[UUID, UUID]) -> AsyncIterator[httpx.AsyncClient]:
    """The route, mounted as the gateway does; the key's number is its own bearer token."""

    def caller(request: Request) -> KnownKey:
        key = UUID(int=int(request.headers["authorization"].removeprefix("Bearer ")))
        return KnownKey(key, KeyRole.CLIENT, None, None)

    def refusal(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return Response(error.body(), error.status, media_type="application/json")

    url = libpq_url(database.url(Role.GATEWAY))
    async with AsyncConnectionPool(url, min_size=1, max_size=4, open=False, timeout=5) as pool:
        app = FastAPI()
        app.add_exception_handler(ApiError, refusal)
        app.include_router(router_for(pool, caller, served.get))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client


@pytest.fixture
def post(database: Database) -> Callable[..., httpx.Response]:
    """Posts feedback as a key; `served` is what the gateway remembers of responses not yet stored."""

    def send(
        response_id: UUID | str,
        *,
        key: UUID = KEY,
        once: str | None = None,
        served: dict[UUID, UUID] | None = None,
        **body: Any,
    ) -> httpx.Response:
        async def run() -> httpx.Response:
            async with gateway(database, served or {}) as client:
                headers = {"authorization": f"Bearer {key.int}"}
                if once is not None:
                    headers["idempotency-key"] = once
                document = {"response_id": str(response_id), **body}
                return await client.post("/v1/feedback", headers=headers, json=document)

        return asyncio.run(run())

    return send


def events(database: Database, columns: str = "kind, value, text, state, user_id") -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(
            f"SELECT {columns} FROM feedback.feedback_event ORDER BY created_at, id"  # noqa: S608
        ).fetchall()


def join(engine: Engine, now: datetime | None = None, **options: Any) -> Joined:
    with session_scope(engine) as session:
        return join_events(session, now=now or datetime.now(UTC), **options)


def test_feedback_is_stored_once_however_often_it_is_sent(
    database: Database, post: Callable[..., httpx.Response], engine_of: Callable[[Role], Engine]
) -> None:
    [answer] = put(database.owner_url, response())
    first = post(answer, once="k", kind="thumb", value="up")
    again = post(answer, once="k", kind="thumb", value="up")
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.json()["status"] == "duplicate"
    other = post(answer, once="k", kind="thumb", value="down")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert join(engine_of(Role.FEEDBACK)) == Joined(1, 0, 0, 0)
    assert events(database) == [("thumb", 1.0, None, "joined", "ann")]


def test_another_keys_response_is_not_found_and_nothing_is_stored(
    database: Database, post: Callable[..., httpx.Response]
) -> None:
    [stored] = put(database.owner_url, response())
    flying = new_id()
    refused = [
        post(stored, key=OTHER_KEY, kind="copy"),
        post(flying, key=OTHER_KEY, served={flying: KEY}, kind="copy"),
        post(new_id(), key=OTHER_KEY, kind="regenerate", other_response_id=str(stored)),
        post("chatcmpl-nonsense", kind="copy"),
    ]
    assert [answer.status_code for answer in refused] == [404] * 4
    assert events(database) == []


def test_feedback_before_the_response_is_flushed_is_joined_when_it_is(
    database: Database, post: Callable[..., httpx.Response], engine_of: Callable[[Role], Engine]
) -> None:
    feedback = engine_of(Role.FEEDBACK)
    row = response(user_id="bob")
    assert post(row["id"], served={row["id"]: KEY}, kind="edit", text="Blue.").status_code == 202
    assert join(feedback) == Joined(0, 1, 0, 0)
    put(database.owner_url, row)
    assert join(feedback).seen == 0, "tried again only after a while"
    assert join(feedback, datetime.now(UTC) + timedelta(seconds=6)) == Joined(1, 0, 0, 0)
    assert events(database) == [("edit", None, "Blue.", "joined", "bob")]


def test_feedback_another_key_slipped_in_before_the_flush_is_removed(
    database: Database, post: Callable[..., httpx.Response], engine_of: Callable[[Role], Engine]
) -> None:
    row = response()
    assert post(row["id"], key=OTHER_KEY, kind="thumb", value="down").status_code == 202
    put(database.owner_url, row)
    assert join(engine_of(Role.FEEDBACK)) == Joined(0, 0, 0, 1)
    assert events(database) == []


def test_an_unknown_response_is_parked_reported_and_still_joined_if_it_comes(
    database: Database, post: Callable[..., httpx.Response], engine_of: Callable[[Role], Engine]
) -> None:
    feedback = engine_of(Role.FEEDBACK)
    row = response()
    post(row["id"], kind="rating", value="1")
    late = datetime.now(UTC) + timedelta(hours=2)
    assert join(feedback, late) == Joined(0, 0, 1, 0)
    with psycopg.connect(database.owner_url) as connection:
        alarms = connection.execute(
            "SELECT kind, detail ->> 'newly_unknown' FROM operations.alarm"
        ).fetchall()
    assert alarms == [("feedback-unknown-response", "1")]
    put(database.owner_url, row)
    assert join(feedback, late + timedelta(hours=1)).seen == 0
    assert join(feedback, late + timedelta(hours=1), unknown_too=True) == Joined(1, 0, 0, 0)
    assert events(database) == [("rating", 1.0, None, "joined", "ann")]


def test_a_registered_metric_is_checked_by_its_type(
    database: Database, post: Callable[..., httpx.Response]
) -> None:
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        connection.execute(
            "INSERT INTO feedback.metric (name, type, low, high, description)"
            " VALUES ('turns', 'number', 0, 9, 'Turns until solved.')"
        )
    [answer] = put(database.owner_url, response())
    assert post(answer, kind="metric", name="turns", value=3).status_code == 202
    assert post(answer, kind="metric", name="turns", value=10).status_code == 400
    assert post(answer, kind="metric", name="unheard", value=1).json()["error"]["param"] == "name"
    assert events(database, "name, value") == [("turns", 3.0)]


def test_the_database_away_is_503_with_retry_after(database: Database) -> None:
    async def run() -> None:
        pool = AsyncConnectionPool("postgresql://nobody@/nothing?host=/nowhere", open=False, timeout=0.2)
        router = router_for(pool, lambda _: KnownKey(KEY, KeyRole.CLIENT, None, None), lambda _: None)
        scope = {"type": "http", "method": "POST", "headers": [], "path": "/v1/feedback"}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        await pool.open(wait=False)
        try:
            with pytest.raises(ApiError) as refused:
                await router.routes[0].endpoint(Request(scope, receive))  # type: ignore[attr-defined]
        finally:
            await pool.close()
        assert (refused.value.status, refused.value.retry_after_s) == (503, 2.0)

    asyncio.run(run())


def at(seconds: float) -> UUID:
    """A response id of a given time today."""
    moment = NOW - timedelta(hours=1) + timedelta(seconds=seconds)
    return UUID(int=floor_of(moment).int | 0x7 << 76 | 0b10 << 62 | new_id().int & 0xFFFF)


def test_the_same_messages_again_mean_regenerate_or_retry(
    database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    feedback = engine_of(Role.FEEDBACK)
    shown, again, failed, retried, early, hasty = (at(second) for second in (0, 10, 20, 30, 40, 41))
    put(
        database.owner_url,
        response("Blue.", identity=shown),
        response("Azure.", identity=again),
        response(None, identity=failed, status="error", user_id="bob"),
        response("Blue.", identity=retried, user_id="bob"),
        response("Slow.", identity=early, user_id="eve", duration_ms=5_000.0),
        response("Fast.", identity=hasty, user_id="eve"),
        response("Probe.", identity=at(50), probe="canary"),
        response("Shadow.", identity=at(51), pair_of=again, arm="shadow"),
    )
    for _ in range(2):
        with session_scope(feedback) as session:
            infer_between(session, UUID(int=0), NOBODY_ELSE)
    assert events(database, "kind, response_id, other_response_id, user_id, origin, state") == [
        ("regenerate", shown, again, "ann", "inferred", "joined"),
        ("retry", failed, retried, "bob", "inferred", "joined"),
    ]


def test_the_same_words_said_again_after_the_answer_mean_retry(
    database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    first, second = at(0), at(10)
    longer = [
        *user(TRAIN_PROMPT),
        {"role": "assistant", "content": "Black."},
        {"role": "user", "content": f" {TRAIN_PROMPT.upper()} "},
    ]
    put(
        database.owner_url,
        response("Black.", identity=first),
        response("Blue.", identity=second, messages=longer),
    )
    with session_scope(engine_of(Role.FEEDBACK)) as session:
        assert infer_between(session, UUID(int=0), NOBODY_ELSE) == 1
    assert events(database, "kind, response_id, other_response_id") == [("retry", first, second)]


def test_the_scan_goes_on_where_it_stopped_and_looks_back_for_late_rows(
    database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    feedback = engine_of(Role.FEEDBACK)
    ids = [at(second) for second in range(0, 60, 10)]
    put(database.owner_url, *(response(f"{place}.", identity=name) for place, name in enumerate(ids[1:])))
    passes = 0
    with session_scope(feedback) as session:
        while infer_events(session, limit=2):
            passes += 1
    assert passes == 3
    assert len(events(database)) == 4
    put(database.owner_url, response("Late.", identity=ids[0]))
    with session_scope(feedback) as session:
        assert infer_events(session) == 0
    assert len(events(database)) == 5


def test_two_scans_at_once_take_turns(engine_of: Callable[[Role], Engine]) -> None:
    feedback = engine_of(Role.FEEDBACK)
    with session_scope(feedback) as session:
        infer_events(session)
    with session_scope(feedback) as one, session_scope(feedback) as other:
        assert infer_events(one) == 0
        assert infer_events(other) is None


def test_events_lie_in_the_partition_of_their_response(
    database: Database, post: Callable[..., httpx.Response]
) -> None:
    [answer] = put(database.owner_url, response())
    post(answer, kind="copy")
    month = datetime.now(UTC).strftime("%Y_%m")
    assert events(database, "tableoid::regclass::text") == [(f"feedback.feedback_event_{month}",)]
