"""One `ratchet up` for each database: two would start every engine twice and overwrite each other's rows."""

import time

import psycopg

from ratchet.db.engine import CONNECT_TIMEOUT_S, libpq_url
from ratchet.errors import AlreadyRunning, DatabaseUnavailable
from ratchet.supervisor.database import first_line

ADVISORY_LOCK = 0x52415455
LOOK_EVERY_S = 5.0
HANDOVER_S = 10.0
_POLL_S = 0.25


class Sole:
    """An advisory lock: held as long as its connection lives, taken again when the database comes back."""

    def __init__(self, url: str) -> None:
        """Takes the lock.

        Raises:
            AlreadyRunning: Another stack supervises this database.
            DatabaseUnavailable: It cannot be reached.
        """
        self._url = libpq_url(url)
        self._look_at = 0.0
        self._connection = self._take(HANDOVER_S)

    def tick(self) -> None:
        """Makes sure that the lock is still ours.

        Raises:
            AlreadyRunning: Another stack took it while the database was away.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        try:
            self._connection.execute("SELECT 1")
        except psycopg.OperationalError:
            self._connection.close()
            try:
                self._connection = self._take(HANDOVER_S)
            except DatabaseUnavailable:
                return

    def close(self) -> None:
        """Gives the lock back."""
        self._connection.close()

    def _take(self, patience_s: float) -> psycopg.Connection:
        deadline = time.monotonic() + patience_s
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="ratchet-up-lock",
            )
            while True:
                row = connection.execute("SELECT pg_try_advisory_lock(%s)", (ADVISORY_LOCK,)).fetchone()
                if row == (True,):
                    return connection
                if time.monotonic() > deadline:
                    connection.close()
                    raise AlreadyRunning(
                        "another `ratchet up` supervises this database: stop it, or use another database"
                    )
                time.sleep(_POLL_S)
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(f"PostgreSQL: {first_line(error)}") from error
