"""Connections: made where a process starts, never on import."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from ratchet.errors import ConfigError, DatabaseUnavailable

CONNECT_TIMEOUT_S = 5


def sqlalchemy_url(url: str) -> str:
    """The same address with the driver named, as SQLAlchemy wants it.

    Raises:
        ConfigError: Not a PostgreSQL address.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "postgresql":
        raise ConfigError(f"the database address must begin with postgresql://, not {parsed.drivername}://")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def libpq_url(url: str) -> str:
    """The same address without SQLAlchemy's driver, as psycopg and psql want it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def open_engine(url: str, *, application: str, pool_size: int = 5) -> Engine:
    """An engine with a small pool; no connection is made yet.

    Args:
        url: `postgresql://...` of one role.
        application: Shown in pg_stat_activity.
        pool_size: Connections kept open at most.
    """
    return create_engine(
        sqlalchemy_url(url),
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        connect_args={"application_name": application, "connect_timeout": CONNECT_TIMEOUT_S},
    )


@contextmanager
def session_scope(engine: Engine) -> Generator[Session]:
    """One unit of work at the edge: commits once at the end, rolls back on any error.

    Raises:
        DatabaseUnavailable: The server cannot be reached.
    """
    try:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session
    except OperationalError as error:
        if isinstance(error.orig, psycopg.OperationalError) and error.connection_invalidated is False:
            raise DatabaseUnavailable(f"PostgreSQL: {str(error.orig).splitlines()[0]}") from error
        raise
