"""Celery for real, on the embedded broker and on Redis: killed, doubled, lost, restarted: the same rows."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI, Request, Response

from feedback.builds import request_build
from feedback.pairing import BuildRequest
from feedback.samples import request_samples
from ratchet.broker import broker_url
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres
from ratchet.ids import new_id
from tests.conftest import Database
from tests.support.feedback import (
    HELDOUT_PROMPT,
    put,
    put_comparisons,
    put_event,
    put_policy,
    put_votes,
    response,
    user,
)
from tests.support.served import served
from tests.support.worker import Logged, redis_server, worker

pytestmark = pytest.mark.faults

QUIET = dict.fromkeys(
    ("heartbeat", "join", "infer", "compare", "expire", "samples", "builds", "reconcile", "partitions"), 0
)
BLUE, BLACK = "The sky is blue.", "The sky is black."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    """A broker, and how to start it anew."""

    def __init__(self, url: str, restart: Callable[[], None]) -> None:
        self.url = url
        self.restart = restart


@pytest.fixture(params=["postgres", "redis"])
def broker(
    request: pytest.FixtureRequest, cluster: EmbeddedPostgres, database: Database, tmp_path: Path
) -> Iterator[Broker]:
    if request.param == "postgres":

        def crash() -> None:
            cluster.stop(immediate=True)
            cluster.start()

        yield Broker(broker_url(database.url(Role.FEEDBACK)), crash)
        return
    port = free_port()
    with ExitStack() as stack:
        running = [stack.enter_context(redis_server(tmp_path, port))]

        def restart() -> None:
            running[-1].kill()
            running.append(stack.enter_context(redis_server(tmp_path, port)))

        yield Broker(f"redis://127.0.0.1:{port}/0", restart)


@pytest.fixture
def environment(database: Database, broker: Broker, tmp_path: Path) -> Callable[..., dict[str, str]]:
    def of(**schedule: float) -> dict[str, str]:
        return {
            "RATCHET_DATABASE_URL": database.url(Role.FEEDBACK),
            "RATCHET_BROKER_URL": broker.url,
            "RATCHET_HOME": str(tmp_path / "home"),
            "RATCHET_INSTANCE": "worker-under-test",
            "RATCHET_LOG_FORMAT": "console",
            "RATCHET_FEEDBACK_SCHEDULE": json.dumps({**QUIET, "retention": 0, **schedule}),
        }

    return of


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def send(broker: Broker, task: str, *arguments: str, times: int = 1) -> None:
    """Sends messages from a process of its own, as `ratchet` and the gateway are."""
    program = (
        "import sys; from celery import Celery; app = Celery(broker=sys.argv[1])\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    app.send_task('feedback.' + sys.argv[3], args=sys.argv[4:], queue='feedback')\n"
    )
    command = [sys.executable, "-c", program, broker.url, str(times), task, *arguments]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


@contextmanager
def locked(database: Database, table: str) -> Iterator[psycopg.Connection[Any]]:
    """Holds a table, so that a worker stops in the middle of its transaction; gives a second connection."""
    with (
        psycopg.connect(database.owner_url) as holder,
        psycopg.connect(database.owner_url, autocommit=True) as watcher,
    ):
        holder.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")  # type: ignore[arg-type]
        yield watcher
        holder.rollback()


def wait_until_blocked(watcher: psycopg.Connection[Any], running: Logged) -> None:
    """Returns when a worker's transaction waits for the table that the test holds."""
    running.wait_for("received")
    for _ in range(1800):
        blocked = watcher.execute(
            "SELECT pg_sleep(0.05), count(*) FROM pg_stat_activity"
            " WHERE application_name = 'worker-under-test' AND wait_event_type = 'Lock'"
        ).fetchone()
        if blocked is not None and blocked[1]:
            return
    raise AssertionError("the worker never came to the locked table")


def test_a_build_survives_a_killed_worker_a_doubled_and_a_lost_message(
    database: Database,
    broker: Broker,
    environment: Callable[..., dict[str, str]],
    engine_of: Any,
    tmp_path: Path,
) -> None:
    [item] = put_comparisons(database.owner_url, 1, a_text=BLUE, b_text=BLACK)
    put_votes(database.owner_url, item, "a")
    with session_scope(engine_of(Role.TRAINER)) as session:
        killed, lost, wrong = (
            request_build(session, request, "test")
            for request in (BuildRequest(), BuildRequest(min_votes=1), BuildRequest(policy="moon"))
        )
    send(broker, "build", str(killed))
    with (
        locked(database, "feedback.dataset_snapshot") as watcher,
        worker(environment(), tmp_path, beat=False) as running,
    ):
        wait_until_blocked(watcher, running)
        running.kill()
    assert rows(database, "SELECT count(*) FROM feedback.dataset_snapshot") == [(0,)]
    assert rows(database, "SELECT DISTINCT state FROM feedback.snapshot_build") == [("pending",)]
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("UPDATE feedback.snapshot_build SET sent_at = now() - interval '1 hour'")
    send(broker, "build", str(wrong), times=2)
    with worker(environment(builds=1), tmp_path) as running:
        running.wait_for(r"feedback\.build\[\S+\] succeeded", times=4)
    states = rows(database, "SELECT id, state, digest IS NOT NULL FROM feedback.snapshot_build ORDER BY id")
    assert states == sorted([(killed, "done", True), (lost, "done", True), (wrong, "failed", False)])
    assert rows(database, "SELECT count(*), count(DISTINCT snapshot) FROM feedback.preference_pair") == [
        (1, 1)
    ]
    [(path,)] = rows(database, "SELECT path FROM feedback.dataset_snapshot")
    assert sorted(each.name for each in Path(path).parent.iterdir()) == [Path(path).name]
    [(error,)] = rows(database, "SELECT error FROM feedback.snapshot_build WHERE state = 'failed'")
    assert "no policy is named 'moon'" in error


def test_events_end_the_same_whether_or_not_a_worker_was_killed_over_them(
    database: Database, broker: Broker, environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    answers = put(
        database.owner_url, *(response(f"{place}.", user_id=f"user {place}") for place in range(20))
    )
    for answer in answers:
        put_event(database.owner_url, answer, "copy", state="new", user_id=None)
    send(broker, "join")
    with (
        locked(database, "feedback.feedback_event") as watcher,
        worker(environment(), tmp_path, beat=False) as running,
    ):
        wait_until_blocked(watcher, running)
        running.kill()
    assert rows(database, "SELECT DISTINCT state FROM feedback.feedback_event") == [("new",)]
    with worker(environment(join=1), tmp_path) as running:
        running.wait_for(r"feedback\.join\[\S+\] succeeded", times=2)
        broker.restart()
        put_event(database.owner_url, answers[0], "thumb", value=1, state="new")
        running.wait_for(r"feedback\.join\[\S+\] succeeded", times=2)
        thumbs = rows(database, "SELECT state FROM feedback.feedback_event WHERE kind = 'thumb'")
        assert thumbs == [("joined",)]
    joined = rows(
        database, "SELECT state, user_id FROM feedback.feedback_event WHERE kind = 'copy' ORDER BY id"
    )
    assert sorted(joined) == sorted(("joined", f"user {place}") for place in range(20))


def test_samples_are_answered_by_the_gateway_and_compared_once(
    database: Database,
    broker: Broker,
    environment: Callable[..., dict[str, str]],
    engine_of: Any,
    tmp_path: Path,
) -> None:
    gateway = FastAPI()
    asked: list[str] = []

    @gateway.post("/v1/chat/completions")
    async def answer(request: Request) -> Response:
        body = await request.json()
        asked.append(body["model"])
        if len(asked) == 1:
            return Response("busy", 503)
        message = {"role": "assistant", "content": BLUE if body["model"].startswith("sky") else BLACK}
        document = {"created": 1_790_000_000, "choices": [{"index": 0, "message": message}]}
        headers = {"x-ratchet-response-id": str(new_id()), "x-ratchet-policy": body["model"]}
        assert request.headers["authorization"] == "Bearer rk-test"
        return Response(json.dumps(document), headers=headers, media_type="application/json")

    put_policy(database.owner_url, "sky@aaaaaaaaaaaa")
    put(database.owner_url, response(), response(), response(messages=user(HELDOUT_PROMPT)))
    with session_scope(engine_of(Role.FEEDBACK)) as session:
        policies = ("sky@aaaaaaaaaaaa", "sea@bbbbbbbbbbbb")
        assert request_samples(session, policies, 10, ("language",), now=datetime.now(UTC)) == 1
    [(wish,)] = rows(database, "SELECT id FROM feedback.sample_request")
    with served(gateway) as url:
        env = {
            **environment(), "RATCHET_FEEDBACK_GATEWAY_URL": url, "RATCHET_FEEDBACK_GATEWAY_KEY": "rk-test",
        }  # fmt: skip
        send(broker, "answer_sample", str(wish), times=3)
        with worker(env, tmp_path, beat=False) as running:
            running.wait_for(r"feedback\.answer_sample\[\S+\] succeeded", times=3)
    assert asked == ["sky@aaaaaaaaaaaa", "sky@aaaaaaaaaaaa", "sea@bbbbbbbbbbbb"]
    assert rows(database, "SELECT state, attempts, error FROM feedback.sample_request") == [("done", 2, None)]
    [(source, texts)] = rows(database, "SELECT source, ARRAY[a_text, b_text] FROM feedback.comparison")
    assert (source, set(texts)) == ("sampled", {BLUE, BLACK})
    assert rows(database, "SELECT a_decode, b_decode FROM feedback.comparison") in (
        [("d", None)],
        [(None, "d")],
    )


def test_every_periodic_task_runs_from_its_schedule(
    database: Database, broker: Broker, environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    every = dict.fromkeys([*QUIET, "retention"], 1.0)
    with worker(environment(**every), tmp_path) as running:
        waiting = {f"feedback.{task}" for task in every}
        while waiting:
            running.wait_for(r"Task feedback\.\w+\[\S+\] succeeded")
            waiting -= {name for name in waiting if f"Task {name}[" in running.seen[-1]}
    assert rows(database, "SELECT process FROM operations.heartbeat") == [("worker-under-test",)]
    assert not [line for line in running.seen if "Traceback" in line]
