"""Time and peak memory of building a snapshot from so many responses, and the plans it is read by.

    python -m benchmarks.feedback.snapshots 10000 100000 1000000

Each size gets a database of its own in one embedded PostgreSQL with its usual settings, rows as `rows.sql`
makes them, and a build in a process of its own. A second build reads the last 14 days.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from feedback.pairing import BuildRequest, build_snapshot
from migrations.run import migrate, provision_logins
from ratchet.db.engine import libpq_url, open_engine
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres

ROWS = Path(__file__).with_name("rows.sql")
WINDOW = timedelta(days=14)
PARTITION = """
    DO $$
    DECLARE low timestamptz := date_trunc('month', now()) - interval '{months} months';
    BEGIN
        EXECUTE format('CREATE TABLE {table}_%s PARTITION OF {table} FOR VALUES FROM (%L) TO (%L)',
            to_char(low, 'YYYY_MM'), serving.uuid_floor(low), serving.uuid_floor(low + interval '1 month'));
    END $$
"""


def main() -> None:
    """Prints one JSON line a build."""
    if sys.argv[1] == "--build":
        print(json.dumps(build(sys.argv[2], json.loads(sys.argv[3]))))
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-benchmark-") as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", Path(folder) / "owner.password")
        server.start()
        try:
            for size in map(int, sys.argv[1:]):
                for line in measure(server, size):
                    print(json.dumps(line), flush=True)
        finally:
            server.stop(immediate=True)


def measure(server: EmbeddedPostgres, size: int) -> list[dict[str, Any]]:
    """Fills a database and builds twice: everything, and the last 14 days."""
    name = f"benchmark_{size}"
    with psycopg.connect(server.owner_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    owner = make_url(server.owner_url).set(database=name).render_as_string(hide_password=False)
    migrate(owner)
    url = provision_logins(owner, {})[Role.FEEDBACK]
    started = time.perf_counter()
    fill(owner, size)
    filled = time.perf_counter() - started
    lines: list[dict[str, Any]] = []
    for wish in ({}, {"since": (datetime.now(UTC) - WINDOW).isoformat()}):
        command = [sys.executable, "-m", "benchmarks.feedback.snapshots", "--build", url, json.dumps(wish)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        built: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        lines.append({"responses": size, "fill_s": round(filled, 1), "filter": wish, **built})
    lines[-1]["old_partitions_scanned"] = scanned(owner, datetime.now(UTC) - WINDOW)
    with psycopg.connect(server.owner_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    return lines


def fill(owner: str, size: int) -> None:
    """Makes partitions for the months past and the rows."""
    with psycopg.connect(libpq_url(owner), autocommit=True) as connection:
        for table in ("serving.response", "feedback.feedback_event"):
            for months in range(1, 8):
                connection.execute(sql.SQL(PARTITION.format(table=table, months=months)))
        for statement in ROWS.read_text().split(";\n"):
            if statement.strip():
                values = {"threads": size // 2} if "%(threads)s" in statement else None
                connection.execute(sql.SQL(statement if values else statement.replace("%%", "%")), values)


def build(url: str, wish: dict[str, Any]) -> dict[str, Any]:
    """One build, and what it took."""
    engine = open_engine(url, application="benchmark", pool_size=2)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        built = build_snapshot(engine, Path(folder), BuildRequest.model_validate(wish), now=datetime.now(UTC))
        elapsed = time.perf_counter() - started
    engine.dispose()
    ledger = built.ledger
    return {
        "pairs": built.snapshot.manifest.rows,
        "data": ledger["data"],
        "adds_up": ledger["data"] == ledger["accounted"],
        "seconds": round(elapsed, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def scanned(owner: str, since: datetime) -> list[str]:
    """Partitions of months before the window that any plan of a windowed build reads sequentially."""
    from feedback.repository import plans

    month = since.strftime("%Y_%m")
    engine = open_engine(owner, application="benchmark", pool_size=1)
    found: set[str] = set()
    with engine.connect() as connection:
        for plan in plans(connection, since):
            found |= sequential(plan, month)
    engine.dispose()
    return sorted(found)


def sequential(plan: dict[str, Any], month: str) -> set[str]:
    """Names of older partitions under sequential scans in a plan."""
    found = {name for child in plan.get("Plans", []) for name in sequential(child, month)}
    relation = str(plan.get("Relation Name", ""))
    old = relation[-7:].replace("_", "").isdigit() and relation[-7:] < month
    return found | ({relation} if plan["Node Type"] == "Seq Scan" and old else set())


if __name__ == "__main__":
    main()
