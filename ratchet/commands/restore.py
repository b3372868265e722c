"""`ratchet restore`: a backup back into an empty data folder."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from psycopg import sql

from migrations.run import migrate, provision_logins
from ratchet.archive import DUMP, unpack
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.db.engine import libpq_url
from ratchet.errors import UsageError
from ratchet.home import Home
from ratchet.postgres_tools import load
from ratchet.secrets_store import save_role_urls
from ratchet.supervisor.database import Database
from ratchet.supervisor.lock import hold
from ratchet.supervisor.settings import load_settings
from ratchet.supervisor.show import Show


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `ratchet backup` wrote.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring a backup back into an empty data folder.

    Every file is proved against the backup's manifest. Roles get new passwords. Then `ratchet up` goes on
    there.
    """
    emit(bring_back(file.expanduser().absolute(), Home.resolve(data_dir)), as_json, _render)


def bring_back(file: Path, home: Home) -> dict[str, Any]:
    """Restores files, database and logins; on an error the folder is left as empty as it was.

    Raises:
        UsageError: The folder is not empty, the database is not, or the file is no whole backup.
        EnvironmentFault: PostgreSQL does not do its part.
    """
    if home.root.exists() and any(home.root.iterdir()):
        raise UsageError(f"{home.root} is not empty: give --data-dir of a new or empty folder")
    began = time.monotonic()
    home.ensure()
    try:
        with hold(home), tempfile.TemporaryDirectory(prefix=".restore-", dir=home.root) as scratch:
            dumped = Path(scratch) / DUMP
            manifest = unpack(file, lambda name: dumped if name == DUMP else home.root / name)
            _restore_database(home, dumped)
    except BaseException:
        for left in home.root.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        raise
    return {
        "data_dir": str(home.root),
        "created": manifest["created"],
        "revision": manifest["revision"],
        "files": len(manifest["files"]),
        "seconds": round(time.monotonic() - began, 1),
    }


def _restore_database(home: Home, dumped: Path) -> None:
    database = Database(home, load_settings(), Show(to_stderr=True))
    try:
        database.start()
        owner = database.owner_url
        others = _schemas(owner)
        if "registry" in others:
            raise UsageError("the database of RATCHET_DATABASE_URL holds a stack already: give an empty one")
        migrate(owner)
        _drop_schemas(owner, _schemas(owner) - others)
        load(owner, dumped)
        migrate(owner)
        save_role_urls(home, provision_logins(owner, {}))
    finally:
        database.stop(hurry=False)


def _schemas(owner_url: str) -> set[str]:
    with psycopg.connect(libpq_url(owner_url)) as connection:
        return {str(name) for (name,) in connection.execute("SELECT nspname FROM pg_namespace")}


def _drop_schemas(owner_url: str, names: set[str]) -> None:
    """Removes what the migrations made, but for roles and their rights on the database, which no dump has."""
    with psycopg.connect(libpq_url(owner_url)) as connection:
        connection.execute(
            sql.SQL("DROP SCHEMA {} CASCADE").format(sql.SQL(", ").join(map(sql.Identifier, sorted(names))))
        )
        connection.execute("DROP TABLE alembic_version")


def _render(document: dict[str, Any]) -> None:
    typer.echo(
        f"{document['data_dir']}: restored {document['files']} files and the database "
        f"as of {document['created']} in {document['seconds']:.1f} s; "
        f"start it with `ratchet up --data-dir {document['data_dir']}`"
    )
