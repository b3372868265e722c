"""Ends what `ratchet up` leaves when it is killed: waits for that, then ends every process and PostgreSQL.

It inherits the data folder's lock, so that the next stack waits until it is done.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from ratchet.home import Home

MODULE = "ratchet.supervisor.janitor"


class Janitor:
    """The waiting process, seen from `ratchet up`."""

    def __init__(self, home: Home, lock: int, environment: dict[str, str]) -> None:
        self._home = home
        self._lock = lock
        self._environment = environment
        self._process = self._start()

    def __enter__(self) -> "Janitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def keep(self) -> None:
        """Starts another one if it died."""
        if self._process.poll() is not None:
            self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._home.logs / "janitor.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", MODULE, str(self._home.root)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
                pass_fds=(self._lock,),
                start_new_session=True,
                env=self._environment,
            )


def main() -> None:
    """Waits for the end of standard input, which comes when `ratchet up` ends, however it ends."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.read()
    home = Home(Path(sys.argv[1]))
    if not (home.run / "stack.json").exists():
        return
    from ratchet.supervisor.database import embedded_at
    from ratchet.supervisor.state import load, sweep

    left = load(home)
    ended = sweep(home)
    if left is not None and left.embedded:
        embedded_at(home).stop()
    sys.stdout.write(
        f"stack {left and left.supervisor.pid} was killed; ended {', '.join(ended) or 'nothing'}\n"
    )


if __name__ == "__main__":
    main()
