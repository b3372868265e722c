"""Files of one JSON document a line, plain or gzipped (`.gz`): read with line numbers, written atomically."""

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
from pydantic import ValidationError

from feedback.errors import FormatError
from feedback.rows import DropReason, Kind, Row

_BOM = b"\xef\xbb\xbf"


class Malformed(ValueError):
    """A document that is not what its format says; the text is the reason."""


Decode = Callable[[dict[str, Any], str], Row | DropReason]
"""From a record and the import's name to a row or the reason there is none; raises `Malformed` or pydantic's
`ValidationError`."""

Encode = Callable[[Row, bool], dict[str, Any] | None]
"""From a row, and whether to tell its provenance, to a document; null where the format cannot hold it."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """One JSON-lines format: how to read and write each kind of row it knows."""

    decode: dict[Kind, Decode]
    encode: dict[Kind, Encode]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that is well formed but can be no row."""

    line: int
    reason: DropReason


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of an export."""

    rows: int
    skipped: dict[str, int]
    """Rows the format cannot hold, by reason."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1.

    Raises:
        FormatError: The file cannot be opened, or is a damaged gzip file.
    """
    number = 0
    try:
        with _open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                content = (line.removeprefix(_BOM) if number == 1 else line).strip()
                if content:
                    yield number, content
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(path, number or None, f"cannot be read: {error}") from error


def _open(path: Path, mode: str) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, mode))
    return cast(BinaryIO, path.open(mode))


def read(path: Path, decode: Decode, name: str) -> Iterator[Row | Skipped]:
    """Every line's row, or why it is none.

    Raises:
        FormatError: The file cannot be read, or a line is not what the format says; it names the line.
    """
    for number, line in read_lines(path):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise FormatError(path, number, f"no JSON: {error.msg}, at character {error.pos + 1}") from error
        yield decoded(path, number, record, decode, name)


def decoded(path: Path, number: int, record: Any, decode: Decode, name: str) -> Row | Skipped:
    """One record's row, or why it is none.

    Raises:
        FormatError: The record is not what the format says; it names file and line.
    """
    if not isinstance(record, dict):
        raise FormatError(path, number, f"an object is expected, not {type(record).__name__}")
    try:
        row = decode(cast(dict[str, Any], record), name)
    except ValidationError as error:
        raise FormatError(path, number, reason_of(error)) from error
    except Malformed as error:
        raise FormatError(path, number, str(error)) from error
    return Skipped(number, row) if isinstance(row, DropReason) else row


def reason_of(error: ValidationError) -> str:
    """The first thing pydantic found wrong, in one line, with the field's path."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if not _is_type_name(part))
    found = first["input"]
    given = f" (it is {found!r})" if isinstance(found, str | int | float) and first["loc"] else ""
    return f"{where + ': ' if where else ''}{first['msg']}{given if len(given) < 80 else ''}"


def _is_type_name(part: str | int) -> bool:
    """pydantic puts the name of a union's member into the path of an error."""
    return isinstance(part, str) and (part == "str" or part.startswith("list["))


def write(path: Path, rows: Iterable[Row], encode: Encode, *, provenance: bool) -> Written:
    """Writes a line for every row the format can hold; the file appears when it is complete."""
    written, skipped = 0, Counter[str]()
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        with _open(part, "wb") as file:
            for row in rows:
                document = encode(row, provenance)
                if document is None:
                    skipped[DropReason.UNSUPPORTED.value] += 1
                    continue
                file.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
                written += 1
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return Written(written, dict(skipped))
