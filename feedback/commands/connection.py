"""How these commands reach the database: as the feedback service, or as the operator."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from ratchet.db.engine import open_engine
from ratchet.db.roles import Role
from ratchet.home import Home
from ratchet.secrets_store import role_url


@contextmanager
def engine_as(role: Role, data_dir: Path | None) -> Generator[Engine]:
    """Opens the database of a data folder's stack as a role, and closes it in the end.

    Raises:
        NotFound: No stack was ever set up in this data folder.
    """
    engine = open_engine(role_url(Home.resolve(data_dir), role), application="ratchet-cli", pool_size=2)
    try:
        yield engine
    finally:
        engine.dispose()
