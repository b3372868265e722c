"""Fixtures that every layer of tests shares: a real PostgreSQL, made by the real migrations."""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, make_url

from migrations.run import migrate, provision_logins
from ratchet.db.engine import open_engine
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what the fixtures imply, and skips data tests where the data is absent."""
    for item in items:
        if {"database", "module_database"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("postgres")
        if item.get_closest_marker("data") and not SHARED_DATA.exists():
            item.add_marker(pytest.mark.skip(reason="the public data folder ../shared/data is absent"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data folder."""
    return SHARED_DATA


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """One real PostgreSQL for the whole run.

    Not below pytest's own folder: each run closes that to other users, and a server that root started runs as
    another user.
    """
    folder = Path(tempfile.mkdtemp(prefix="ratchet-test-cluster-"))
    server = EmbeddedPostgres(
        folder / "postgres",
        folder / "owner.password",
        settings=("fsync=off", "full_page_writes=off", "synchronous_commit=off", "shared_buffers=64MB"),
    )
    server.start()
    yield server
    server.stop(immediate=True)
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Database:
    """A fresh, migrated database and the address of each role in it."""

    owner_url: str
    urls: dict[Role, str]

    def url(self, role: Role) -> str:
        """Address of one role; the owner too."""
        return self.owner_url if role is Role.OWNER else self.urls[role]


@pytest.fixture(scope="session")
def template(cluster: EmbeddedPostgres) -> tuple[str, dict[Role, str]]:
    """A database made by the real migrations, which each test's own is copied from."""
    migrate(cluster.owner_url)
    return cluster.owner_url, provision_logins(cluster.owner_url, {})


@contextmanager
def copied_database(cluster: EmbeddedPostgres, template: tuple[str, dict[Role, str]]) -> Generator[Database]:
    """A copy of the migrated database, dropped in the end."""
    owner_url, urls = template
    name = f"test_{uuid4().hex[:12]}"

    def renamed(url: str) -> str:
        return make_url(url).set(database=name).render_as_string(hide_password=False)

    maintenance = make_url(owner_url).set(database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(make_url(owner_url).database or "")
            )
        )
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
        connection.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(
                sql.Identifier(name),
                sql.SQL(", ").join(sql.Identifier(role.value) for role in urls),
            )
        )
        connection.execute(
            sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(
                sql.Identifier(name), sql.Identifier(Role.GATEWAY.value)
            )
        )
    yield Database(renamed(owner_url), {role: renamed(url) for role, url in urls.items()})
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database(cluster: EmbeddedPostgres, template: tuple[str, dict[Role, str]]) -> Iterator[Database]:
    """A database of the test's own, dropped at its end."""
    with copied_database(cluster, template) as copied:
        yield copied


@pytest.fixture(scope="module")
def module_database(cluster: EmbeddedPostgres, template: tuple[str, dict[Role, str]]) -> Iterator[Database]:
    """A database that the tests of one module share, for processes that are slow to start."""
    with copied_database(cluster, template) as copied:
        yield copied


@pytest.fixture
def engine_of(database: Database) -> Iterator[Callable[[Role], Engine]]:
    """Opens a SQLAlchemy engine as a role; disposed at the end of the test."""
    opened: list[Engine] = []

    def open_as(role: Role) -> Engine:
        opened.append(open_engine(database.url(role), application="test", pool_size=2))
        return opened[-1]

    yield open_as
    for engine in opened:
        engine.dispose()


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
