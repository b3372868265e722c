"""The stack's PostgreSQL: the embedded one, which we run, or the operator's own, which we only use."""

import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from ratchet.db.engine import CONNECT_TIMEOUT_S, libpq_url, sqlalchemy_url
from ratchet.embedded import EmbeddedPostgres
from ratchet.errors import ConfigError, DatabaseUnavailable, EnvironmentFault
from ratchet.home import Home
from ratchet.supervisor.backoff import Backoff
from ratchet.supervisor.lock import hold
from ratchet.supervisor.settings import SupervisorSettings
from ratchet.supervisor.show import Show

OLDEST_MAJOR = 15
LOOK_EVERY_S = 2.0


def embedded_at(home: Home) -> EmbeddedPostgres:
    """The embedded PostgreSQL of a data folder."""
    return EmbeddedPostgres(home.postgres, home.secrets / "owner.password")


@contextmanager
def reachable(home: Home, settings: SupervisorSettings) -> Generator[str]:
    """The owner's address of a stack that runs or rests; an embedded server that rests is started meanwhile.

    Raises:
        EnvironmentFault: There is no stack on this data folder, or its server does not start.
        AlreadyRunning: A stack is just being started or stopped here.
    """
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    server = embedded_at(home)
    url = server.owner_url
    if server.is_running():
        yield url
        return
    with hold(home.ensure()):
        server.start()
        try:
            yield url
        finally:
            server.stop()


class Database:
    """The database of one stack, from its start to its stop."""

    def __init__(self, home: Home, settings: SupervisorSettings, show: Show) -> None:
        """Nothing is started yet."""
        self.embedded = embedded_at(home) if settings.database_url is None else None
        self._given = settings.database_url.get_secret_value() if settings.database_url else ""
        self._show = show
        self._backoff = Backoff(first=2.0)
        self._look_at = time.monotonic() + LOOK_EVERY_S

    @property
    def owner_url(self) -> str:
        """Address of the role that owns the objects."""
        return self.embedded.owner_url if self.embedded is not None else self._given

    def start(self) -> str:
        """Starts the embedded one, or reaches the operator's; returns its version.

        Raises:
            DatabaseUnavailable: It cannot be reached, or the role may not do what migrations need.
            EnvironmentFault: The embedded one does not start.
            ConfigError: `RATCHET_DATABASE_URL` is no address of a PostgreSQL.
        """
        if self.embedded is not None:
            self.embedded.start()
        return _examine(self.owner_url)

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        if self.embedded is not None:
            return f"embedded, {self.embedded.data}"
        return make_url(self.owner_url).render_as_string(hide_password=True)

    def tick(self) -> None:
        """Starts the embedded one again if it is gone."""
        if self.embedded is None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        if self.embedded.is_running():
            return
        self._show.trouble("database", f"PostgreSQL is gone; starting it again (log: {self.embedded.log})")
        began = time.monotonic()
        try:
            self.embedded.start()
        except (EnvironmentFault, psycopg.Error) as error:
            delay = self._backoff.next()
            self._look_at = time.monotonic() + delay
            self._show.trouble("database", f"{first_line(error)}; again in {delay:.1f} s")
        else:
            self._backoff.failures = 0
            self._show.done("database", f"PostgreSQL is back after {time.monotonic() - began:.1f} s")

    def stop(self, *, hurry: bool) -> None:
        """Stops the embedded one, also half started; the operator's is left alone."""
        if self.embedded is None:
            return
        self.embedded.stop(immediate=hurry)


def _examine(url: str) -> str:
    try:
        sqlalchemy_url(url)
        with psycopg.connect(libpq_url(url), connect_timeout=CONNECT_TIMEOUT_S) as connection:
            able = connection.execute(
                "SELECT has_database_privilege(current_database(), 'CREATE') AND (rolsuper OR rolcreaterole) "
                "FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            number = connection.info.server_version
    except ArgumentError as error:
        raise ConfigError(
            f"RATCHET_DATABASE_URL is no address (postgresql://user@host/name): {error}"
        ) from error
    except psycopg.OperationalError as error:
        where = make_url(url).render_as_string(hide_password=True)
        raise DatabaseUnavailable(
            f"PostgreSQL at {where} cannot be used: {first_line(error)}; start it, or "
            "mend RATCHET_DATABASE_URL (unset, `ratchet up` runs a PostgreSQL of its own)"
        ) from error
    if number < OLDEST_MAJOR * 10_000:
        raise DatabaseUnavailable(
            f"PostgreSQL {number // 10_000} is too old: {OLDEST_MAJOR} or newer is needed"
        )
    if able != (True,):
        raise DatabaseUnavailable(
            f"the role {make_url(url).username} may not set up the database: it needs CREATEROLE, and CREATE "
            "on the database (or be a superuser)"
        )
    return f"{number // 10_000}.{number % 10_000}"


def first_line(error: Exception) -> str:
    """The line of a database error that says what happened; the others give advice."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0].strip()
