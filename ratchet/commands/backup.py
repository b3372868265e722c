"""`ratchet backup`: the database and the artefacts in one file, from a stack that runs or rests."""

import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer

from ratchet.archive import DUMP, FOLDERS, new_archive
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.db.engine import libpq_url
from ratchet.errors import UsageError
from ratchet.home import Home
from ratchet.postgres_tools import dump
from ratchet.supervisor.database import reachable
from ratchet.supervisor.settings import load_settings


def command(
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file to write; it must not exist.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write the database and the artefacts into one archive.

    Works while the stack runs. Answers that still wait in the recorder's spool are not in it, nor are
    passwords and keys, nor model folders that can be fetched again.
    """
    emit(save(Home.resolve(data_dir), to.expanduser().absolute()), as_json, _render)


def save(home: Home, target: Path) -> dict[str, Any]:
    """Writes the archive; the database first, so that every artefact its rows name was there already.

    Raises:
        UsageError: The file exists, or its folder does not.
        EnvironmentFault: There is no stack here, or it cannot be read.
    """
    if target.exists():
        raise UsageError(f"{target} exists already; give another name")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}")
    with reachable(home, load_settings()) as owner_url, new_archive(target) as archive:
        with tempfile.TemporaryDirectory(prefix=".ratchet-backup-", dir=target.parent) as scratch:
            dumped = Path(scratch) / DUMP
            dump(owner_url, dumped)
            archive.add(dumped, DUMP)
        for name in FOLDERS:
            archive.add_folder(home.root / name, name)
        manifest = archive.finish(
            {
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "ratchet": version("ratchet"),
                "revision": _revision(owner_url),
            }
        )
    return {
        "path": str(target),
        "bytes": target.stat().st_size,
        "files": len(manifest["files"]),
        "revision": manifest["revision"],
        "created": manifest["created"],
    }


def _revision(owner_url: str) -> str | None:
    with psycopg.connect(libpq_url(owner_url)) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


def _render(document: dict[str, Any]) -> None:
    typer.echo(
        f"{document['path']}: {document['bytes'] / 1e6:.1f} MB, {document['files']} files, "
        f"schema revision {document['revision']}"
    )
