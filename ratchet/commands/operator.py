"""How a command reaches the stack's database: as the operator, or as the service whose work it does."""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Engine

from ratchet.db.engine import open_engine
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.secrets_store import role_url


@contextmanager
def operator_engine(home: Home) -> Generator[Engine]:
    """Opens the database of a data folder's stack, and closes it in the end.

    Raises:
        NotFound: No stack was ever set up in this data folder.
    """
    with role_engine(home, Role.OPERATOR, pool_size=1) as engine:
        yield engine


@contextmanager
def role_engine(home: Home, role: Role, *, pool_size: int = 2) -> Generator[Engine]:
    """The same as another role.

    Raises:
        NotFound: No stack was ever set up in this data folder.
    """
    engine = open_engine(role_url(home, role), application="ratchet-cli", pool_size=pool_size)
    try:
        yield engine
    finally:
        engine.dispose()
