"""Export: a snapshot's rows as a file that others read, with personal data masked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedback.formats import Format, write
from feedback.privacy import Masker
from feedback.rows import Row
from feedback.snapshot import SPLITS, Snapshot
from ratchet.errors import UsageError
from ratchet.prompts import Split

ALL = "all"


def export_snapshot(
    snapshot: Snapshot,
    format: Format,
    path: Path,
    *,
    part: str = ALL,
    provenance: bool = True,
    mask: bool = True,
) -> dict[str, Any]:
    """Writes the rows of a snapshot.

    Args:
        snapshot: What to write.
        format: How.
        path: Where.
        part: `train`, `validation` or `all`.
        provenance: Whether to tell ids, policies and all other columns.
        mask: Whether to mask personal data; a masked row is known by its masked prompt.

    Returns:
        Path, rows, what the format could not hold by reason, and what was masked by kind.

    Raises:
        UsageError: No such part, or the format knows no rows of this kind.
    """
    if part not in (ALL, *(split.value for split in SPLITS)):
        raise UsageError(f"--part is train, validation or all, not {part!r}")
    masker = Masker() if mask else None
    rows = _rows(snapshot, SPLITS if part == ALL else (Split(part),), masker)
    written = write(path, format, snapshot.manifest.kind, rows, provenance=provenance)
    return {
        "snapshot": snapshot.manifest.digest,
        "path": str(path),
        "format": format.value,
        "rows": written.rows,
        "skipped": written.skipped,
        "masked": dict(sorted(masker.found.items())) if masker is not None else None,
    }


def _rows(snapshot: Snapshot, parts: tuple[Split, ...], masker: Masker | None) -> Iterator[Row]:
    for part in parts:
        for row in snapshot.rows(part):
            yield row if masker is None else masker.row(row)
