"""Brings a database to the newest revision, and gives each role its login."""

import secrets
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import make_url

from ratchet.db.engine import libpq_url, open_engine
from ratchet.db.roles import SERVICE_ROLES, Role
from ratchet.errors import DatabaseUnavailable

LOCK = 0x52415443  # one migrator at a time


def alembic_config() -> Config:
    """Alembic's configuration, which needs no ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


def migrate(owner_url: str, revision: str = "head") -> None:
    """Migrates the database; several callers at once take turns.

    Args:
        owner_url: Address of the role that owns the objects.
        revision: Target revision.

    Raises:
        DatabaseUnavailable: The server cannot be reached, or refuses the owner.
    """
    engine = open_engine(owner_url, application="ratchet-migrate", pool_size=1)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({LOCK})")
            connection.commit()
            config = alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            connection.commit()
            connection.exec_driver_sql(f"SELECT pg_advisory_unlock({LOCK})")
            connection.commit()
    except Exception as error:
        cause = getattr(error, "orig", error)
        if isinstance(cause, psycopg.OperationalError):
            raise DatabaseUnavailable(f"PostgreSQL: {str(cause).splitlines()[0]}") from error
        raise
    finally:
        engine.dispose()


def provision_logins(owner_url: str, known: dict[Role, str]) -> dict[Role, str]:
    """Gives every service role a SCRAM login and returns the address of each.

    Args:
        owner_url: Address of a role that may alter roles.
        known: Addresses handed out before; they stay valid.

    Returns:
        Role to `postgresql://role:password@...` on the same server and database.
    """
    urls: dict[Role, str] = {}
    base = make_url(libpq_url(owner_url))
    with psycopg.connect(libpq_url(owner_url), autocommit=True) as connection:
        connection.execute("SET password_encryption = 'scram-sha-256'")
        for role in SERVICE_ROLES:
            password = make_url(known[role]).password if role in known else None
            password = password or secrets.token_urlsafe(24)
            connection.execute(
                sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(
                    sql.Identifier(role.value), sql.Literal(str(password))
                )
            )
            urls[role] = base.set(username=role.value, password=str(password)).render_as_string(
                hide_password=False
            )
    return urls
