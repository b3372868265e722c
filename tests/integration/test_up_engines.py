"""Rows of `registry.engine` and the processes behind them: a real PostgreSQL, stubs in vLLM's place."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine as Connections
from sqlalchemy import make_url, select, update

from ratchet.db.engine import libpq_url, session_scope
from ratchet.db.models.registry import EngineRow
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres
from ratchet.errors import AlreadyRunning, EnvironmentFault, NotFound
from ratchet.home import Home
from ratchet.ids import new_id
from ratchet.plan import current_plans
from ratchet.supervisor import backoff, engine, sole
from ratchet.supervisor.engines import Engines
from ratchet.supervisor.policy import settle
from ratchet.supervisor.settings import SupervisorSettings
from ratchet.supervisor.show import Show
from ratchet.supervisor.sole import Sole
from tests.conftest import Database
from tests.support.stub_stack import StubPolicy, put_in_production, register, stub_command, use_stub_key

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home").ensure()
    use_stub_key(made)
    return made


@pytest.fixture
def connections(engine_of: Callable[[Role], Connections]) -> Connections:
    return engine_of(Role.OPERATOR)


@pytest.fixture
def policy(connections: Connections, home: Home, tmp_path: Path) -> StubPolicy:
    made = register(connections, home, tmp_path, "tiny")
    put_in_production(connections, made)
    return made


@dataclass
class Driven:
    """Engines that tick when they are told to.

    Attributes:
        engines: What is tested.
        connections: To their database.
    """

    engines: Engines
    connections: Connections

    def rows(self) -> list[EngineRow]:
        """Every row, oldest first."""
        with session_scope(self.connections) as session:
            return list(session.scalars(select(EngineRow).order_by(EngineRow.id)))

    def until(self, holds: Callable[[EngineRow], bool], index: int = 0) -> EngineRow:
        """Ticks until a row is as wanted; the test's own timeout ends what never comes."""
        while True:
            self.engines.tick(lambda: False)
            rows = self.rows()
            if len(rows) > index and holds(rows[index]):
                return rows[index]

    def change(self, **values: Any) -> None:
        """Changes every row, as an operator would."""
        with session_scope(self.connections) as session:
            session.execute(update(EngineRow).values(**values))


@pytest.fixture
def driven(
    home: Home,
    connections: Connections,
    policy: StubPolicy,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Driven]:
    del policy
    monkeypatch.setattr("ratchet.supervisor.engines.RECONCILE_EVERY_S", 0.0)
    settings = SupervisorSettings(engine_command=stub_command())
    made = Engines(home, settings, connections, Show(to_stderr=False), lambda: None)
    yield Driven(made, connections)
    made.stop(lambda: True)


def is_up(row: EngineRow) -> bool:
    return row.state == "up" and row.pid is not None


def test_a_policy_in_a_plan_gets_an_engine_and_a_fresh_fingerprint(
    driven: Driven, policy: StubPolicy, home: Home
) -> None:
    row = driven.until(is_up)
    assert (row.policy, row.managed, row.desired, row.restarts) == (policy.ref, True, "up", 0)
    assert row.fingerprint is not None
    assert row.fingerprint.startswith(f"rt-{policy.ref.partition('@')[2]}-")
    assert row.url is not None
    [(name, child)] = driven.engines.children().items()
    assert child.pid == row.pid
    assert (home.logs / f"{name}.log").exists()
    assert len(driven.rows()) == 1


def test_a_killed_engine_backs_off_and_comes_back_with_another_fingerprint(driven: Driven) -> None:
    first = driven.until(is_up)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    fallen = driven.until(lambda row: row.state == "backoff")
    assert (fallen.restarts, fallen.pid) == (1, None)
    assert fallen.last_error == "ended by signal 9 (Killed)"
    again = driven.until(is_up)
    assert again.fingerprint != first.fingerprint
    assert (again.restarts, again.last_error) == (1, None)


def test_an_engine_that_hangs_is_ended_and_started_again(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOOK_WHILE_UP_S", 0.0)
    monkeypatch.setattr(engine, "MISSES_UNTIL_HUNG", 2)
    driven.engines._health.timeout = 0.2
    row = driven.until(is_up)
    assert row.pid is not None
    os.kill(row.pid, signal.SIGSTOP)
    fallen = driven.until(lambda row: row.state == "backoff")
    assert fallen.last_error == f"no answer from {row.url}/health, 2 times in a row"
    assert driven.until(is_up).pid != row.pid


def test_an_engine_is_stopped_and_started_as_its_row_asks(driven: Driven) -> None:
    row = driven.until(is_up)
    driven.change(desired="down")
    stopped = driven.until(lambda row: row.state == "stopped")
    assert (stopped.pid, stopped.url, stopped.fingerprint) == (None, None, None)
    assert driven.engines.children() == {}
    driven.change(desired="up")
    assert driven.until(is_up).fingerprint != row.fingerprint


def test_whoever_inserts_a_row_gets_an_engine(
    driven: Driven, connections: Connections, home: Home, tmp_path: Path
) -> None:
    driven.until(is_up)
    candidate = register(connections, home, tmp_path, "tiny", seed=1)
    with session_scope(connections) as session:
        session.add(EngineRow(id=new_id(), policy=candidate.ref, managed=True, desired="up", state="waiting"))
    row = driven.until(is_up, index=1)
    assert row.policy == candidate.ref
    assert len(driven.engines.children()) == 2


def test_an_engine_of_someone_else_is_left_alone(driven: Driven, policy: StubPolicy) -> None:
    with session_scope(driven.connections) as session:
        session.add(
            EngineRow(
                id=new_id(),
                policy=policy.ref,
                managed=False,
                desired="up",
                state="up",
                url="http://elsewhere",
            )
        )
    for _ in range(5):
        driven.engines.tick(lambda: False)
    assert driven.engines.children() == {}
    assert [(row.managed, row.url) for row in driven.rows()] == [(False, "http://elsewhere")]


def test_a_damaged_folder_fails_with_its_name_until_it_is_mended(
    driven: Driven, policy: StubPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff.Backoff, "longest", 0.1, raising=False)
    weights = policy.artifact / "model.safetensors"
    whole = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(whole[:-100])
    row = driven.until(lambda row: row.state == "failed")
    assert "model.safetensors is damaged" in str(row.last_error)
    assert driven.engines.refusal((policy.ref,)) == row.last_error
    assert driven.engines.refusal(("other@0",)) is None
    assert row.restarts == 0


def test_one_that_crashes_again_and_again_is_called_failed(
    home: Home, connections: Connections, policy: StubPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    del policy
    monkeypatch.setattr("ratchet.supervisor.engines.RECONCILE_EVERY_S", 0.0)
    monkeypatch.setattr(backoff.Backoff, "next", _at_once)
    settings = SupervisorSettings(engine_command="{python} -c 'raise OSError(\"no such device\")'")
    crashing = Driven(Engines(home, settings, connections, Show(to_stderr=True), lambda: None), connections)
    row = crashing.until(lambda row: row.state == "failed")
    assert row.restarts == engine.CRASHES_UNTIL_FAILED + 1
    assert row.last_error == "ended with code 1: OSError: no such device"
    crashing.engines.stop(lambda: True)
    assert [row.state for row in crashing.rows()] == ["stopped"]


def _at_once(self: backoff.Backoff) -> float:
    self.failures += 1
    return 0.2


def test_engines_go_on_while_the_database_is_away(
    driven: Driven,
    database: Database,
    cluster: EmbeddedPostgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = driven.until(is_up)
    name = make_url(database.owner_url).database
    with psycopg.connect(libpq_url(cluster.owner_url), autocommit=True) as maintenance:
        maintenance.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        maintenance.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        for _ in range(3):
            driven.engines.tick(lambda: False)
        assert capsys.readouterr().out.count("the database is away") == 1
        assert [child.pid for child in driven.engines.children().values()] == [before.pid]
        maintenance.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    after = driven.until(is_up)
    assert (after.pid, after.fingerprint, after.restarts) == (before.pid, before.fingerprint, 0)
    assert "the database is back" in capsys.readouterr().out


def test_want_reuses_a_row_and_forgets_what_a_killed_stack_said(driven: Driven, policy: StubPolicy) -> None:
    driven.engines.want((policy.ref, policy.ref))
    [row] = driven.rows()
    assert (row.desired, row.state) == ("up", "waiting")
    driven.change(state="up", pid=1, url="http://gone", fingerprint="rt-old", desired="down")
    driven.engines.want((policy.ref,))
    [again] = driven.rows()
    assert (again.id, again.desired, again.state) == (row.id, "up", "waiting")
    assert (again.pid, again.url, again.fingerprint) == (None, None, None)


def test_the_first_stack_of_a_database_is_its_only_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sole, "HANDOVER_S", 0.1)
    monkeypatch.setattr(sole, "LOOK_EVERY_S", 0.0)
    url = database.url(Role.OPERATOR)
    first = Sole(url)
    with pytest.raises(AlreadyRunning, match="another `ratchet up` supervises this database"):
        Sole(url)
    with psycopg.connect(libpq_url(database.owner_url), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'ratchet-up-lock' AND datname = current_database()"
        )
    first.tick()
    with pytest.raises(AlreadyRunning):
        Sole(url)
    first.close()
    Sole(url).close()


def test_without_a_wish_the_plans_decide(connections: Connections, home: Home, policy: StubPolicy) -> None:
    served = settle(connections, home, None, Show(to_stderr=True))
    assert served.models == {"tiny": policy.ref}
    assert served.policies == (policy.ref,)


def test_a_registered_name_without_a_plan_gets_one(
    connections: Connections, home: Home, policy: StubPolicy, tmp_path: Path
) -> None:
    register(connections, home, tmp_path, "other", seed=2)
    newest = register(connections, home, tmp_path, "other", seed=3)
    served = settle(connections, home, "other", Show(to_stderr=True))
    assert served.models == {"other": newest.ref, "tiny": policy.ref}
    assert served.policies == (newest.ref,)
    with session_scope(connections) as session:
        plan = current_plans(session)["other"]
    assert (plan.production, plan.stage) == (newest.ref, "production")
    settle(connections, home, "other", Show(to_stderr=True))
    with session_scope(connections) as session:
        assert current_plans(session)["other"].version == plan.version


def test_a_newer_version_waits_for_a_release(
    connections: Connections,
    home: Home,
    policy: StubPolicy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    newer = register(connections, home, tmp_path, "tiny", seed=1)
    served = settle(connections, home, "tiny", Show(to_stderr=False))
    assert served.models == {"tiny": policy.ref}
    assert f"{newer.ref} is registered, but {policy.ref} stays in production" in capsys.readouterr().out


def test_what_is_neither_policy_nor_folder_is_refused(
    connections: Connections, home: Home, policy: StubPolicy
) -> None:
    del policy
    with pytest.raises(NotFound, match="no policy and no folder is called 'nobody'"):
        settle(connections, home, "nobody", Show(to_stderr=True))


def test_an_artefact_that_changed_since_it_was_stored_is_not_served(
    connections: Connections, home: Home, policy: StubPolicy
) -> None:
    weights = policy.artifact / "model.safetensors"
    weights.chmod(0o644)
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(EnvironmentFault, match="is not what was stored"):
        settle(connections, home, None, Show(to_stderr=True))
