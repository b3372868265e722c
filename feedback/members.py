"""What the database keeps of a snapshot's rows: who stands behind each, without its texts."""

from collections import Counter
from collections.abc import Iterator
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

import orjson
import psycopg
from psycopg import sql
from sqlalchemy.orm import Session

from feedback.rows import Kind, PreferenceRow, Row
from feedback.snapshot import Member

_HEAD = ("position", "split", "prompt_hash")
_TAIL = ("source", "weight", "user_id", "created_at")
_COLUMNS = {
    Kind.PAIRS: (
        *_HEAD, "chosen_response_id", "rejected_response_id", "chosen_policy", "rejected_policy",
        "chosen_decode", "rejected_decode", "votes", "agreement", "raters", *_TAIL,
    ),
    Kind.DEMONSTRATIONS: (*_HEAD, "response_id", "policy", "decode", *_TAIL),
}  # fmt: skip
_TABLES = {Kind.PAIRS: "preference_pair", Kind.DEMONSTRATIONS: "demonstration"}


class Members:
    """Takes a snapshot's members as they are written, on disk, and copies them into their table.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._samples: dict[tuple[str, ...], Row] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, member: Member) -> None:
        """Takes the next member."""
        row, kept = member.kept.row, member.kept
        head = [member.position, member.part.value, row.prompt_hash]
        tail = [row.source, row.weight, kept.user, row.created_at]
        if isinstance(row, PreferenceRow):
            sides = (row.chosen_policy, row.rejected_policy)
            body = [
                row.chosen_response_id, row.rejected_response_id, *sides, row.chosen_decode,
                row.rejected_decode, row.votes, kept.agreement, list(kept.raters),
            ]  # fmt: skip
        else:
            sides = (row.policy,)
            body = [row.response_id, row.policy, row.decode]
        self._file.write(orjson.dumps([*head, *body, *tail]) + b"\n")
        self._counts[sides] += 1
        self._samples.setdefault(sides, row)

    def rows(self) -> Iterator[Row]:
        """As many rows as were taken, with the same policies; their texts are those of a like one."""
        for sides, count in self._counts.items():
            for _ in range(count):
                yield self._samples[sides]

    def copy_into(self, session: Session, digest: str, kind: Kind) -> None:
        """Copies the members into their table, in the session's transaction."""
        self._file.seek(0)
        columns = ("snapshot", *_COLUMNS[kind])
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier("feedback", _TABLES[kind]),
            sql.SQL(", ").join(sql.Identifier(column) for column in columns),
        )
        driver: Any = session.connection().connection.driver_connection
        connection: psycopg.Connection[Any] = driver
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for line in self._file:
                copy.write_row([digest, *orjson.loads(line)])
