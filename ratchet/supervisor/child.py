"""One process of the stack: its own session and log, gone when we are gone, ended as a whole."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.supervisor import leash
from ratchet.supervisor.identity import Identity
from ratchet.supervisor.words import last_words

LOG_LIMIT = 64 << 20
_POLL_S = 0.05


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
        name: How people and logs call it.
        argv: Program and arguments.
        env: Its whole environment.
        cwd: Its working folder.
        log: File its output is added to.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    grace_s: float = 3.0


class Child:
    """A started process, leader of its own session and process group.

    It must be started from the main thread: the kernel ties the parent-death signal to the thread.
    """

    def __init__(self, command: Command) -> None:
        """Starts it.

        Raises:
            OSError: The system has no room for another process, or for its log.
        """
        self.command = command
        trim_log(command.log)
        with command.log.open("ab") as log:
            self._log_begins = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command.argv],
                env=dict(command.env),
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.began = time.monotonic()
        self.identity = Identity.of(self._process.pid)

    @property
    def pid(self) -> int:
        """Its number, which is also its group's."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it ended."""
        return self._process.poll() is not None

    def exit_code(self) -> int | None:
        """Its exit code (minus the signal that ended it); None while it runs."""
        return self._process.poll()

    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.began

    def why(self) -> str:
        """How it ended, with what it last said."""
        code = self._process.poll()
        if code is None:
            how = "still running"
        elif code < 0:
            how = f"ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            how = f"ended with code {code}"
        said = last_words(self.command.log, self._log_begins, errors_only=code is not None and code < 0)
        return f"{how}: {said}" if said else how

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the process, which ends its own children in its own order."""
        if not self.has_ended():
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the whole group at once, also what outlived its leader."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def end_all(children: Iterable[Child], hurry: Callable[[], bool] = lambda: False) -> None:
    """Ends children together: SIGTERM, the longest grace among them, then SIGKILL to each whole group.

    Args:
        children: Those to end.
        hurry: Asked all the time; once true, nobody is waited for.
    """
    ending = list(children)
    for child in ending:
        child.ask_to_end()
    deadline = time.monotonic() + max((child.command.grace_s for child in ending), default=0.0)
    while time.monotonic() < deadline and not hurry() and not all(child.has_ended() for child in ending):
        time.sleep(_POLL_S)
    for child in ending:
        child.kill()


def trim_log(log: Path, limit: int = LOG_LIMIT) -> None:
    """Moves a log that grew past the limit to `<name>.1`, in a way its writer need not know of.

    Where there is no room for two, the old lines go.
    """
    if log.exists() and log.stat().st_size > limit:
        with contextlib.suppress(OSError):
            shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
