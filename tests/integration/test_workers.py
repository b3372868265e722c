"""Celery on the stack's own PostgreSQL, and the signs of life of trainer and evaluator."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from celery import Celery
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from ratchet.broker import broker_url, celery_settings, forget_delivered
from ratchet.db.engine import libpq_url, session_scope
from ratchet.db.roles import Role
from ratchet.errors import ConfigError
from tests.conftest import Database

SERVICES = (Role.TRAINER, Role.EVALUATOR)


def test_the_broker_is_the_roles_own_address_with_its_schema_in_view() -> None:
    url = broker_url("postgresql://ratchet_trainer:p%40ss@/ratchet?host=%2Ftmp%2Fsocket")
    assert url == (
        "sqla+postgresql+psycopg://ratchet_trainer:p%40ss@/ratchet"
        "?host=%2Ftmp%2Fsocket&options=-csearch_path%3Dbroker"
    )


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.parametrize("role", [Role.FEEDBACK, *SERVICES])
def test_messages_go_through_the_tables_the_migrations_made(
    database: Database, engine_of: Callable[[Role], Engine], role: Role
) -> None:
    url = broker_url(database.url(role))
    app = Celery("test", set_as_current=False)
    app.conf.update(celery_settings(role.service, url, {}))
    with app.connection_for_write() as connection:
        queue = connection.SimpleQueue(role.service)
        for number in range(3):
            queue.put({"number": number})
        got = [queue.get(timeout=5) for _ in range(2)]
        assert [message.payload for message in got] == [{"number": 0}, {"number": 1}]
        for message in got:
            message.ack()
        queue.close()
        connection.transport.Channel._engines[url.removeprefix("sqla+")][0].dispose()

    with psycopg.connect(database.owner_url) as owner:
        made = owner.execute("SELECT schemaname FROM pg_tables WHERE tablename LIKE 'kombu%'").fetchall()
        assert made == [("broker",), ("broker",)]
        local = datetime.now(UTC).astimezone().replace(tzinfo=None) - timedelta(seconds=90)
        owner.execute("UPDATE broker.kombu_message SET timestamp = %s WHERE NOT visible", (local,))
    with session_scope(engine_of(role)) as session:
        assert forget_delivered(session, older_than_s=100) == 0
        assert forget_delivered(session, older_than_s=80) == 2
        assert forget_delivered(session, older_than_s=0) == 0


def test_a_broker_of_another_kind_gets_no_options_of_sqlalchemy() -> None:
    settings = celery_settings("trainer", "redis://localhost/0", {"a": {}})
    assert settings["broker_transport_options"] == {}
    assert settings["task_default_queue"] == "trainer"
    assert settings["beat_schedule"] == {"a": {}}


@pytest.mark.parametrize("role", SERVICES)
def test_a_heartbeat_is_one_row_that_is_written_again(database: Database, role: Role) -> None:
    program = (
        f"from {role.service}.worker import app\n"
        "assert app.conf.task_default_queue == app.main\n"
        "for _ in range(2):\n"
        f"    app.tasks['{role.service}.heartbeat'].apply(throw=True)\n"
        f"print(app.tasks['{role.service}.forget_delivered'].apply(throw=True).result)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={
            "PATH": "/usr/bin:/bin",
            "RATCHET_INSTANCE": "one",
            "RATCHET_DATABASE_URL": database.url(role),
            "RATCHET_BROKER_URL": broker_url(database.url(role)),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
    with psycopg.connect(libpq_url(database.url(Role.REPORT))) as connection:
        rows = connection.execute(
            "SELECT process, detail ->> 'queue', now() - beat_at < interval '1 minute' "
            "FROM operations.heartbeat"
        ).fetchall()
    assert rows == [("one", role.service, True)]


@pytest.mark.parametrize("role", SERVICES)
def test_the_web_application_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch, database: Database, role: Role
) -> None:
    create_app = importlib.import_module(f"{role.service}.app").create_app
    with pytest.raises(ConfigError, match="RATCHET_DATABASE_URL"):
        create_app()
    monkeypatch.setenv("RATCHET_DATABASE_URL", database.url(role))
    monkeypatch.setenv("RATCHET_BROKER_URL", broker_url(database.url(role)))
    with TestClient(create_app()) as client:
        assert client.get("/healthz").json() == {"status": "ok", "service": role.service}
        metrics = client.get("/metrics")
        assert metrics.status_code == 200
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert client.get("/docs").status_code == 404
