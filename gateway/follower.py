"""Follows the rows: a snapshot at each NOTIFY, and at each poll in case one was missed."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from gateway.snapshot import Snapshot, SnapshotReader
from ratchet.db.engine import CONNECT_TIMEOUT_S, libpq_url
from ratchet.errors import RatchetError
from ratchet.logs import get_logger

CHANNEL = "ratchet_gateway"
SETTLE_S = 0.01
"""Changes that come together are read together."""

log = get_logger(__name__)


class Follower:
    """Keeps the newest snapshot; while the database is away the last one stays.

    Attributes:
        snapshot: The newest; empty before the first.
        loaded: Whether there ever was one.
        trouble: Why the last read failed; None when it did not.
    """

    def __init__(
        self, reader: SnapshotReader, url: str, poll_s: float, on_change: Callable[[Snapshot], None]
    ) -> None:
        self._reader = reader
        self._url = libpq_url(url)
        self._poll_s = poll_s
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._read_at = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self.snapshot = Snapshot()
        self.loaded = False
        self.trouble: str | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the rows were last read."""
        return time.monotonic() - self._read_at

    async def start(self) -> None:
        """Reads once, then follows in the background; a database that is away is waited for."""
        await self._refresh()
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        """Ends following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._poll_s)
                await asyncio.sleep(SETTLE_S)
            self._wake.clear()
            await self._refresh()

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
        changed = not self.loaded or snapshot != self.snapshot
        self.snapshot = snapshot
        self.loaded = True
        if changed:
            self._on_change(snapshot)

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    application_name="ratchet-gateway-listen",
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._wake.set()
                    async for _ in connection.notifies():
                        self._wake.set()
            await asyncio.sleep(self._poll_s)
