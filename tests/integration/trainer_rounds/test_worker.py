"""The trainer's real worker on a real round: begun from its row, killed, gone on with, stopped by a word."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from ratchet.broker import broker_url
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.registry import PolicyVersion, folder_of, get_policy, golden_entries
from tests.conftest import Database
from tests.support.worker import Logged
from trainer.config import Method, RoundConfig, parse
from trainer.rounds import repository
from trainer.rounds.asking import ask_for, prepare

SMALL = {
    "method": "dpo",
    "data": {"max_length": 128},
    "optim": {"lr": 1e-4, "batch": 2, "micro_tokens": 256, "steps": 100_000},
    "checkpoints": {"kl_at": [], "kl_prompts": 2, "kl_tokens": 8, "measure_every": 0, "save_every": 2},
}


@contextmanager
def worker(database: Database, home: Home) -> Iterator[Logged]:
    """A trainer's worker as `ratchet up` starts it, which looks for rounds twice a second."""
    url = database.url(Role.TRAINER)
    command = [
        sys.executable, "-m", "celery", "-A", "trainer.worker", "worker", "--queues", "trainer", "--beat",
        "--schedule", str(home.run / "trainer.beat"), "--pool", "solo", "--loglevel", "INFO",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(home.root)),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "RATCHET_HOME": str(home.root),
        "RATCHET_DATABASE_URL": url,
        "RATCHET_BROKER_URL": broker_url(url),
        "RATCHET_LOG_FORMAT": "console",
        "RATCHET_TRAINER_LOOK_EVERY_S": "0.5",
    }
    started = Logged(command, environment)
    try:
        yield started
    finally:
        started.stop()


def wait_for_row(database: Database, query: str) -> tuple[Any, ...]:
    """The first row of a query, once there is one."""
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        for _ in range(1_200):
            row = connection.execute(query).fetchone()  # type: ignore[arg-type]
            if row is not None:
                return row
            connection.execute("SELECT pg_sleep(0.1)")
    raise AssertionError(f"no row: {query}")


@pytest.mark.faults
def test_a_killed_workers_round_goes_on_and_a_word_ends_it_with_a_candidate(
    database: Database, engine: Engine, home: Home, parent: PolicyVersion, snapshot: Path
) -> None:
    def build(given: dict[str, Any]) -> RoundConfig:
        return parse({**SMALL, **given}, source="test")

    prepared = prepare(engine, home, Method.DPO, build, policy=parent.ref, snapshot=str(snapshot))
    identity = ask_for(engine, home, prepared, by="ann", reason="weekly")
    with worker(database, home) as first:
        first.wait_for("a conductor begins")
        wait_for_row(database, "SELECT step FROM training.metric WHERE name = 'loss' AND step >= 4")
        os.killpg(first.process.pid, signal.SIGKILL)
        wait_for_row(
            database, "SELECT id FROM training.training_round WHERE state = 'asked' AND attempts = 0"
        )
        first.wait_for("the round was given back")
        first.process.wait()
    told = (home.rounds / str(identity) / "events.jsonl").read_text()
    assert told.count('"started"') == 1

    with worker(database, home) as second:
        second.wait_for("a conductor begins")
        wait_for_row(
            database,
            "SELECT id FROM training.training_round WHERE state = 'running' AND beat_at > started_at"
            " AND step > 0 AND attempts = 1 AND worker IS NOT NULL",
        )
        with session_scope(engine) as session:
            assert repository.stop(session, identity, who="harness", why="a floor was breached") == "running"
        second.wait_for("the round ended")
    assert wait_for_row(
        database, "SELECT state, error, summary ->> 'reason' FROM training.training_round"
    ) == ("stopped", None, "control")
    told = (home.rounds / str(identity) / "events.jsonl").read_text()
    assert told.count('"started"') == 2
    (policy,) = wait_for_row(database, "SELECT policy FROM training.checkpoint WHERE is_last")
    with session_scope(engine) as session:
        candidate = get_policy(session, policy)
        assert (candidate.parent, candidate.decode) == (parent.ref, parent.decode)
        assert golden_entries(session, policy)
        assert (folder_of(home, candidate) / "model.safetensors").exists()
