"""Whole months go, and nothing younger; a windowed reading leaves old months alone."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Engine

from feedback.repository import frozen_view, plans
from feedback.retention import ensure_partitions, retire
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.ids import floor_of, new_id
from tests.conftest import Database
from tests.support.feedback import put, put_comparisons, put_event, response

OLD = datetime(2024, 3, 15, tzinfo=UTC)


def months(database: Database) -> list[str]:
    with psycopg.connect(database.owner_url) as connection:
        rows = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent IN ('serving.response'::regclass, 'feedback.feedback_event'::regclass)"
            " AND inhrelid::regclass::text ~ '[0-9]{4}_[0-9]{2}$' ORDER BY 1"
        ).fetchall()
    return [name for (name,) in rows]


@pytest.fixture
def old_months(database: Database) -> Database:
    """Partitions for March 2024, with a response, an event and a comparison in them."""
    low, high = (floor_of(datetime(2024, month, 1, tzinfo=UTC)) for month in (3, 4))
    with psycopg.connect(database.owner_url) as connection:
        for table in ("serving.response", "feedback.feedback_event"):
            connection.execute(
                f"CREATE TABLE {table}_2024_03 PARTITION OF {table}"  # type: ignore[arg-type]
                f" FOR VALUES FROM ('{low}') TO ('{high}')"
            )
    identity = type(low)(int=floor_of(OLD).int | 0x7 << 76 | 0b10 << 62 | 5)
    older = type(low)(int=floor_of(OLD - timedelta(days=60)).int | 0x7 << 76 | 0b10 << 62 | 6)
    put(database.owner_url, response(identity=identity), response(identity=older), response())
    put_event(database.owner_url, identity, "copy", created_at=OLD)
    put_comparisons(database.owner_url, 1, answered_at=OLD)
    put_comparisons(database.owner_url, 1)
    return database


def test_months_that_ended_before_the_time_kept_are_dropped(
    old_months: Database, engine_of: Callable[[Role], Engine]
) -> None:
    before = months(old_months)
    with session_scope(engine_of(Role.FEEDBACK)) as session:
        kept = retire(session, now=datetime(2024, 4, 20, tzinfo=UTC), keep=timedelta(days=32))
        assert (kept.partitions, kept.comparisons) == ((), 1)
    with session_scope(engine_of(Role.FEEDBACK)) as session:
        gone = retire(session, now=datetime.now(UTC), keep=timedelta(days=90))
    assert gone.partitions == ("feedback.feedback_event_2024_03", "serving.response_2024_03")
    assert months(old_months) == [name for name in before if not name.endswith("2024_03")]
    with psycopg.connect(old_months.owner_url) as connection:
        assert len(connection.execute("SELECT id FROM serving.response").fetchall()) == 1
        assert len(connection.execute("SELECT id FROM feedback.comparison").fetchall()) == 1


def test_retention_cannot_end_in_the_future(database: Database, engine_of: Callable[[Role], Engine]) -> None:
    with (
        pytest.raises(Exception, match="cannot end in the future"),
        session_scope(engine_of(Role.FEEDBACK)) as session,
    ):
        retire(session, now=datetime.now(UTC) + timedelta(days=400), keep=timedelta(days=32))


def test_partitions_of_the_months_ahead_are_made_once(
    database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    with psycopg.connect(database.owner_url) as connection:
        for name in months(database)[-2:]:
            connection.execute(f"DROP TABLE {name}")  # type: ignore[arg-type]
    for expected in (2, 0):
        with session_scope(engine_of(Role.FEEDBACK)) as session:
            assert ensure_partitions(session) == expected


def test_a_windowed_reading_scans_no_old_month(
    old_months: Database, engine_of: Callable[[Role], Engine]
) -> None:
    with psycopg.connect(old_months.owner_url) as connection:
        low = floor_of(OLD).int
        rows = [(type(new_id())(int=low | 0x7 << 76 | 0b10 << 62 | (1000 + n)),) for n in range(5_000)]
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO feedback.feedback_event"
                " (id, response_id, origin, kind, body_sha256, state, created_at)"
                " VALUES (%s, gen_random_uuid(), 'inferred', 'copy', '', 'joined', '2024-03-16')",
                rows,
            )
        connection.execute("ANALYZE feedback.feedback_event")
    with frozen_view(engine_of(Role.FEEDBACK)) as connection:
        scans = [
            scan for plan in plans(connection, datetime.now(UTC) - timedelta(days=14)) for scan in walk(plan)
        ]
    touched = {(kind, name) for kind, name in scans if name.endswith("2024_03")}
    assert ("Seq Scan", "feedback_event_2024_03") not in touched
    assert any(name == "feedback_event_2024_03" for _, name in touched), "the index says there is nothing"


def walk(plan: dict) -> list[tuple[str, str]]:  # type: ignore[type-arg]
    """Node type and table of every node of a plan."""
    below = [scan for child in plan.get("Plans", []) for scan in walk(child)]
    return [(plan["Node Type"], plan.get("Relation Name", "")), *below]
