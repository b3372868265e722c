"""Rounds carried out on real rows by real processes: told, stopped, killed, resumed, the database away."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

from ratchet.artifacts import Kind, store_of
from ratchet.db.engine import session_scope
from ratchet.db.models.training import TrainingRound
from ratchet.db.roles import Role
from ratchet.errors import AlreadyRunning, EnvironmentFault, UsageError
from ratchet.home import Home
from ratchet.registry import PolicyVersion, get_policy
from tests.conftest import Database
from tests.support.scripted_round import scripted
from tests.support.snapshots import pairs_snapshot
from trainer.config import RoundConfig, parse
from trainer.errors import DiskFull
from trainer.rounds import repository
from trainer.rounds.candidates import Publish
from trainer.rounds.conduct import carry_out
from trainer.rounds.events import Event
from trainer.sink import CheckpointRecord, write_control

ROOT = Path(__file__).parents[3]
Publisher = Callable[[TrainingRound], Publish]


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def test_a_round_is_told_in_rows_and_its_checkpoints_become_candidates(
    database: Database,
    engine: Engine,
    home: Home,
    parent: PolicyVersion,
    ask: Callable[[], UUID],
    publisher: Publisher,
) -> None:
    identity = ask()
    ended = carry_out(
        engine, home, identity, worker="w", launch=scripted(steps=4, checkpoints=[2, 4]), publisher=publisher
    )
    assert ended is not None
    assert (ended.id, ended.state, ended.error) == (identity, "done", None)
    assert ended.summary is not None
    first, last = ended.summary["checkpoints"]
    assert (first["step"], first["kl"], first["reward"], first["accuracy"]) == (2, 1.0, 0.2, 0.52)
    assert (last["step"], last["last"]) == (4, True)
    assert ended.summary["data"]["dropped"] == {"empty_answer": 2}
    assert (ended.summary["pairs_per_second"], ended.summary["peak_memory_bytes"]) == (2.5, 123_456)

    with session_scope(engine) as session:
        candidate = get_policy(session, last["policy"])
        row = repository.find_round(session, "last")
        assert (row.state, row.step, row.total_steps, row.attempts) == ("done", 4, 4, 1)
        assert row.summary == ended.summary
    assert (candidate.name, candidate.parent, candidate.decode) == ("tiny", parent.ref, parent.decode)
    told = candidate.provenance
    assert (told["round"], told["step"], told["reference"]) == (str(identity), 4, parent.ref)
    assert len(told["snapshot"]) == 64
    assert told["config"]["loss"]["beta"] == 0.1
    assert "reward" not in json.dumps({**told, "config": None})
    assert store_of(home, Kind.POLICY).open(candidate.artifact)
    assert rows(database, "SELECT step, policy, reward, is_last FROM training.checkpoint ORDER BY step") == [
        (2, first["policy"], 0.2, False),
        (4, last["policy"], 0.4, True),
    ]
    assert rows(database, "SELECT step, value FROM training.metric WHERE name = 'loss' ORDER BY step") == [
        (1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25),
    ]  # fmt: skip
    assert rows(database, "SELECT kind, subject FROM operations.alarm") == [
        ("gradient_floor", f"round {identity}")
    ]
    assert carry_out(engine, home, identity, worker="w", launch=scripted(steps=1)) is None


def test_a_round_trains_on_the_snapshot_it_was_asked_for_on_and_no_other(
    engine: Engine, home: Home, ask: Callable[[], UUID], snapshot: Path, publisher: Publisher
) -> None:
    identity = ask()
    other = pairs_snapshot(home.snapshots, rows=7)
    shutil.rmtree(snapshot)
    other.rename(snapshot)
    ended = carry_out(engine, home, identity, worker="w", launch=scripted(steps=1), publisher=publisher)
    assert ended is not None
    assert (ended.state, "and the round was asked for on" in str(ended.error)) == ("failed", True)


def test_a_round_that_fails_says_why_and_is_resumed(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID]
) -> None:
    identity = ask()
    ended = carry_out(engine, home, identity, worker="w", launch=scripted(steps=4, fail_at=3))
    assert ended is not None
    assert (ended.state, ended.summary) == ("failed", None)
    assert "the loss of step 3 is NaN" in (ended.error or "")
    with session_scope(engine) as session:
        repository.resume(session, identity, who="ann", why="the row was mended")
        with pytest.raises(UsageError, match="is asked"):
            repository.resume(session, identity, who="ann", why="twice")
    again = carry_out(engine, home, identity, worker="w", launch=scripted(steps=4))
    assert again is not None
    assert (again.state, (again.summary or {})["steps"]) == ("done", 4)
    assert rows(database, "SELECT step FROM training.metric WHERE name = 'loss' ORDER BY step") == [
        (1,), (2,), (3,), (4,),
    ]  # fmt: skip


def never(_: RoundConfig, folder: Path) -> "subprocess.Popen[Any]":
    raise AssertionError(f"{folder}: nothing was left to train")


def test_a_candidate_that_could_not_be_registered_is_when_the_round_is_resumed(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID], publisher: Publisher
) -> None:
    """The store's disk is full for the second of two checkpoints; nothing is trained again afterwards."""
    identity = ask()
    state = home.rounds / str(identity) / "state"

    def full(row: TrainingRound) -> Publish:
        register = publisher(row)

        def publish(engine: Engine, home: Home, row: TrainingRound, record: CheckpointRecord) -> str:
            state.mkdir(exist_ok=True)
            if record.step == 4:
                raise EnvironmentFault("no room in the store")
            return register(engine, home, row, record)

        return publish

    script = scripted(steps=4, checkpoints=[2, 4])
    ended = carry_out(engine, home, identity, worker="w", launch=script, publisher=full)
    assert ended is not None
    assert ended.state == "failed"
    assert "the checkpoint of step 4 is not registered: no room in the store" in (ended.error or "")
    registered = "SELECT policy IS NOT NULL FROM training.checkpoint ORDER BY step"
    assert (rows(database, registered), state.exists()) == ([(True,), (False,)], True)

    with session_scope(engine) as session:
        repository.resume(session, identity, who="ann", why="there is room")
    again = carry_out(engine, home, identity, worker="w", launch=never, publisher=publisher)
    assert again is not None
    assert (again.state, again.error) == ("done", None)
    assert [each["policy"] is not None for each in (again.summary or {})["checkpoints"]] == [True, True]
    assert (rows(database, registered), state.exists()) == ([(True,), (True,)], False)


def test_a_round_that_cannot_be_started_has_failed(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID]
) -> None:
    def full(_: RoundConfig, folder: Path) -> "subprocess.Popen[Any]":
        raise DiskFull(f"{folder}: no room")

    ended = carry_out(engine, home, ask(), worker="w", launch=full)
    assert ended is not None
    assert (ended.state, (ended.error or "").endswith("no room")) == ("failed", True)
    assert rows(database, "SELECT state, error FROM training.training_round") == [("failed", ended.error)]


def test_a_row_that_the_database_refuses_fails_the_round_with_its_words(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID]
) -> None:
    with psycopg.connect(database.owner_url) as owner:
        owner.execute("ALTER TABLE training.metric ADD CHECK (value < 0.5)")
    ended = carry_out(engine, home, ask(), worker="w", launch=scripted(steps=2))
    assert ended is not None
    assert (ended.state, ended.summary) == ("failed", None)
    assert (ended.error or "").startswith('PostgreSQL refused a row: new row for relation "metric" violates')
    assert rows(database, "SELECT state FROM training.training_round") == [("failed",)]


class Seen:
    """Calls a function once a step was told."""

    def __init__(self, step: int, then: Callable[[], None]) -> None:
        self._step, self._then = step, then

    def stage(self, text: str) -> None: ...

    def candidate(self, step: int, ref: str) -> None: ...

    def event(self, event: Event) -> None:
        if event.name == "metrics" and event.values["step"] == self._step:
            self._then()


def test_the_evaluators_word_stops_a_round_and_a_resumed_one_goes_on(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID], publisher: Publisher
) -> None:
    identity = ask()

    def stop() -> None:
        with psycopg.connect(database.url(Role.EVALUATOR)) as connection:
            connection.execute(
                "INSERT INTO training.round_control (id, round_id, word, who, why)"
                " VALUES (gen_random_uuid(), %s, 'stop', 'harness', 'a floor was breached')",
                (identity,),
            )

    script = {"steps": 4, "pause_at": 3}
    ended = carry_out(
        engine, home, identity, worker="w", launch=scripted(**script), show=Seen(2, stop), publisher=publisher
    )
    assert ended is not None
    assert (ended.state, (ended.summary or {})["reason"]) == ("stopped", "control")
    with session_scope(engine) as session:
        repository.resume(session, identity, who="ann", why="a false alarm")
    again = carry_out(engine, home, identity, worker="w", launch=scripted(steps=4))
    assert again is not None
    assert (again.state, (again.summary or {})["reason"]) == ("done", "complete")
    assert rows(database, "SELECT word, who FROM training.round_control ORDER BY created_at") == [
        ("stop", "harness"),
        ("ok", "ann"),
    ]


def test_a_resumed_round_whose_worker_died_before_it_began_goes_on(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID]
) -> None:
    """The second claim reads the end of the first, which a person has taken back since."""
    identity = ask()

    def stop() -> None:
        with session_scope(engine) as session:
            repository.stop(session, identity, who="ann", why="lunch")

    script = {"steps": 4, "pause_at": 3}
    carry_out(engine, home, identity, worker="w", launch=scripted(**script), show=Seen(2, stop))
    with session_scope(engine) as session:
        repository.resume(session, identity, who="ann", why="lunch is over")
        assert repository.claim(session, identity, worker="dead", code_version="c", folder="f") is not None
    with psycopg.connect(database.owner_url) as owner:
        owner.execute("UPDATE training.training_round SET beat_at = now() - interval '1 hour'")
    with session_scope(engine) as session:
        repository.find_lost(session, silent_for=repository.timedelta(minutes=2))
    ended = carry_out(engine, home, identity, worker="w", launch=scripted(steps=4))
    assert ended is not None
    assert (ended.state, (ended.summary or {})["reason"], (ended.summary or {})["steps"]) == (
        "done", "complete", 4,
    )  # fmt: skip


def test_a_stopped_round_whose_worker_died_before_it_said_so_stays_stopped(
    engine: Engine, home: Home, ask: Callable[[], UUID]
) -> None:
    identity = ask()
    folder = home.rounds / str(identity)
    folder.mkdir(parents=True)
    write_control(folder, "stop")
    scripted(steps=4)(parse({"method": "dpo", "model": "m", "snapshot": "s"}, source="t"), folder).wait()
    with session_scope(engine) as session:
        repository.speak(session, identity, "stop", who="harness", why="a floor was breached")
    ended = carry_out(engine, home, identity, worker="w", launch=never)
    assert ended is not None
    assert (ended.state, (ended.summary or {})["reason"]) == ("stopped", "control")


def test_a_round_that_waits_is_stopped_before_it_begins_and_one_that_ended_is_not(
    engine: Engine, home: Home, ask: Callable[[], UUID]
) -> None:
    identity = ask()
    with session_scope(engine) as session:
        assert repository.stop(session, identity, who="ann", why="not today") == "stopped"
    assert carry_out(engine, home, identity, worker="w", launch=scripted(steps=1)) is None
    with session_scope(engine) as session, pytest.raises(UsageError, match="is stopped already"):
        repository.stop(session, identity, who="ann", why="twice")


@pytest.mark.faults
def test_rows_wait_while_the_database_is_away_and_training_goes_on(
    database: Database, engine: Engine, home: Home, ask: Callable[[], UUID], publisher: Publisher
) -> None:
    """Every connection is cut and new ones are refused from step 2 until the process has ended."""
    identity = ask()
    folder = home.rounds / str(identity)

    def connections(allowed: bool) -> None:
        name = database.owner_url.rpartition("/")[2].partition("?")[0]
        maintenance = database.owner_url.replace(f"/{name}", "/postgres")
        with psycopg.connect(maintenance, autocommit=True) as owner:
            owner.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {allowed}')  # type: ignore[arg-type]
            if not allowed:
                owner.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
                )

    def cut() -> None:
        connections(False)
        (folder / "go").touch()
        done = folder / "events.jsonl"

        def back() -> None:
            while b'"finished"' not in done.read_bytes():
                threading.Event().wait(0.02)
            threading.Event().wait(1.5)
            connections(True)

        threading.Thread(target=back).start()

    script = {"steps": 6, "pause_at": 3, "checkpoints": [4]}
    ended = carry_out(
        engine, home, identity, worker="w", launch=scripted(**script), show=Seen(2, cut), publisher=publisher
    )
    assert ended is not None
    assert ended.state == "done"
    assert rows(database, "SELECT count(*) FROM training.metric WHERE name = 'loss'") == [(6,)]
    assert rows(database, "SELECT step, policy IS NOT NULL FROM training.checkpoint") == [(4, True)]


@pytest.fixture
def conductor(
    database: Database, home: Home
) -> Iterator[Callable[[UUID, dict[str, Any]], "subprocess.Popen[Any]"]]:
    """Starts a real conductor on a scripted round; all are gone in the end."""
    program = (
        "import sys, json\n"
        "from tests.support.scripted_round import scripted\n"
        "from trainer.rounds import conductor\n"
        "conductor.launch = scripted(**json.loads(sys.argv.pop()))\n"
        "conductor.main()\n"
    )
    started: list[subprocess.Popen[Any]] = []

    def start(identity: UUID, script: dict[str, Any]) -> "subprocess.Popen[Any]":
        environment = {
            **os.environ,
            "RATCHET_DATABASE_URL": database.url(Role.TRAINER),
            "RATCHET_BROKER_URL": "memory://",
            "RATCHET_HOME": str(home.root),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-c", program, str(identity), json.dumps(script)]
        started.append(subprocess.Popen(command, env=environment, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for(check: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if check():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never happened")


@pytest.mark.faults
@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_conductor_takes_its_training_with_it_and_another_goes_on(
    database: Database,
    engine: Engine,
    home: Home,
    ask: Callable[[], UUID],
    conductor: Callable[[UUID, dict[str, Any]], "subprocess.Popen[Any]"],
    signal_sent: signal.Signals,
) -> None:
    identity = ask()
    folder = home.rounds / str(identity)
    first = conductor(identity, {"steps": 4, "pause_at": 3})
    wait_for(lambda: rows(database, "SELECT count(*) FROM training.metric WHERE step = 2")[0][0] == 2)
    with pytest.raises(AlreadyRunning, match="another process"):
        carry_out(engine, home, identity, worker="v", launch=scripted(steps=4))
    first.send_signal(signal_sent)
    first.wait()
    if signal_sent is signal.SIGKILL:
        assert rows(database, "SELECT state FROM training.training_round") == [("running",)]
        with psycopg.connect(database.owner_url) as owner:
            owner.execute("UPDATE training.training_round SET beat_at = now() - interval '1 hour'")
        with session_scope(engine) as session:
            assert repository.find_lost(session, silent_for=repository.timedelta(minutes=2)) == (
                [identity],
                [],
            )
    assert rows(database, "SELECT state FROM training.training_round") == [("asked",)]
    (folder / "go").touch()
    second = conductor(identity, {"steps": 4})
    assert second.wait() == 0
    assert rows(database, "SELECT state, step, summary ->> 'steps' FROM training.training_round") == [
        ("done", 4, "4")
    ]
    starts = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [each["first_step"] for each in starts if each["event"] == "started"] == [0, 2]


def test_the_worker_takes_the_oldest_round_and_none_that_was_asked_for_a_moment_ago(
    database: Database, engine: Engine, ask: Callable[[], UUID]
) -> None:
    first, second = ask(), ask()
    with session_scope(engine) as session:
        assert repository.due(session) is None
    with psycopg.connect(database.owner_url) as owner:
        owner.execute("UPDATE training.training_round SET created_at = now() - interval '1 minute'")
    with session_scope(engine) as session:
        assert repository.due(session) == first
        repository.stop(session, first, who="ann", why="not now")
        assert repository.due(session) == second


def test_a_round_whose_workers_died_three_times_has_failed(
    database: Database, engine: Engine, ask: Callable[[], UUID]
) -> None:
    identity = ask()
    for attempt in range(1, repository.ATTEMPTS + 1):
        with session_scope(engine) as session:
            claimed = repository.claim(session, identity, worker="w", code_version="c", folder="f")
            assert claimed is not None
            assert claimed[0].attempt == attempt
            assert repository.claim(session, identity, worker="v", code_version="c", folder="f") is None
        with psycopg.connect(database.owner_url) as owner:
            owner.execute("UPDATE training.training_round SET beat_at = now() - interval '1 hour'")
        with session_scope(engine) as session:
            repository.find_lost(session, silent_for=repository.timedelta(minutes=2))
        with session_scope(engine) as session, pytest.raises(repository.RoundLost):
            repository.held(session, claimed[0], step=7)
    assert rows(database, "SELECT state, error, step FROM training.training_round") == [
        ("failed", "its worker died 3 times; the log in its folder says of what", 0)
    ]
