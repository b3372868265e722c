"""Parquet: written with the columns of a snapshot, read with those or with the columns of TRL's formats."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from feedback.formats.lines import Skipped, Written, decoded
from feedback.formats.trl import TRL
from feedback.rows import Kind, Row
from feedback.tables import RowWriter, records


def read(path: Path, kind: Kind, name: str) -> Iterator[Row | Skipped]:
    """Every row of the file, or why it is none; rows count from 1.

    Raises:
        FormatError: The file cannot be read, or a row is not what the format says; it names the row.
    """
    for number, record in enumerate(records(path), start=1):
        yield decoded(path, number, record, TRL.decode[kind], name)


def write(path: Path, kind: Kind, rows: Iterable[Row]) -> Written:
    """Writes every row with all its columns; the file appears when it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        with RowWriter(part, kind) as writer:
            for row in rows:
                writer.add(row)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return Written(writer.rows, {})
