"""Which process exactly: a number is used again one day, a number and its start together are not."""

from dataclasses import dataclass

import psutil

_SAME_START_S = 1.0


@dataclass(frozen=True)
class Identity:
    """A process, living or gone.

    Attributes:
        pid: Its number.
        started: Unix time of its start, in seconds.
    """

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "Identity":
        """The identity of a living process.

        Raises:
            psutil.NoSuchProcess: It is gone.
        """
        return cls(pid, psutil.Process(pid).create_time())

    @classmethod
    def parse(cls, text: str) -> "Identity | None":
        """Reads what `str` wrote; None of anything else."""
        try:
            pid, started = text.split()
            return cls(int(pid), float(started))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"

    def is_alive(self) -> bool:
        """Whether this very process lives; a zombie does not."""
        try:
            process = psutil.Process(self.pid)
            return self._is(process) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def number_was_given_away(self) -> bool:
        """Whether another process has the number by now."""
        try:
            return not self._is(psutil.Process(self.pid))
        except psutil.NoSuchProcess:
            return False

    def _is(self, process: psutil.Process) -> bool:
        return abs(process.create_time() - self.started) <= _SAME_START_S
