"""`ratchet up` as a process: its whole life with real parts, but for stubs in vLLM's place."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ratchet.db.engine import libpq_url
from ratchet.db.roles import SERVICE_ROLES, Role
from ratchet.home import Home
from ratchet.secrets_store import role_url
from ratchet.supervisor.database import embedded_at
from ratchet.supervisor.lock import lock_file
from ratchet.supervisor.ports import free_port
from ratchet.supervisor.state import state_file
from tests.support.stub_stack import StubPolicy, Up, prepare
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
NAMES = {
    "gateway", "feedback-web", "feedback-worker", "trainer-web", "trainer-worker", "evaluator-web",
    "evaluator-worker",
}  # fmt: skip


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder that the embedded PostgreSQL's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-test-up-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def home(scratch: Path) -> Home:
    return Home(scratch / "home")


@pytest.fixture(scope="module")
def policy(home: Home, scratch: Path) -> StubPolicy:
    return prepare(home, scratch)


@pytest.fixture(scope="module")
def up(home: Home, policy: StubPolicy) -> Iterator[Up]:
    """A stack that is ready."""
    del policy
    started = Up.start(home, "--port", str(free_port()), RATCHET_OPERATOR_DATABASE_URL="of the shell")
    started.until("a token can be generated")
    yield started
    started.process.send_signal(signal.SIGTERM)
    started.end()


@pytest.fixture(scope="module")
def document(up: Up) -> dict[str, Any]:
    return up.document()


def ended(pid: int) -> bool:
    """Whether a process ends within half a minute; one that nobody reaped yet has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 30)[0])
    finally:
        os.close(handle)


def get(url: str) -> tuple[int, str]:
    """Status and body; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0, ""


def wait_for(url: str, status: int) -> str:
    """Asks until the status comes; the test's timeout ends a wait in vain."""
    while (answer := get(url))[0] != status:
        time.sleep(0.1)
    return answer[1]


def ratchet(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **variables},
    )  # fmt: skip


def assert_nothing_is_left(pids: dict[str, int], home: Home) -> None:
    assert {name for name, pid in pids.items() if not ended(pid)} == set()
    assert not lock_file(home).exists()
    assert not state_file(home).exists()


def test_when_it_is_ready_it_says_where_everything_is(
    up: Up, document: dict[str, Any], policy: StubPolicy
) -> None:
    assert document["models"] == {"tiny": policy.ref}
    assert document["pid"] == up.process.pid
    assert document["data_dir"] == str(up.home.root)
    assert get(f"{document['url']}/readyz")[0] == 200
    assert set(document["addresses"]) == {"gateway", "feedback", "trainer", "evaluator", "releases"}
    assert set(up.pids()) >= NAMES | {"postgres"}
    assert len([name for name in up.pids() if name.startswith("engine-")]) == 1


@pytest.mark.parametrize("service", ["feedback", "trainer", "evaluator", "releases"])
def test_every_subsystem_has_a_page_of_its_own(document: dict[str, Any], service: str) -> None:
    address = document["addresses"][service]
    assert json.loads(wait_for(f"{address}/healthz", 200))["status"] == "ok"
    assert wait_for(f"{address}/metrics", 200) is not None


def test_every_process_knows_its_own_database_address_and_no_other(up: Up, document: dict[str, Any]) -> None:
    """Workers overwrite their environment in /proc with their title, but for what others could have left."""
    del document
    passwords = {
        role: psycopg.conninfo.conninfo_to_dict(role_url(up.home, role))["password"] for role in SERVICE_ROLES
    }
    for name, pid in up.pids().items():
        if name == "postgres":
            continue
        environment = Path(f"/proc/{pid}/environ").read_text()
        known = {role.service for role, password in passwords.items() if str(password) in environment}
        own = "operator" if name == "releases" else name.partition("-")[0]
        assert known - {own} == set(), name
        assert own in known or own == "engine" or name.endswith("-worker"), name
        assert "of the shell" not in environment


def test_workers_take_tasks_from_their_queues_on_the_same_postgres(up: Up, document: dict[str, Any]) -> None:
    del document
    wanted = {"feedback-worker", "trainer-worker", "evaluator-worker"}
    with psycopg.connect(libpq_url(role_url(up.home, Role.OPERATOR)), autocommit=True) as connection:
        beating: set[str] = set()
        while not beating >= wanted:
            beating = {str(row[0]) for row in connection.execute("SELECT process FROM operations.heartbeat")}
            time.sleep(0.2)
    with psycopg.connect(embedded_at(up.home).owner_url) as connection:
        queues = connection.execute("SELECT name FROM broker.kombu_queue").fetchall()
        elsewhere = connection.execute(
            "SELECT schemaname FROM pg_tables WHERE tablename LIKE 'kombu%' AND schemaname <> 'broker'"
        ).fetchall()
    assert {name for (name,) in queues} >= {"feedback", "trainer", "evaluator"}
    assert elsewhere == []


def test_a_second_one_on_the_same_folder_names_the_first(up: Up, document: dict[str, Any]) -> None:
    del document
    done = ratchet("up", "--data-dir", str(up.home.root), "--port", str(free_port()))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"process {up.process.pid}" in done.stderr
    assert get(f"{document_url(up)}/readyz")[0] == 200


def document_url(up: Up) -> str:
    return str(json.loads(state_file(up.home).read_text())["addresses"]["gateway"])


def test_a_killed_gateway_is_started_again(up: Up, document: dict[str, Any]) -> None:
    before = up.pids()["gateway"]
    os.kill(before, signal.SIGKILL)
    up.until("gateway", "ended by signal 9")
    wait_for(f"{document['url']}/readyz", 200)
    assert up.pids()["gateway"] != before


def test_a_killed_engine_is_told_by_readyz_and_comes_back(up: Up, document: dict[str, Any]) -> None:
    [(name, before)] = [(name, pid) for name, pid in up.pids().items() if name.startswith("engine-")]
    os.kill(before, signal.SIGKILL)
    assert "engine" in wait_for(f"{document['url']}/readyz", 503)
    up.until("engine", "is up after")
    wait_for(f"{document['url']}/readyz", 200)
    assert up.pids()[name] != before


def test_a_killed_postgres_is_started_again(up: Up, document: dict[str, Any]) -> None:
    before = up.pids()["postgres"]
    os.kill(before, signal.SIGKILL)
    up.until("PostgreSQL is back")
    wait_for(f"{document['url']}/readyz", 200)
    assert up.pids()["postgres"] != before


def test_sigterm_ends_everything_in_order(up: Up, document: dict[str, Any]) -> None:
    del document
    pids = up.pids()
    up.process.send_signal(signal.SIGTERM)
    code, rest = up.end()
    assert code == 0
    assert "stopped" in rest.splitlines()[-1]
    assert_nothing_is_left(pids, up.home)


def test_killed_itself_it_leaves_nothing_and_the_next_one_starts(home: Home, policy: StubPolicy) -> None:
    del policy
    first = Up.start(home, "--port", str(free_port()))
    first.until("is up after")
    pids = first.pids()
    assert set(pids) >= {"postgres"}
    first.process.kill()
    first.end()
    second = Up.start(home, "--port", str(free_port()))
    second.until("a token can be generated")
    assert {name for name, pid in pids.items() if not ended(pid)} == set()
    pids = second.pids()
    for _ in range(2):
        second.process.send_signal(signal.SIGINT)
    code, _ = second.end()
    assert code == 0
    assert_nothing_is_left(pids, home)


def test_a_signal_while_it_starts_ends_what_was_started(home: Home, policy: StubPolicy) -> None:
    del policy
    started = Up.start(home, "--port", str(free_port()))
    started.until("data folder")
    started.process.send_signal(signal.SIGINT)
    code, _ = started.end()
    assert code == 130
    assert not embedded_at(home).is_running()
    assert not lock_file(home).exists()


def refused(*arguments: str, **variables: str) -> str:
    """The one line of a start that is refused."""
    done = ratchet("up", *arguments, **variables)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("ratchet: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_taken_port_is_refused_before_anything_is_made(scratch: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE, text=True, cwd=scratch,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        port = server.stdout.readline().split("port ")[1].split(" ")[0]
        line = refused("--data-dir", str(scratch / "a"), "--port", port)
    finally:
        server.kill()
        server.communicate()
    assert f"port {port} on 127.0.0.1 is taken by process {server.pid}" in line
    assert not (scratch / "a" / "postgres").exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/ratchet", "127.0.0.1:1/ratchet cannot be used: connection"),
        ("mysql://me@127.0.0.1/ratchet", "must begin with postgresql://"),
        ("nonsense", "is no address"),
    ],
)
def test_a_dead_or_wrong_database_is_one_line(scratch: Path, url: str, reason: str) -> None:
    line = refused("--data-dir", str(scratch / "b"), "--port", str(free_port()), RATCHET_DATABASE_URL=url)
    assert reason in line
    assert "hunter2" not in line


def test_a_role_that_may_not_set_up_a_database_is_told_what_it_lacks(scratch: Path, up_owner: str) -> None:
    line = refused(
        "--data-dir", str(scratch / "c"), "--port", str(free_port()), RATCHET_DATABASE_URL=up_owner
    )
    assert "needs CREATEROLE" in line


@pytest.fixture
def up_owner(home: Home, policy: StubPolicy) -> Iterator[str]:
    """The address of a role without rights, while its server runs."""
    del policy
    server = embedded_at(home)
    server.start()
    yield role_url(home, Role.GATEWAY)
    server.stop()


def test_a_corrupt_model_folder_is_one_line_and_leaves_nothing(scratch: Path) -> None:
    folder = make_tiny_model(scratch / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    home = Home(scratch / "d")
    line = refused("--data-dir", str(home.root), "--port", str(free_port()), "--model", str(folder))
    assert "model.safetensors" in line
    assert not embedded_at(home).is_running()
    assert not lock_file(home).exists()


def test_a_model_that_is_neither_policy_nor_folder_is_one_line(home: Home, policy: StubPolicy) -> None:
    del policy
    line = refused("--data-dir", str(home.root), "--port", str(free_port()), "--model", "nobody")
    assert "no policy and no folder is called 'nobody'" in line


def test_an_artefact_that_is_damaged_is_one_line(home: Home, policy: StubPolicy) -> None:
    weights = policy.artifact / "model.safetensors"
    whole = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(whole[:-1000])
    assert "is not what was stored" in refused("--data-dir", str(home.root), "--port", str(free_port()))
    weights.write_bytes(whole)


def test_doctor_reports_this_machine_as_one_json_document(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", "doctor", "--json", "--data-dir", str(tmp_path / "new")],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    document = json.loads(done.stdout)
    found = {check["name"]: check["status"] for check in document["checks"]}
    assert set(found) == {
        "python", "disk", "memory", "cpu", "gpu", "compiler", "ulimits", "shm", "ports", "postgres",
        "preload", "engine", "border", "rewards",
    }  # fmt: skip
    assert document["ok"] == (done.returncode == 0) == ("fail" not in found.values())
    assert done.returncode in (0, 2)
    assert found["python"] == found["postgres"] == "ok"
    assert not (tmp_path / "new").exists()
