"""Who may go on now: limits of each key at once, the process's own limit through a first-come queue.

Limits hold for each gateway process by itself.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from gateway.errors import ApiError, unavailable
from gateway.keys_cache import KnownKey
from gateway.metrics import Metrics

BUSY_RETRY_S = 1.0


class RateLimit:
    """A token bucket: `per_minute` requests at once after a rest, refilled evenly."""

    __slots__ = ("_at", "_left", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._at = now

    def take(self, now: float) -> float:
        """Takes one if there is one.

        Returns:
            0, or the seconds until there is one.
        """
        pace = self.per_minute / 60
        self._left = min(self.per_minute, self._left + (now - self._at) * pace)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / pace


class Admission:
    """Places for requests in flight."""

    def __init__(self, places: int, max_queue: int, queue_timeout_s: float, metrics: Metrics) -> None:
        self._places = places
        self._free = places
        self._max_queue = max_queue
        self._queue_timeout_s = queue_timeout_s
        self._metrics = metrics
        self._queue: deque[asyncio.Future[None]] = deque()
        self._rates: dict[UUID, RateLimit] = {}
        self._in_flight: Counter[UUID] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def half_taken(self) -> bool:
        """Whether half of the places are taken, or somebody waits."""
        return self._free * 2 <= self._places or bool(self._queue)

    async def drained(self) -> None:
        """Waits until no request has a place or waits for one."""
        await self._empty.wait()

    @asynccontextmanager
    async def place(self, key: KnownKey) -> AsyncGenerator[float]:
        """A place for one request of a key; gives the seconds it was waited for.

        Raises:
            ApiError: 429 over a limit of the key; 503 when the queue is full or the wait too long.
        """
        self._check_rate(key)
        if key.concurrency is not None and self._in_flight[key.id] >= key.concurrency:
            raise ApiError(
                429, "concurrency_limit_exceeded",
                f"this key may have {key.concurrency} requests in flight",
                retry_after_s=BUSY_RETRY_S,
            )  # fmt: skip
        self._in_flight[key.id] += 1
        self._empty.clear()
        try:
            waited_s = await self._wait_for_place()
            self._metrics.began()
            try:
                yield waited_s
            finally:
                self._metrics.left()
                self._give_back()
        finally:
            self._in_flight[key.id] -= 1
            if not self._in_flight[key.id]:
                del self._in_flight[key.id]
            if not self._in_flight:
                self._empty.set()

    def _check_rate(self, key: KnownKey) -> None:
        if key.rpm is None:
            return
        now = time.monotonic()
        limit = self._rates.get(key.id)
        if limit is None or limit.per_minute != key.rpm:
            limit = self._rates[key.id] = RateLimit(key.rpm, now)
        wait_s = limit.take(now)
        if wait_s:
            raise ApiError(
                429, "rate_limit_exceeded", f"this key may send {key.rpm} requests a minute",
                retry_after_s=wait_s,
            )  # fmt: skip

    async def _wait_for_place(self) -> float:
        if self._free:
            self._free -= 1
            return 0.0
        if len(self._queue) >= self._max_queue:
            raise unavailable(
                "queue_full", f"all places are taken and {len(self._queue)} requests wait already",
                retry_after_s=BUSY_RETRY_S, refused=True,
            )  # fmt: skip
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._metrics.queued(1)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await self._turn(turn)
        except TimeoutError:
            raise unavailable(
                "queue_timeout", f"no place became free within {self._queue_timeout_s:g} s",
                retry_after_s=BUSY_RETRY_S, refused=True,
            ) from None  # fmt: skip
        finally:
            self._metrics.queued(-1)
        waited_s = time.monotonic() - began
        self._metrics.waited(waited_s)
        return waited_s

    async def _turn(self, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._queue.remove(turn)
            else:
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
