"""Rows as Parquet: the columns of a snapshot, written in row groups and read one group at a time."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from feedback.errors import FormatError
from feedback.rows import Kind, Row, record_of, row_from

GROUP_ROWS = 8_192
"""Rows held in memory at once while writing."""

_TURNS = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [
                pa.field("role", pa.string(), nullable=False),
                pa.field("content", pa.string(), nullable=False),
            ]
        ),
        nullable=False,
    )
)


def _text(name: str) -> "pa.Field[Any]":
    return pa.field(name, pa.string(), nullable=False)


def _id(name: str) -> "pa.Field[Any]":
    return pa.field(name, pa.string(), nullable=True)


_WHENCE: "list[pa.Field[Any]]" = [
    _text("source"),
    pa.field("votes", pa.int32(), nullable=False),
    pa.field("weight", pa.float64(), nullable=False),
    pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=True),
    _text("prompt_hash"),
]

SCHEMAS: dict[Kind, pa.Schema] = {
    Kind.PAIRS: pa.schema(
        [
            pa.field("prompt", _TURNS, nullable=False),
            _text("chosen"),
            _text("rejected"),
            _id("chosen_response_id"),
            _id("rejected_response_id"),
            _text("chosen_policy"),
            _text("rejected_policy"),
            _id("chosen_decode"),
            _id("rejected_decode"),
            *_WHENCE,
        ]
    ),
    Kind.DEMONSTRATIONS: pa.schema(
        [
            pa.field("prompt", _TURNS, nullable=False),
            _text("completion"),
            _id("response_id"),
            _text("policy"),
            _id("decode"),
            *_WHENCE,
        ]
    ),
}


class RowWriter:
    """Writes rows of one kind to a Parquet file; use as a context manager."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self._schema = SCHEMAS[kind]
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._group: list[dict[str, Any]] = []
        self.rows = 0

    def add(self, row: Row) -> None:
        """Appends a row; it is on disk when its group is full or the writer is closed."""
        self._group.append(record_of(row))
        self.rows += 1
        if len(self._group) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._group:
            self._file.write_batch(pa.RecordBatch.from_pylist(self._group, schema=self._schema))
            self._group = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._file.close()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of any Parquet file, in order, a batch in memory at a time.

    Raises:
        FormatError: The file is missing or is no Parquet file.
    """
    try:
        with pq.ParquetFile(path) as file:
            batches: Iterator[pa.RecordBatch] = file.iter_batches(batch_size=GROUP_ROWS)  # pyright: ignore[reportUnknownMemberType]
            for batch in batches:
                yield from batch.to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise FormatError(path, None, f"cannot be read as Parquet: {error}") from error


def kind_of_file(path: Path) -> Kind | None:
    """Which kind of rows a Parquet file holds by its columns; null where they are not those of a snapshot.

    Raises:
        FormatError: The file is missing or is no Parquet file.
    """
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow
    except (OSError, pa.ArrowInvalid) as error:
        raise FormatError(path, None, f"cannot be read as Parquet: {error}") from error
    return next((kind for kind, schema in SCHEMAS.items() if columns.equals(schema)), None)


def read_rows(path: Path, kind: Kind) -> Iterator[Row]:
    """The rows of a file that `RowWriter` wrote.

    Raises:
        FormatError: The file is missing, no Parquet file, or has other columns.
    """
    if kind_of_file(path) is not kind:
        raise FormatError(path, None, f"its columns are not those of {kind.value}")
    for record in records(path):
        yield row_from(kind, record)
