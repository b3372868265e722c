"""What a running stack says of itself on disk: addresses for people, processes for whoever must end them."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ratchet.home import Home
from ratchet.supervisor.child import Child
from ratchet.supervisor.identity import Identity
from ratchet.supervisor.show import Show

SWEEP_GRACE_S = 5.0
_POLL_S = 0.05
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class StackState:
    """The file `run/stack.json`; it exists while a stack runs, and after one was killed.

    Attributes:
        supervisor: The process of `ratchet up`.
        boot: Which boot of the machine the process numbers belong to.
        addresses: Service to URL.
        processes: Name to leader of a process group of its own.
        embedded: Whether the stack runs the embedded PostgreSQL.
    """

    supervisor: Identity
    boot: str
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    processes: dict[str, Identity] = field(default_factory=dict[str, Identity])
    embedded: bool = False

    def document(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "supervisor": vars(self.supervisor),
            "boot": self.boot,
            "addresses": self.addresses,
            "processes": {name: vars(identity) for name, identity in self.processes.items()},
            "embedded": self.embedded,
        }


class StateFile:
    """The file as the running stack keeps it."""

    def __init__(self, home: Home, show: Show, *, embedded: bool) -> None:
        self._home = home
        self._show = show
        self._state = StackState(Identity.of(os.getpid()), boot_id(), embedded=embedded)
        self._children: Callable[[], Mapping[str, Child]] = dict
        self.save()

    def describe(self, addresses: dict[str, str], children: Callable[[], Mapping[str, Child]]) -> None:
        """Adds addresses, and where to ask for the processes that run."""
        self._state.addresses = addresses
        self._children = children

    def save(self) -> None:
        """Writes what is so now; called after each start and each death of a process.

        A disk without room does not end a stack that serves.
        """
        self._state.processes = {name: child.identity for name, child in self._children().items()}
        try:
            save(self._home, self._state)
        except OSError as error:
            self._show.trouble("state", f"{state_file(self._home)} cannot be written: {error.strerror}")

    def remove(self) -> None:
        """Everything was stopped."""
        state_file(self._home).unlink(missing_ok=True)


def state_file(home: Home) -> Path:
    """Where a stack describes itself."""
    return home.run / "stack.json"


def boot_id() -> str:
    """Changes with each boot of the machine; empty where the system has no such word."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def save(home: Home, state: StackState) -> None:
    """Writes the file in one step."""
    temporary = state_file(home).with_suffix(".tmp")
    temporary.write_text(json.dumps(state.document(), indent=2) + "\n")
    temporary.replace(state_file(home))


def load(home: Home) -> StackState | None:
    """The state of the stack on this data folder; None when none runs or was killed."""
    try:
        document = json.loads(state_file(home).read_text())
    except FileNotFoundError:
        return None
    return StackState(
        supervisor=Identity(**document["supervisor"]),
        boot=document["boot"],
        addresses=document["addresses"],
        processes={name: Identity(**found) for name, found in document["processes"].items()},
        embedded=document["embedded"],
    )


def sweep(home: Home, grace_s: float = SWEEP_GRACE_S) -> list[str]:
    """Ends every process that a killed stack left, and forgets that stack.

    Args:
        home: Its data folder; the caller holds the lock.
        grace_s: Seconds between SIGTERM and SIGKILL.

    Returns:
        Names of the processes that were still there.
    """
    left = load(home)
    if left is None:
        return []
    found: list[str] = []
    if left.boot == boot_id():
        groups = {
            identity.pid: name
            for name, identity in left.processes.items()
            if identity.pid > 0 and not identity.number_was_given_away()
        }
        members = {process: _session(process.pid) for process in psutil.process_iter()}
        members = {process: session for process, session in members.items() if session in groups}
        found = sorted({groups[session] for session in members.values()})
        _end(list(members), grace_s)
    state_file(home).unlink(missing_ok=True)
    return found


def _session(pid: int) -> int:
    """The session of a process; 0 where it is gone, or its session began outside of this container."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _end(processes: list[psutil.Process], grace_s: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in _living_after(processes, grace_s):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _living_after(processes, grace_s)


def _living_after(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while True:
        living = [process for process in processes if _lives(process)]
        if not living or time.monotonic() > deadline:
            return living
        time.sleep(_POLL_S)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
