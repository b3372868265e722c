"""PostgreSQL's own programs, run as a client of a database: the password never stands in a command line."""

import os
import subprocess
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ratchet.db.engine import libpq_url
from ratchet.embedded import programs
from ratchet.errors import EnvironmentFault


def run_client(program: str, url: str, *arguments: str) -> None:
    """Runs `pg_dump` or `pg_restore` on a database.

    Raises:
        EnvironmentFault: It failed; the message is its own.
    """
    address = conninfo_to_dict(libpq_url(url))
    password = address.pop("password", None)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    done = subprocess.run(
        [str(programs() / program), "--no-password", "--dbname", make_conninfo("", **address), *arguments],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise EnvironmentFault(f"{program} failed: {lines[0] if lines else f'exit code {done.returncode}'}")


def dump(url: str, target: Path) -> None:
    """Saves a database in pg_dump's custom format, at one moment in time, while others go on using it.

    Messages under way to workers are left out: tasks are triggers, and the rows they speak of are saved.
    """
    run_client(
        "pg_dump", url, "--format=custom", "--exclude-table-data=broker.kombu_message", "--file", str(target)
    )


def load(url: str, source: Path) -> None:
    """Brings a dump back into a database without its schemas; all of it or nothing."""
    run_client("pg_restore", url, "--no-owner", "--exit-on-error", "--single-transaction", str(source))
