"""Ends a wait for an engine that is silent for too long, with one timer an answer and not one a read."""

import asyncio
from collections.abc import Callable


class Silence:
    """Measures waits; only time spent waiting counts, not time in which nobody listens.

    Attributes:
        broken: A wait took too long, and was ended.
    """

    __slots__ = ("_end", "_limit_s", "_loop", "_since", "_timer", "broken")

    def __init__(self, limit_s: float, end: Callable[[], None]) -> None:
        """Args:
        limit_s: Seconds a wait may take.
        end: Makes a wait that takes longer fail; called once.
        """
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._end = end
        self._since: float | None = None
        self._timer = self._loop.call_later(limit_s, self._look)
        self.broken = False

    def begins(self) -> None:
        """A wait begins."""
        self._since = self._loop.time()

    def ends(self) -> None:
        """It is over."""
        self._since = None

    def stop(self) -> None:
        """Nobody will wait any more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        waited = 0.0 if self._since is None else now - self._since
        if waited >= self._limit_s:
            self.broken = True
            self._end()
            return
        self._timer = self._loop.call_at(now + self._limit_s - waited, self._look)
