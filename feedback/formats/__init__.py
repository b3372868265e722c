"""Data sets as files that others write and read: TRL, OpenAI, HH transcripts, Parquet.

Reading checks and never guesses: a number where text is asked, a prompt hash that is not the prompt's, a
missing part are errors that name file and line; a well-formed line that can be no row is passed over with its
reason. A row exported with its provenance and imported again is the same row; without provenance it comes
back as an import, and a second round changes nothing more.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from feedback.errors import FormatError
from feedback.formats import lines, parquet
from feedback.formats.hh import HH
from feedback.formats.lines import LineFormat, Skipped, Written
from feedback.formats.openai import OPENAI
from feedback.formats.trl import TRL
from feedback.rows import Kind, Row
from ratchet.errors import UsageError

__all__ = ["Format", "FormatError", "Skipped", "Written", "read", "write"]


class Format(StrEnum):
    """A file format for data sets."""

    TRL = "trl"
    OPENAI = "openai"
    HH = "hh"
    PARQUET = "parquet"


_LINE_FORMATS: dict[Format, LineFormat] = {Format.TRL: TRL, Format.OPENAI: OPENAI, Format.HH: HH}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read(path: Path, format: Format, kind: Kind, *, name: str) -> Iterator[Row | Skipped]:
    """Reads a data set; one line in memory at a time.

    Args:
        path: The file; JSON lines may be gzipped (`.gz`).
        format: What it is.
        kind: What its rows are.
        name: Name of the import, which stands as policy `import:<name>` where the file does not tell one.

    Raises:
        UsageError: The format knows no rows of this kind, or the name is none.
        FormatError: The file cannot be read, or a line is wrong; while iterating.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name an import: use letters, digits, dots, dashes and underscores")
    if format is Format.PARQUET:
        return parquet.read(path, kind, name)
    return lines.read(path, _known(format, kind).decode[kind], name)


def write(path: Path, format: Format, kind: Kind, rows: Iterable[Row], *, provenance: bool = True) -> Written:
    """Writes a data set; the file appears when it is complete.

    Args:
        path: Where; a name that ends in `.gz` is gzipped (not Parquet).
        format: How.
        kind: What the rows are.
        rows: Read once.
        provenance: Whether to tell ids, policies and all other columns; Parquet always does.

    Raises:
        UsageError: The format knows no rows of this kind.
    """
    if format is Format.PARQUET:
        return parquet.write(path, kind, rows)
    return lines.write(path, rows, _known(format, kind).encode[kind], provenance=provenance)


def _known(format: Format, kind: Kind) -> LineFormat:
    codec = _LINE_FORMATS[format]
    if kind not in codec.decode:
        raise UsageError(f"format {format.value} knows no {kind.value}: use trl, openai or parquet")
    return codec
