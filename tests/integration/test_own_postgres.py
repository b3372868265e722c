"""A PostgreSQL of the operator's own: roles by the shipped SQL, tables by `python -m migrations`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres

ROLES_SQL = Path(__file__).resolve().parents[2] / "deploy" / "postgres" / "roles.sql"
PASSWORDS = {role: f"{role.service}-secret" for role in Role}

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def admin_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database whose administrator is no superuser, on a server that knows no role of ours."""
    folder = tmp_path_factory.mktemp("own")
    server = EmbeddedPostgres(folder / "postgres", folder / "password", settings=("fsync=off",))
    server.start()
    with psycopg.connect(server.owner_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE admin LOGIN CREATEROLE CREATEDB PASSWORD 'admin'")
        connection.execute("CREATE DATABASE own OWNER admin")
        connection.execute("CREATE ROLE super LOGIN SUPERUSER PASSWORD 'super'")
    base = make_url(server.owner_url).set(database="own")
    with psycopg.connect(
        address(base.set(username="super", password="super")), autocommit=True
    ) as connection:
        connection.execute(f"ALTER ROLE {Role.OWNER} RENAME TO bootstrap")
    yield address(base.set(username="admin", password="admin"))
    server.stop(immediate=True)


def address(url: object) -> str:
    return url.render_as_string(hide_password=False)  # type: ignore[attr-defined]


def set_up_roles(admin_url: str, passwords: dict[Role, str]) -> None:
    options = " ".join(f"-c ratchet.{role.service}_password={text}" for role, text in passwords.items())
    with psycopg.connect(admin_url, options=options, autocommit=True) as connection:
        connection.execute(ROLES_SQL.read_text())


def url_of(admin_url: str, role: Role, password: str) -> str:
    return address(make_url(admin_url).set(username=role.value, password=password))


def test_an_administrator_sets_up_roles_and_the_owner_migrates_alone(admin_url: str) -> None:
    set_up_roles(admin_url, PASSWORDS)
    owner = url_of(admin_url, Role.OWNER, PASSWORDS[Role.OWNER])
    done = subprocess.run(
        [sys.executable, "-m", "migrations"],
        env={**os.environ, "RATCHET_DATABASE_URL": owner}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for role in Role:
        with psycopg.connect(url_of(admin_url, role, PASSWORDS[role])) as connection:
            assert connection.execute("SELECT current_user").fetchone() == (role.value,)
    with (
        psycopg.connect(url_of(admin_url, Role.EVALUATOR, PASSWORDS[Role.EVALUATOR])) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT FROM serving.response")


def test_run_again_it_changes_the_passwords(admin_url: str) -> None:
    set_up_roles(admin_url, {**PASSWORDS, Role.REPORT: "changed"})
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url_of(admin_url, Role.REPORT, PASSWORDS[Role.REPORT]))
    with psycopg.connect(url_of(admin_url, Role.REPORT, "changed")) as connection:
        stored = sql.SQL("SELECT rolsuper, rolinherit FROM pg_roles WHERE rolname = {}").format(
            Role.REPORT.value
        )
        assert connection.execute(stored).fetchone() == (False, False)


def test_a_forgotten_password_is_named(admin_url: str) -> None:
    some = {role: text for role, text in PASSWORDS.items() if role is not Role.TRAINER}
    with pytest.raises(psycopg.errors.UndefinedObject, match=r"ratchet\.trainer_password"):
        set_up_roles(admin_url, some)


def test_migrations_without_an_address_say_what_is_missing() -> None:
    clean = {name: value for name, value in os.environ.items() if name != "RATCHET_DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "migrations"], env=clean, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "migrations: RATCHET_DATABASE_URL: set it to the address of the role ratchet_owner\n",
    )
