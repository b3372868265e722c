"""Snapshots: a data set frozen in a folder named by the digest of its rows.

    <root>/<digest>/manifest.json      what it holds, by which filter, and what was left out
    <root>/<digest>/train.parquet      columns: `tables.SCHEMAS`; sorted as `sorting` says
    <root>/<digest>/validation.parquet

The folder appears whole or not at all. Rows on held-out prompts never get in, whatever the caller passes.
"""

import heapq
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from feedback.errors import SnapshotError
from feedback.lengths import DEFAULT_BOUND, LengthTally
from feedback.rows import DropReason, Kind, PreferenceRow, Row, canonical, hash_of_prompt, kind_of
from feedback.rule import AnyKept, is_held_out, spoken_by
from feedback.sorting import RUN_BYTES, SCHEMA_VERSION, RowDigest, RowSorter, order_of_row
from feedback.tables import RowWriter, read_rows
from ratchet.canonical import digest_of_file
from ratchet.prompts import Split, split

MANIFEST = "manifest.json"
SPLITS: tuple[Split, ...] = (Split.TRAIN, Split.VALIDATION)


class FileEntry(BaseModel):
    """One Parquet file of a snapshot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    bytes: int
    sha256: str


class Manifest(BaseModel):
    """What a snapshot holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    schema_version: int
    digest: str
    """Of the canonical rows (`sorting`)."""
    created: datetime
    filter: dict[str, Any]
    by_split: dict[Split, int]
    by_policy: dict[str, int]
    """Rows in which a policy version speaks; a row with two versions counts once for each."""
    by_source: dict[str, int]
    dropped: dict[str, int]
    """Candidates left out, by reason."""
    lengths: dict[str, Any] | None
    """`lengths.LengthReport`; null for demonstrations."""
    files: dict[str, FileEntry]

    @property
    def rows(self) -> int:
        """Rows in all splits."""
        return sum(self.by_split.values())


@dataclass(frozen=True, slots=True)
class Member:
    """A row's place in a snapshot."""

    position: int
    """From 0, over both splits."""
    part: Split
    kept: AnyKept


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot on disk."""

    path: Path
    manifest: Manifest

    def rows(self, part: Split) -> Iterator[Row]:
        """The rows of train or validation, in order, a row group in memory at a time.

        Raises:
            FormatError: The file is missing or damaged.
        """
        yield from read_rows(self.path / f"{part.value}.parquet", self.manifest.kind)

    def verify(self) -> None:
        """Reads every row and takes the digest anew.

        Raises:
            SnapshotError: The rows are not those the snapshot is named after.
            FormatError: A file is missing or damaged.
        """
        digest = RowDigest(self.manifest.kind)
        for row in heapq.merge(*(self.rows(part) for part in SPLITS), key=order_of_row):
            digest.add(canonical(row).encode("ascii"))
        if digest.hexdigest() != self.manifest.digest:
            raise SnapshotError(
                f"{self.path}: the rows have digest {digest.hexdigest()}, not {self.manifest.digest};"
                " the files were changed or damaged: delete the folder and build the snapshot again"
            )


def write_snapshot(
    root: Path,
    kind: Kind,
    rows: Iterable[AnyKept],
    *,
    wanted: Mapping[str, Any],
    dropped: Mapping[str, int],
    created: datetime,
    held_out: Container[str] = frozenset(),
    member: Callable[[Member], None] | None = None,
    length_bound: float = DEFAULT_BOUND,
    run_bytes: int = RUN_BYTES,
) -> Snapshot:
    """Freezes rows, in any order, into a snapshot folder.

    The same rows give the same digest, hence the same folder: if it is there already it is left as it is,
    and the returned manifest tells of this build's filter and counts.

    Args:
        root: Folder of all snapshots; made if absent.
        kind: What the rows are.
        rows: With who stands behind them; read once, never held in memory together.
        wanted: The filter, for the manifest.
        dropped: Candidates left out by reason; read after the last row, so it may be counted along the way.
        created: Time of the build, for the manifest.
        held_out: Hashes of the prompts of held-out suites, beside those the split holds out.
        member: Told of every row that got in, in order.
        length_bound: See `lengths.LengthTally.report`.
        run_bytes: Memory for sorting.

    Raises:
        ValueError: A row is of another kind or carries another prompt's hash; its time has no zone or its
            weight is not finite.
    """
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root, prefix=".building-") as building:
        sorter = RowSorter(kind, Path(building), run_bytes)
        held = sum(not _take(sorter, kept, kind, held_out) for kept in rows)
        folder = Path(building) / "snapshot"
        folder.mkdir()
        counts = _write_rows(folder, kind, sorter, member)
        left_out = Counter(dropped)
        left_out.update({DropReason.HELD_OUT.value: held, DropReason.DUPLICATE.value: sorter.repeated})
        manifest = Manifest(
            kind=kind,
            schema_version=SCHEMA_VERSION,
            digest=counts.digest,
            created=created,
            filter=dict(wanted),
            by_split=counts.by_split,
            by_policy=dict(sorted(counts.by_policy.items())),
            by_source=dict(sorted(counts.by_source.items())),
            dropped={reason: number for reason, number in sorted(left_out.items()) if number},
            lengths=counts.lengths.report(length_bound).content() if kind is Kind.PAIRS else None,
            files={f"{part.value}.parquet": _entry(folder, part, counts.by_split[part]) for part in SPLITS},
        )
        _write_durably(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        return Snapshot(_place(folder, root / manifest.digest), manifest)


def _take(sorter: RowSorter, kept: AnyKept, kind: Kind, held_out: Container[str]) -> bool:
    row = kept.row
    if kind_of(row) is not kind:
        raise ValueError(f"a row of {kind_of(row)} in a snapshot of {kind}")
    if row.prompt_hash != hash_of_prompt(row.prompt):
        raise ValueError(f"prompt hash {row.prompt_hash} is not that of the row's prompt")
    if is_held_out(row.prompt_hash, held_out):
        return False
    sorter.add(kept)
    return True


class _Counts:
    def __init__(self) -> None:
        self.by_split = dict.fromkeys(SPLITS, 0)
        self.by_policy: Counter[str] = Counter()
        self.by_source: Counter[str] = Counter()
        self.lengths = LengthTally()
        self.digest = ""

    def add(self, row: Row, part: Split) -> None:
        self.by_split[part] += 1
        self.by_policy.update(set(spoken_by(row)))
        self.by_source[row.source] += 1
        if isinstance(row, PreferenceRow):
            self.lengths.add(row.chosen, row.rejected, row.source)


def _write_rows(
    folder: Path, kind: Kind, sorter: RowSorter, member: Callable[[Member], None] | None
) -> _Counts:
    counts, digest = _Counts(), RowDigest(kind)
    with ExitStack() as stack:
        writers = {
            part: stack.enter_context(RowWriter(folder / f"{part.value}.parquet", kind)) for part in SPLITS
        }
        for position, (kept, content) in enumerate(sorter.merged()):
            part = split(kept.row.prompt_hash)
            digest.add(content)
            counts.add(kept.row, part)
            writers[part].add(kept.row)
            if member is not None:
                member(Member(position, part, kept))
    counts.digest = digest.hexdigest()
    return counts


def _entry(folder: Path, part: Split, rows: int) -> FileEntry:
    path = folder / f"{part.value}.parquet"
    _sync(path)
    return FileEntry(rows=rows, bytes=path.stat().st_size, sha256=digest_of_file(path))


def _write_durably(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(folder: Path, target: Path) -> Path:
    """Moves the finished folder to its name, or leaves the equal one that is there."""
    if target.exists():
        open_snapshot(target)
        return target
    try:
        folder.rename(target)
    except OSError:
        if not target.exists():
            raise
        open_snapshot(target)
    else:
        _sync(target.parent)
    return target


def open_snapshot(path: Path) -> Snapshot:
    """Opens a snapshot folder and checks that its files are as its manifest says, by size.

    Raises:
        SnapshotError: The folder is missing, incomplete, of another schema version, or damaged.
    """
    try:
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise SnapshotError(f"{path}: no snapshot here: {MANIFEST} is missing") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise SnapshotError(f"{path / MANIFEST}: {where}: {first['msg']}") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise SnapshotError(
            f"{path}: schema version {manifest.schema_version}, this program reads {SCHEMA_VERSION};"
            " build the snapshot again"
        )
    for name, entry in manifest.files.items():
        file = path / name
        size = file.stat().st_size if file.exists() else None
        if size != entry.bytes:
            raise SnapshotError(
                f"{file}: {'missing' if size is None else f'{size} bytes'}, {entry.bytes} bytes expected:"
                " delete the folder and build the snapshot again"
            )
    return Snapshot(path, manifest)
