"""The order and the digest of a data set, both functions of its rows alone.

Rows are sorted by prompt hash, then by ids, then by their canonical JSON, and an exact repetition counts
once. The digest is the SHA-256 of a line that names kind and schema version, then of every row's canonical
JSON in that order, each line ended by a line feed; who stands behind a row is sorted along, but no part of
the digest. Sorting happens in bounded memory: what does not fit is spilled in sorted runs, which are merged
as they are read.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from feedback.rows import Kind, PreferenceRow, Row, canonical, row_from
from feedback.rule import AnyKept, Kept
from ratchet.canonical import canonical_json

SCHEMA_VERSION = 1
"""Of the columns and their canonical form; part of the digest."""

RUN_BYTES = 64 * 2**20
"""Rows are spilled when their canonical text reaches this size."""


class RowSorter:
    """Takes rows in any order and gives them back sorted, without repetitions.

    Args:
        kind: What the rows are.
        folder: Where runs are spilled; the caller removes it.
        run_bytes: Size at which a run is spilled.
    """

    def __init__(self, kind: Kind, folder: Path, run_bytes: int = RUN_BYTES) -> None:
        self._kind = kind
        self._folder = folder
        self._run_bytes = run_bytes
        self._lines: list[bytes] = []
        self._size = 0
        self._runs: list[Path] = []
        self.repeated = 0
        """Repetitions left out so far, complete when `merged` is exhausted."""

    def add(self, kept: AnyKept) -> None:
        """Takes a row and who stands behind it.

        Raises:
            ValueError: The weight is not finite, or the time has no zone.
        """
        behind = canonical_json([kept.raters, kept.agreement, kept.user, kept.inputs])
        line = order_of_row(kept.row) + f"\t{behind}\n".encode("ascii")
        self._lines.append(line)
        self._size += len(line)
        if self._size >= self._run_bytes:
            self._spill()

    def _spill(self) -> None:
        path = self._folder / f"run-{len(self._runs):05d}"
        self._lines.sort()
        with path.open("wb") as file:
            file.writelines(self._lines)
        self._runs.append(path)
        self._lines, self._size = [], 0

    def merged(self) -> Iterator[tuple[AnyKept, bytes]]:
        """Every row once, in order, with its canonical JSON."""
        self._lines.sort()
        last = b""
        with ExitStack() as stack:
            runs = [stack.enter_context(path.open("rb")) for path in self._runs]
            for line in heapq.merge(*runs, self._lines):
                _, content, behind = line.split(b"\t")
                if content == last:
                    self.repeated += 1
                    continue
                last = content
                yield self._kept(content, behind), content

    def _kept(self, content: bytes, behind: bytes) -> AnyKept:
        raters, agreement, user, inputs = orjson.loads(behind)
        row = row_from(self._kind, orjson.loads(content))
        return Kept(row, tuple(raters), agreement, user, tuple(inputs))


class RowDigest:
    """The digest of rows that come in order."""

    def __init__(self, kind: Kind) -> None:
        self._hash = hashlib.sha256(f"ratchet {kind.value} {SCHEMA_VERSION}\n".encode())

    def add(self, content: bytes) -> None:
        """Takes the canonical JSON of the next row."""
        self._hash.update(content)
        self._hash.update(b"\n")

    def hexdigest(self) -> str:
        """SHA-256, 64 hex digits."""
        return self._hash.hexdigest()


def digest_of_rows(kind: Kind, rows: Iterable[Row], run_bytes: int = RUN_BYTES) -> str:
    """The digest of rows in any order; equal for equal sets of rows.

    Raises:
        ValueError: A weight is not finite, or a time has no zone.
    """
    with TemporaryDirectory(prefix="ratchet-rows-") as folder:
        sorter = RowSorter(kind, Path(folder), run_bytes)
        for row in rows:
            sorter.add(Kept(row))
        digest = RowDigest(kind)
        for _, content in sorter.merged():
            digest.add(content)
        return digest.hexdigest()


def order_of_row(row: Row) -> bytes:
    """What rows are sorted by, as bytes that compare: hash and ids, a tab, the canonical JSON."""
    ids = (
        [row.chosen_response_id, row.rejected_response_id]
        if isinstance(row, PreferenceRow)
        else [row.response_id]
    )
    return f"{canonical_json([row.prompt_hash, *ids])}\t{canonical(row)}".encode("ascii")
