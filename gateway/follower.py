"""Follows the rows: a snapshot at each NOTIFY, and at each poll in case one was missed."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy.exc import SQLAlchemyError

from gateway.snapshot import Snapshot, SnapshotReader
from gateway.switch import LOOK_EVERY_S, OfflineSwitch
from ratchet.db.engine import CONNECT_TIMEOUT_S, libpq_url
from ratchet.errors import RatchetError
from ratchet.logs import get_logger
from ratchet.plan import PLAN_COLUMNS, parse_plan

CHANNEL = "ratchet_gateway"
SETTLE_S = 0.01
"""Changes that come together are read together."""

MARK = """
    SELECT (SELECT max(version) FROM serving.traffic_plan),
           (SELECT (count(*), count(revoked_at))::text FROM serving.api_key),
           (SELECT string_agg((id, policy, managed, desired, state, url, fingerprint, last_error)::text,
                              '' ORDER BY id) FROM registry.engine)
"""
"""What differs when a snapshot would, read in a fraction of the time a snapshot takes."""
NEWER_PLANS = f"""
    SELECT {", ".join(PLAN_COLUMNS)} FROM serving.traffic_plan WHERE version > %s ORDER BY version
"""  # noqa: S608

log = get_logger(__name__)


class Follower:
    """Keeps the newest snapshot; while the database is away the last one stays.

    Attributes:
        snapshot: The newest; empty before the first.
        loaded: Whether there ever was one.
        trouble: Why the rows cannot be read; None when they can.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        url: str,
        poll_s: float,
        switch: OfflineSwitch,
        on_change: Callable[[Snapshot], None],
    ) -> None:
        self._reader = reader
        self._url = libpq_url(url)
        self._poll_s = poll_s
        self._switch = switch
        self._on_change = on_change
        self._rows = Snapshot()
        self._read_at = time.monotonic()
        self._mark: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self.snapshot = Snapshot()
        self.loaded = False
        self.trouble: str | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the rows were last looked at."""
        return time.monotonic() - self._read_at

    async def start(self) -> None:
        """Reads once, then follows in the background; a database that is away is waited for."""
        self._switch.look()
        await self._refresh()
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._watch_switch())]

    async def stop(self) -> None:
        """Ends following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    application_name="ratchet-gateway-follower",
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._mark = None
                    while True:
                        await self._look(connection)
                        await self._wait(connection)
            await self._refresh()
            await asyncio.sleep(self._poll_s)

    async def _look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        mark = await (await connection.execute(MARK)).fetchone()
        if self.trouble is None and mark == self._mark:
            self._read_at = time.monotonic()
            return
        await self._refresh()
        self._mark = mark

    async def _wait(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Returns when something was notified, or it is time to look anyway.

        What was notified during a query is no longer in the socket, so it is asked for before waiting.
        """
        told = await self._told(connection)
        if not told:
            await self._readable(connection)
            told = await self._told(connection)
        if told:
            await asyncio.sleep(SETTLE_S)
            await self._told(connection)

    async def _readable(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Returns when the server has said something, or after the poll's time."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        descriptor = connection.fileno()
        loop.add_reader(descriptor, readable.set)
        try:
            async with asyncio.timeout(self._poll_s):
                await readable.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(descriptor)

    async def _told(self, connection: psycopg.AsyncConnection[Any]) -> set[str]:
        """What was notified of. New plans are followed at once; what the mark may not show is to be read."""
        payloads = {notified.payload async for notified in connection.notifies(timeout=0)}
        if payloads - {"engine"}:
            self._mark = None
        if "traffic_plan" in payloads:
            await self._follow_plans(connection)
        return payloads

    async def _follow_plans(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Takes new plans over where every policy they name is known: an abort waits for nothing else."""
        plans = dict(self._rows.plans)
        newest = max((plan.version for plan in plans.values()), default=0)
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(NEWER_PLANS, (newest,))
            fresh = [parse_plan(row) for row in await cursor.fetchall()]
        fresh = [plan for plan in fresh if set(plan.policies) <= self._rows.policies.keys()]
        if fresh and self.loaded:
            self._rows = replace(self._rows, plans={**plans, **{plan.model: plan for plan in fresh}})
            self._take(first=False)

    async def _refresh(self) -> None:
        try:
            snapshot = await asyncio.to_thread(self._reader.read)
        except (RatchetError, SQLAlchemyError) as error:
            reason = str(error).splitlines()[0]
            if self.trouble != reason:
                log.warning("rows cannot be read; the last ones stay", reason=reason, loaded=self.loaded)
            self.trouble = reason
            return
        if self.trouble is not None:
            log.info("rows can be read again")
        self.trouble = None
        self._read_at = time.monotonic()
        self._rows = snapshot
        self._take(first=not self.loaded)

    async def _watch_switch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._switch.look() and self.loaded:
                self._take(first=False)

    def _take(self, *, first: bool) -> None:
        """Serves by the rows from now on, but for what the host's switch says."""
        snapshot = self._switch.apply(self._rows)
        changed = first or snapshot != self.snapshot
        self.snapshot = snapshot
        self.loaded = True
        if changed:
            self._on_change(snapshot)
