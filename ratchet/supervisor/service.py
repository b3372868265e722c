"""A process of the stack that is not an engine: kept running, restarted with back-off."""

import time
from collections.abc import Callable

from ratchet.supervisor.backoff import Backoff
from ratchet.supervisor.child import Child, Command
from ratchet.supervisor.show import Show

REFUSES = 2
"""Exit code of a process of ours that was given something it cannot work with."""


class Service:
    """A gateway, a web application or a worker.

    Attributes:
        command: What it runs, each time.
        child: The process; None while it waits for its next start.
        refusal: How it last ended with the exit code `REFUSES`, if it did.
    """

    def __init__(self, command: Command, show: Show, changed: Callable[[], None]) -> None:
        """Nothing is started yet.

        Args:
            command: What to run, each time.
            show: Where its deaths are told.
            changed: Called after each start and each death.
        """
        self.command = command
        self.child: Child | None = None
        self.refusal: str | None = None
        self._show = show
        self._changed = changed
        self._backoff = Backoff()
        self._start_at = 0.0

    def tick(self) -> None:
        """Starts it when it is time, and notices its death."""
        if self.child is not None and self.child.has_ended():
            if self.child.exit_code() == REFUSES:
                self.refusal = self.child.why()
            self._backoff.lived(self.child.lived_s())
            delay = self._backoff.next()
            self._start_at = time.monotonic() + delay
            self._show.trouble(
                self.command.name, f"{self.child.why()}; again in {delay:.1f} s (log: {self.command.log})"
            )
            self.child.kill()
            self.child = None
            self._changed()
        if self.child is None and time.monotonic() >= self._start_at:
            self._start()

    def _start(self) -> None:
        try:
            self.child = Child(self.command)
        except OSError as error:
            delay = self._backoff.next()
            self._start_at = time.monotonic() + delay
            self._show.trouble(self.command.name, f"cannot be started: {error}; again in {delay:.1f} s")
        else:
            self._changed()
