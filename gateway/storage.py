"""Rows into PostgreSQL, each once: COPY into a temporary table, then INSERT ... ON CONFLICT DO NOTHING.

A row that PostgreSQL will never take must not hold up the others: a refused batch is halved until it stands
alone. Everything else that goes wrong is taken for a database that is away and raised to the caller.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy.dialects import postgresql

from gateway.rows import COLUMNS, Row
from ratchet.db.engine import CONNECT_TIMEOUT_S, libpq_url
from ratchet.db.models.serving import Response
from ratchet.ids import new_id

APPLICATION = "ratchet-recorder"
STATEMENT_TIMEOUT_S = 60
PEER_TIMEOUT_MS = 15_000
"""A server that acknowledges nothing for so long is away."""

_ROW_FAULTS = ("22", "23", "54")
"""SQLSTATE classes that speak of the row: data exception, integrity violation, program limit exceeded."""
_INTERNAL = "XX000"
"""Among others: a value larger than PostgreSQL can allocate."""

_SESSION = sql.SQL("SET statement_timeout = {}; SET synchronous_commit = on").format(
    f"{STATEMENT_TIMEOUT_S}s"
)
"""A commit must outlive the server's crash, since the spool forgets what is committed."""
_COLUMN_LIST = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
_INCOMING = sql.SQL("CREATE TEMPORARY TABLE incoming ({}) ON COMMIT DELETE ROWS").format(
    sql.SQL(", ").join(
        sql.SQL("{} {}").format(
            sql.Identifier(column.name),
            sql.SQL(column.type.compile(dialect=postgresql.dialect())),  # pyright: ignore[reportArgumentType]
        )
        for column in Response.__table__.columns
    )
)
_COPY = sql.SQL("COPY incoming ({}) FROM STDIN").format(_COLUMN_LIST)
_INSERT = sql.SQL(
    "INSERT INTO serving.response ({0}) SELECT {0} FROM incoming ON CONFLICT (id) DO NOTHING"
).format(_COLUMN_LIST)
_RAISE = """
INSERT INTO operations.alarm (id, kind, subject, detail) VALUES (%s, %s, %s, %s)
ON CONFLICT (kind, subject) WHERE cleared_at IS NULL DO UPDATE SET detail = excluded.detail
"""
_CLEAR = """
UPDATE operations.alarm SET cleared_at = now() WHERE kind = %s AND subject = %s AND cleared_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that PostgreSQL does not take, and why."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a batch.

    Attributes:
        inserted: Rows that are new.
        present: Rows that were there before.
        refused: Rows by their position in the batch.
    """

    inserted: int
    present: int
    refused: list[Refusal]


class Storage:
    """One connection as the gateway's role; made when needed, and again after a failure.

    Args:
        url: Address of the gateway's role.
    """

    def __init__(self, url: str) -> None:
        self._url = libpq_url(url)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def store(self, rows: Sequence[Row]) -> Stored:
        """Stores every row that can be stored; when it returns, those are committed.

        Raises:
            psycopg.Error: The database is away; any part of the batch may be stored.
        """
        inserted, present, refused = 0, 0, list[Refusal]()
        parts = [(0, len(rows))]
        while parts:
            start, end = parts.pop()
            try:
                new = self._copy(rows[start:end])
            except (psycopg.Error, UnicodeEncodeError) as error:
                if not _is_the_rows_fault(error):
                    raise
                if end - start > 1:
                    middle = (start + end) // 2
                    parts += [(middle, end), (start, middle)]
                else:
                    refused.append(Refusal(start, _reason(error)))
            else:
                inserted += new
                present += end - start - new
        return Stored(inserted, present, refused)

    def raise_alarm(self, kind: str, subject: str, detail: dict[str, Any]) -> None:
        """Raises an alarm, or brings the detail of the standing one up to date.

        Raises:
            psycopg.Error: The database is away.
        """
        with self._transaction() as connection:
            connection.execute(_RAISE, (new_id(), kind, subject, Jsonb(detail)))

    def clear_alarm(self, kind: str, subject: str) -> None:
        """Notes that an alarm's cause is gone.

        Raises:
            psycopg.Error: The database is away.
        """
        with self._transaction() as connection:
            connection.execute(_CLEAR, (kind, subject))

    def close(self) -> None:
        """Ends the connection; the next call makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _copy(self, rows: Sequence[Row]) -> int:
        with self._transaction() as connection, connection.cursor() as cursor:
            with cursor.copy(_COPY) as copy:
                for row in rows:
                    copy.write_row([row[name] for name in COLUMNS])
            cursor.execute(_INSERT)
            return cursor.rowcount

    @contextmanager
    def _transaction(self) -> Generator[psycopg.Connection[tuple[Any, ...]]]:
        if self._connection is None:
            self._connection = self._connect()
        try:
            with self._connection.transaction():
                yield self._connection
        except psycopg.Error as error:
            if not _is_the_rows_fault(error):
                self.close()
            raise

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            application_name=APPLICATION,
            connect_timeout=CONNECT_TIMEOUT_S,
            keepalives_idle=PEER_TIMEOUT_MS // 1000,
            tcp_user_timeout=PEER_TIMEOUT_MS,
        )
        try:
            connection.execute(_SESSION)
            connection.execute(_INCOMING)
        except psycopg.Error:
            connection.close()
            raise
        return connection


def _reason(error: psycopg.Error | UnicodeEncodeError) -> str:
    """The message without PostgreSQL's detail and context, which repeat what people wrote."""
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or type(error).__name__
    return f"{error.encoding}: {error.reason}"


def _is_the_rows_fault(error: psycopg.Error | UnicodeEncodeError) -> bool:
    if isinstance(error, UnicodeEncodeError):
        return True
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError)
    return error.sqlstate[:2] in _ROW_FAULTS or error.sqlstate == _INTERNAL
