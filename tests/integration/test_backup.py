"""A stack saved, lost and brought back; and artefacts that nobody names."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from ratchet.artifacts import Kind, address, store_of
from ratchet.canonical import digest_of_file
from ratchet.commands.backup import save
from ratchet.commands.gc import collect
from ratchet.commands.restore import bring_back
from ratchet.db.engine import libpq_url
from ratchet.db.roles import SERVICE_ROLES, Role
from ratchet.embedded import EmbeddedPostgres
from ratchet.errors import EnvironmentFault, UsageError
from ratchet.home import Home
from ratchet.ids import new_id
from ratchet.secrets_store import role_url
from ratchet.supervisor.database import embedded_at
from tests.support.stub_stack import StubPolicy, prepare

pytestmark = pytest.mark.timeout(240)

RESPONSE = (
    "INSERT INTO serving.response (id, created_at, kind, status, http_status, pinned, decode_overridden,"
    " stamp, parameters_asked, parameters_used, outputs, stream, gateway, labels, verdicts, sanitized,"
    " output) VALUES (%s, now(), 'chat', 'ok', 200, false, '[]',"
    " 'verified', '{}', '{}', '[]', false, 'g', '{}', '{}', false, %s)"
)
COUNTED = ("registry.policy", "registry.decode_config", "serving.traffic_plan", "serving.response")


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder that the embedded PostgreSQL's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-test-backup-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def home(scratch: Path) -> Iterator[Home]:
    """A stack that runs as far as its database does."""
    made = Home(scratch / "home")
    prepare(made, scratch)
    server = embedded_at(made)
    server.start()
    with psycopg.connect(server.owner_url) as connection:
        for number in range(50):
            connection.execute(RESPONSE, (new_id(), f"answer {number}"))
        connection.execute(
            "INSERT INTO broker.kombu_queue (name) VALUES ('trainer');"
            "INSERT INTO broker.kombu_message (visible, payload, version, queue_id)"
            " SELECT true, '{}', 1, id FROM broker.kombu_queue"
        )
    snapshot = made.snapshots / "0123"
    snapshot.mkdir()
    (snapshot / "manifest.json").write_text("{}")
    yield made
    server.stop(immediate=True)


@pytest.fixture(scope="module")
def policy(home: Home) -> StubPolicy:
    with psycopg.connect(embedded_at(home).owner_url) as connection:
        row = connection.execute("SELECT ref, artifact FROM registry.policy").fetchone()
    assert row is not None
    return StubPolicy(row[0], home.artifacts / "policies" / row[1])


@pytest.fixture(scope="module")
def archive(home: Home, scratch: Path) -> Path:
    target = scratch / "backup.tar"
    save(home, target)
    return target


@pytest.fixture
def empty(scratch: Path) -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="empty-"))
    folder.chmod(0o755)
    yield Home(folder)
    shutil.rmtree(folder)


def counts(owner_url: str) -> dict[str, int]:
    with psycopg.connect(libpq_url(owner_url)) as connection:
        found = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone() for name in COUNTED}  # noqa: S608
    return {name: row[0] for name, row in found.items() if row is not None}


def test_what_was_saved_comes_back_with_its_rights(
    home: Home, archive: Path, empty: Home, policy: StubPolicy
) -> None:
    document = bring_back(archive, empty)
    assert document["data_dir"] == str(empty.root)
    server = embedded_at(empty)
    assert not server.is_running()
    server.start()
    try:
        assert counts(server.owner_url) == counts(embedded_at(home).owner_url)
        assert counts(server.owner_url)["serving.response"] == 50
        for role in SERVICE_ROLES:
            with psycopg.connect(libpq_url(role_url(empty, role))) as connection:
                assert connection.execute("SELECT current_user").fetchone() == (role.value,)
        with psycopg.connect(libpq_url(role_url(empty, Role.OPERATOR))) as connection:
            outputs = {row[0] for row in connection.execute("SELECT output FROM serving.response")}
        assert outputs == {f"answer {number}" for number in range(50)}
        with psycopg.connect(server.owner_url) as connection:
            assert connection.execute("SELECT count(*) FROM broker.kombu_message").fetchone() == (0,)
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                connection.execute("DELETE FROM registry.policy")
            connection.rollback()
            connection.execute(RESPONSE, (new_id(), "a new one"))
        for role, statement in (
            (Role.GATEWAY, "SELECT output FROM serving.response"),
            (Role.TRAINER, "SELECT * FROM serving.api_key"),
            (Role.EVALUATOR, "CREATE TABLE public.mine (a int)"),
        ):
            with (
                psycopg.connect(libpq_url(role_url(empty, role))) as connection,
                pytest.raises(psycopg.errors.InsufficientPrivilege),
            ):
                connection.execute(statement)
        with psycopg.connect(server.owner_url) as connection:
            public = connection.execute(
                "SELECT has_database_privilege('public', current_database(), 'CONNECT')"
            ).fetchone()
        assert public == (False,)
    finally:
        server.stop()
    assert store_of(empty, Kind.POLICY).open(policy.artifact.name)
    assert (empty.snapshots / "0123" / "manifest.json").read_text() == "{}"
    assert role_url(empty, Role.GATEWAY) != role_url(home, Role.GATEWAY)


def test_a_resting_stack_is_saved_and_rests_again(empty: Home, archive: Path, scratch: Path) -> None:
    bring_back(archive, empty)
    again = save(empty, scratch / "again.tar")
    assert not embedded_at(empty).is_running()
    with tarfile.open(archive) as first, tarfile.open(scratch / "again.tar") as second:
        names = [
            sorted(member.name for member in tar if member.name != "database.dump") for tar in (first, second)
        ]
    assert names[0] == names[1]
    assert again["bytes"] == (scratch / "again.tar").stat().st_size


def test_the_archive_holds_no_password_and_no_key(home: Home, archive: Path) -> None:
    content = archive.read_bytes()
    for secret in home.secrets.iterdir():
        text = secret.read_text().strip()
        password = psycopg.conninfo.conninfo_to_dict(libpq_url(text))["password"] if "://" in text else text
        assert str(password).encode() not in content


def rewritten(archive: Path, target: Path, change: Any) -> Path:
    """The archive with its members changed: `change(name, data)` gives the data, or None to leave it out."""
    with tarfile.open(archive) as old, tarfile.open(target, "w") as new:
        for member in old:
            opened = old.extractfile(member)
            assert opened is not None
            data = change(member.name, opened.read())
            if data is not None:
                member.size = len(data)
                new.addfile(member, BytesIO(data))
    return target


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda name, data: data[:-1] + bytes([data[-1] ^ 1]) if name.endswith(".safetensors") else data,
            "damaged",
        ),
        (lambda name, data: None if name == "manifest.json" else data, "its manifest is missing"),
        (lambda name, data: None if name.endswith("config.json") else data, "damaged"),
        (
            lambda name, data: b'{"format": 99, "files": {}}' if name == "manifest.json" else data,
            "of format 1",
        ),
        (lambda name, data: b"not a dump" if name == "database.dump" else data, r"database\.dump"),
    ],
)
def test_a_damaged_archive_is_refused_and_the_folder_stays_empty(
    archive: Path, empty: Home, tmp_path: Path, change: Any, reason: str
) -> None:
    broken = rewritten(archive, tmp_path / "broken.tar", change)
    with pytest.raises(UsageError, match=reason):
        bring_back(broken, empty)
    assert list(empty.root.iterdir()) == []


def test_a_database_that_cannot_be_loaded_leaves_the_folder_empty(
    archive: Path, empty: Home, tmp_path: Path
) -> None:
    dumped = b"not a dump"

    def change(name: str, data: bytes) -> bytes:
        if name == "database.dump":
            return dumped
        if name == "manifest.json":
            manifest = json.loads(data)
            manifest["files"]["database.dump"] = {
                "sha256": hashlib.sha256(dumped).hexdigest(), "size": len(dumped)
            }  # fmt: skip
            return json.dumps(manifest).encode()
        return data

    broken = rewritten(archive, tmp_path / "broken.tar", change)
    with pytest.raises(EnvironmentFault, match=r"pg_restore failed: .*not appear to be a valid archive"):
        bring_back(broken, empty)
    assert list(empty.root.iterdir()) == []
    assert not embedded_at(empty).is_running()


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "artifacts/../../outside", "secrets/engine.key"]
)
def test_nothing_is_written_outside_the_folders_of_a_backup(empty: Home, tmp_path: Path, name: str) -> None:
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, BytesIO(b"x"))
    with pytest.raises(UsageError, match="which no backup of ours holds"):
        bring_back(evil, empty)
    assert list(empty.root.iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_a_half_written_archive_is_refused(archive: Path, empty: Home, tmp_path: Path) -> None:
    half = tmp_path / "half.tar"
    half.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(UsageError, match="is no whole backup"):
        bring_back(half, empty)
    with pytest.raises(UsageError, match="there is no"):
        bring_back(tmp_path / "none.tar", empty)


def test_a_folder_in_use_and_a_file_that_exists_are_refused(home: Home, archive: Path) -> None:
    with pytest.raises(UsageError, match="is not empty"):
        bring_back(archive, home)
    with pytest.raises(UsageError, match="exists already"):
        save(home, archive)
    with pytest.raises(UsageError, match="there is no folder"):
        save(home, archive.parent / "none" / "backup.tar")


def test_there_is_nothing_to_save_where_no_stack_was(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="holds no cluster of ours"):
        save(Home(tmp_path / "new"), tmp_path / "backup.tar")
    assert list(tmp_path.iterdir()) == []


def put(home: Home, content: str, age: timedelta) -> str:
    """Stores an artefact that no row names; returns its digest."""
    source = home.root / "source"
    source.mkdir(exist_ok=True)
    (source / "file").write_text(content)
    files = {"file": digest_of_file(source / "file")}
    store = store_of(home, Kind.POLICY)
    store.put(source, files)
    moment = (datetime.now(UTC) - age).timestamp()
    os.utime(store.root / address(files), (moment, moment))
    return address(files)


def test_gc_removes_what_is_old_and_unnamed(home: Home, policy: StubPolicy) -> None:
    old = put(home, "old", timedelta(hours=30))
    young = put(home, "young", timedelta(hours=1))
    moment = (datetime.now(UTC) - timedelta(days=400)).timestamp()
    os.utime(policy.artifact, (moment, moment))
    store = store_of(home, Kind.POLICY)

    planned = collect(home, timedelta(hours=24), dry_run=True)
    assert [found["digest"] for found in planned["removed"]] == [old]
    assert (planned["bytes"], planned["kept_in_use"], planned["kept_young"]) == (3, 1, 1)
    assert {found.digest for found in store.list()} == {old, young, policy.artifact.name}

    done = collect(home, timedelta(hours=24), dry_run=False)
    assert [found["digest"] for found in done["removed"]] == [old]
    assert {found.digest for found in store.list()} == {young, policy.artifact.name}
    assert collect(home, timedelta(hours=24), dry_run=False)["removed"] == []
    assert [found["digest"] for found in collect(home, timedelta(0), dry_run=False)["removed"]] == [young]


def test_gc_as_a_command_prints_one_document(home: Home) -> None:
    digest = put(home, "forgotten", timedelta(days=3))
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", "gc", "--dry-run", "--json", "--data-dir", str(home.root)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert [found["digest"] for found in document["removed"]] == [digest]
    assert document["dry_run"] is True


def test_a_database_of_ones_own_takes_a_backup_beside_other_schemas(
    cluster: EmbeddedPostgres, archive: Path, empty: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "test_restored"
    url = make_url(cluster.owner_url).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(cluster.owner_url, autocommit=True) as maintenance:
        kept = maintenance.execute(
            "SELECT rolname, rolpassword FROM pg_authid WHERE rolpassword <> ''"
        ).fetchall()
        maintenance.execute(f"CREATE DATABASE {name}")
    try:
        with psycopg.connect(libpq_url(url)) as connection:
            connection.execute("CREATE SCHEMA someone_elses; CREATE TABLE someone_elses.thing (a int)")
        monkeypatch.setenv("RATCHET_DATABASE_URL", url)
        bring_back(archive, empty)
        assert counts(url)["serving.response"] == 50
        assert not empty.postgres.exists()
        with psycopg.connect(libpq_url(role_url(empty, Role.FEEDBACK))) as connection:
            assert connection.execute("SELECT count(*) FROM serving.response").fetchone() == (50,)
        with psycopg.connect(libpq_url(url)) as connection:
            assert connection.execute("SELECT to_regclass('someone_elses.thing')").fetchone() != (None,)
        shutil.rmtree(empty.root)
        empty.root.mkdir()
        with pytest.raises(UsageError, match="holds a stack already"):
            bring_back(archive, empty)
    finally:
        with psycopg.connect(cluster.owner_url, autocommit=True) as maintenance:
            maintenance.execute(f"DROP DATABASE {name} WITH (FORCE)")
            for role, password in kept:
                maintenance.execute(
                    sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
                )
