"""Snapshots that were built: which there are, and one by the beginning of its digest."""

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from feedback.errors import SnapshotError
from feedback.snapshot import Snapshot, open_snapshot
from ratchet.db.engine import session_scope
from ratchet.errors import NotFound

_ALL = text("""
    SELECT digest, kind, path, created_at, manifest, withdrawn_at, withdrawn_reason
    FROM feedback.dataset_snapshot ORDER BY created_at DESC
""")
_FIND = text("""
    SELECT digest, path, withdrawn_reason FROM feedback.dataset_snapshot
    WHERE starts_with(digest, :beginning) ORDER BY digest
""")


def list_snapshots(engine: Engine) -> list[dict[str, Any]]:
    """Every snapshot, the newest first."""
    with session_scope(engine) as session:
        return [
            {
                "digest": row.digest,
                "kind": row.kind,
                "path": row.path,
                "created": row.created_at,
                "rows": sum(row.manifest["by_split"].values()),
                "by_policy": row.manifest["by_policy"],
                "withdrawn": row.withdrawn_reason,
            }
            for row in session.execute(_ALL)
        ]


def find_snapshot(engine: Engine, beginning: str) -> Snapshot:
    """Opens the snapshot whose digest begins so.

    Raises:
        NotFound: None does, or several do.
        SnapshotError: It was withdrawn, or its files are not whole.
    """
    with session_scope(engine) as session:
        found = session.execute(_FIND, {"beginning": beginning.lower()}).all()
    if len(found) != 1 or not beginning:
        several = f"{len(found)} snapshots begin" if found else "no snapshot begins"
        raise NotFound(f"{several} with {beginning!r}: `ratchet pairs list` names them")
    if found[0].withdrawn_reason is not None:
        raise SnapshotError(f"snapshot {found[0].digest[:12]} was withdrawn: {found[0].withdrawn_reason}")
    return open_snapshot(Path(found[0].path))
