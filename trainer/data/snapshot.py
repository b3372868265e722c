"""A snapshot's folder as the trainer opens it: checked against its manifest to the last byte."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.canonical import digest_of_file
from trainer.errors import SnapshotRefused

MANIFEST = "manifest.json"
SCHEMA_VERSIONS = (1,)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is what its manifest says.

    Attributes:
        path: Its folder.
        kind: `pairs` or `demonstrations`.
        digest: Of its rows (64 hex digits).
        policies: Whose answers it holds: `name@version`, or `import:<name>`.
    """

    path: Path
    kind: str
    digest: str
    policies: tuple[str, ...]

    @property
    def train(self) -> Path:
        """The training rows."""
        return self.path / "train.parquet"

    @property
    def validation(self) -> Path:
        """The validation rows."""
        return self.path / "validation.parquet"


def open_snapshot(path: Path, kind: str) -> Snapshot:
    """Opens a snapshot of a kind.

    Raises:
        SnapshotRefused: It is none, is of another kind or version, or a file is not as its manifest says.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text("utf-8"))
        found, digest, version, files, by_policy = (
            manifest[key] for key in ("kind", "digest", "schema_version", "files", "by_policy")
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotRefused(f"{path} is no snapshot: {MANIFEST} is missing or damaged: {error}") from error
    if version not in SCHEMA_VERSIONS:
        raise SnapshotRefused(
            f"{path}: schema version {version}, this program reads {SCHEMA_VERSIONS[-1]}; "
            "build the snapshot again"
        )
    if found != kind:
        raise SnapshotRefused(f"{path} holds {found}, and this round learns from {kind}")
    for name, entry in files.items():
        file = path / name
        if not file.is_file() or digest_of_file(file) != entry["sha256"]:
            raise SnapshotRefused(
                f"{file} is missing or not the file the manifest describes: build the snapshot again"
            )
    return Snapshot(path, found, digest, tuple(by_policy))
