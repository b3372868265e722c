"""`ratchet gc`: artefacts of policies that no row names."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import psycopg
import typer

from ratchet.artifacts import Kind, LocalStore, Stored, store_of
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.db.engine import libpq_url
from ratchet.errors import NotFound
from ratchet.home import Home
from ratchet.supervisor.database import reachable
from ratchet.supervisor.settings import load_settings

YOUNG_HOURS = 24.0


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    min_age_hours: Annotated[
        float,
        typer.Option(
            "--min-age-hours",
            min=0.0,
            help="Keep what was stored more lately: its row may still be on the way.",
        ),
    ] = YOUNG_HOURS,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove artefacts that no row names."""
    document = collect(Home.resolve(data_dir), timedelta(hours=min_age_hours), dry_run=dry_run)
    emit(document, as_json, _render)


def collect(home: Home, min_age: timedelta, *, dry_run: bool) -> dict[str, Any]:
    """Removes policy folders without a row that were last put before `min_age`.

    The folders are listed before the rows are read, and looked at again before they go: a policy that is
    being added touches its folder first and writes its row then.

    Raises:
        EnvironmentFault: There is no stack here, or its database cannot be read.
    """
    store = store_of(home, Kind.POLICY)
    stored = store.list()
    with reachable(home, load_settings()) as url, psycopg.connect(libpq_url(url)) as connection:
        named = {str(row[0]) for row in connection.execute("SELECT artifact FROM registry.policy")}
    unnamed = [found for found in stored if found.digest not in named]
    old = [found for found in unnamed if datetime.now(UTC) - found.put_at >= min_age]
    removed = old if dry_run else [found for found in old if _remove(store, found)]
    if not dry_run:
        store.remove_abandoned()
    return {
        "dry_run": dry_run,
        "removed": [
            {"digest": found.digest, "bytes": found.size, "put_at": found.put_at} for found in removed
        ],
        "bytes": sum(found.size for found in removed),
        "kept_in_use": len(stored) - len(unnamed),
        "kept_young": len(unnamed) - len(old),
    }


def _remove(store: LocalStore, found: Stored) -> bool:
    try:
        if (store.root / found.digest).stat().st_mtime != found.put_at.timestamp():
            return False
        store.remove(found.digest)
    except (NotFound, FileNotFoundError):
        return False
    return True


def _render(document: dict[str, Any]) -> None:
    verb = "would remove" if document["dry_run"] else "removed"
    for found in document["removed"]:
        typer.echo(
            f"{verb} {found['digest'][:12]}  {found['bytes'] / 1e6:10.1f} MB  "
            f"put {found['put_at']:%Y-%m-%d %H:%M}"
        )
    typer.echo(
        f"{verb} {len(document['removed'])} artefacts, {document['bytes'] / 1e6:.1f} MB; "
        f"kept {document['kept_in_use']} in use and {document['kept_young']} too young"
    )
