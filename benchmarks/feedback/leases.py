"""Leases a second through the HTTP API with so many raters at once, and whether any rule was broken.

    python -m benchmarks.feedback.leases --raters 50 --items 2000

A real PostgreSQL, the real application under uvicorn in its own process, and one client a rater that leases
and votes without a pause until there is nothing left for it.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg

from feedback.raters import add_rater, make_link
from migrations.run import migrate, provision_logins
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres

WANTED = 3
ITEMS = """
    INSERT INTO feedback.comparison (id, pool, source, prompt, prompt_hash, history_hash, split, a_answer,
        a_text, a_policy, b_answer, b_text, b_policy, answered_at, wanted)
    SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '70008'
                || lpad(to_hex(number), 15, '0'))::uuid,
           'preference', 'shadow', '[{"role": "user", "content": "q"}]', hash, 'h', feedback.split_of(hash),
           'a' || number, repeat('one answer ', 40), 'sky@1', 'b' || number, repeat('another one ', 40),
           'sea@2', now(), %s
    FROM generate_series(1, %s) AS number,
         LATERAL (SELECT repeat('f', 64) AS hash) AS fixed
"""
CHECKS = {
    "leased_beyond_quota": "SELECT count(*) FROM feedback.comparison WHERE leased + voted > wanted",
    "counters_wrong": "SELECT count(*) FROM feedback.comparison AS item WHERE voted <> (SELECT count(*) FROM"
    " feedback.rating WHERE comparison_id = item.id AND choice <> 'skip')",
    "seen_twice": "SELECT count(*) - count(DISTINCT (comparison_id, rater_id)) FROM feedback.lease",
    "votes": "SELECT count(*) FROM feedback.rating",
}


async def rate(base: str, link: str, latencies: list[float], statuses: Counter[int]) -> None:
    """One rater, until nothing is left."""
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        session = (await client.post("/api/session", json={"link": link})).json()
        client.headers["authorization"] = f"Bearer {session['token']}"
        while True:
            started = time.perf_counter()
            answer = await client.post("/api/leases")
            latencies.append(time.perf_counter() - started)
            statuses[answer.status_code] += 1
            if answer.status_code != 200:
                return
            lease = answer.json()["lease"]
            voted = await client.post(f"/api/leases/{lease}/vote", json={"choice": "left", "seconds": 1})
            statuses[voted.status_code] += 1


async def run(base: str, links: list[str]) -> dict[str, Any]:
    """All raters at once."""
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    started = time.perf_counter()
    await asyncio.gather(*(rate(base, link, latencies, statuses) for link in links))
    elapsed = time.perf_counter() - started
    quantiles = statistics.quantiles(latencies, n=100)
    return {
        "seconds": round(elapsed, 1),
        "leases_per_s": round(len(latencies) / elapsed, 1),
        "p50_ms": round(quantiles[49] * 1000, 1),
        "p99_ms": round(quantiles[98] * 1000, 1),
        "statuses": dict(statuses),
    }


def main() -> None:
    """Prints one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--raters", type=int, default=50)
    parser.add_argument("--items", type=int, default=2_000)
    wish = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ratchet-benchmark-") as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", Path(folder) / "owner.password")
        server.start()
        try:
            print(json.dumps(measure(server, wish.raters, wish.items), indent=2))
        finally:
            server.stop(immediate=True)


def measure(server: EmbeddedPostgres, raters: int, items: int) -> dict[str, Any]:
    """Serves the application and lets the raters loose."""
    migrate(server.owner_url)
    urls = provision_logins(server.owner_url, {})
    with psycopg.connect(server.owner_url) as connection:
        connection.execute(ITEMS, (WANTED, items))
    engine = open_engine(urls[Role.OPERATOR], application="benchmark", pool_size=1)
    with session_scope(engine) as session:
        for number in range(raters):
            add_rater(session, f"rater {number}", "preference", 1_000_000)
        links = [make_link(session, f"rater {number}", now=datetime.now(UTC))[0] for number in range(raters)]
    engine.dispose()
    port = "38973"
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "feedback.app:create_app", "--factory", "--port", port,
         "--no-access-log", "--log-level", "warning"],
        env={**os.environ, "RATCHET_DATABASE_URL": urls[Role.FEEDBACK], "RATCHET_BROKER_URL": "memory://"},
    )  # fmt: skip
    try:
        base = f"http://127.0.0.1:{port}"
        wait_for(f"{base}/readyz")
        found = asyncio.run(run(base, links))
    finally:
        process.terminate()
        process.wait()
    with psycopg.connect(server.owner_url) as connection:
        checks = {name: connection.execute(query).fetchall()[0][0] for name, query in CHECKS.items()}
    return {"raters": raters, "items": items, "wanted": WANTED, **found, **checks}


def wait_for(url: str) -> None:
    """Returns when the application answers."""
    transport = httpx.HTTPTransport(retries=20)
    with httpx.Client(transport=transport, timeout=60) as client:
        client.get(url).raise_for_status()


if __name__ == "__main__":
    main()
