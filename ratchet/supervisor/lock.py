"""One stack for each data folder: a lock that the kernel gives back when its holders are gone."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ratchet.errors import AlreadyRunning
from ratchet.home import Home
from ratchet.supervisor.identity import Identity

CLEAN_UP_TIMEOUT_S = 30.0
_POLL_S = 0.1


def lock_file(home: Home) -> Path:
    """Where the lock of a data folder lies while a stack runs there."""
    return home.run / "lock"


def holder(home: Home) -> Identity | None:
    """The living process that runs a stack on this data folder, if there is one."""
    try:
        found = Identity.parse(lock_file(home).read_text())
    except FileNotFoundError:
        return None
    return found if found is not None and found.is_alive() else None


@contextmanager
def hold(home: Home) -> Generator[int]:
    """Holds the data folder, and yields the lock's descriptor.

    A janitor that inherits the descriptor keeps the folder held while it ends what a killed stack left; the
    next stack waits for it.

    Raises:
        AlreadyRunning: A living stack holds it; the message names its process.
    """
    descriptor = _acquire(home)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(Identity.of(os.getpid())).encode(), 0)
        yield descriptor
    finally:
        lock_file(home).unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(home: Home) -> int:
    deadline = time.monotonic() + CLEAN_UP_TIMEOUT_S
    while True:
        descriptor = os.open(lock_file(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            if _is_in_place(descriptor, lock_file(home)):
                return descriptor
            os.close(descriptor)
            continue
        living = holder(home)
        if living is not None:
            raise AlreadyRunning(
                f"a stack already runs on {home.root} (process {living.pid}): stop it with "
                f"`kill {living.pid}`, or give another --data-dir"
            )
        if time.monotonic() > deadline:
            raise AlreadyRunning(
                f"what a killed stack left on {home.root} is still being ended: "
                f"see who holds {lock_file(home)} (`fuser {lock_file(home)}`)"
            )
        time.sleep(_POLL_S)


def _is_in_place(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
