"""One engine: the process behind one row of `registry.engine`, and what the row says of it."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from ratchet.errors import ConfigError, PolicyRefused
from ratchet.home import Home
from ratchet.supervisor import folder, ports, vllm
from ratchet.supervisor.backoff import Backoff
from ratchet.supervisor.child import Child, Command
from ratchet.supervisor.settings import SupervisorSettings
from ratchet.supervisor.show import Show

HEALTH_TIMEOUT_S = 2.0
LOOK_WHILE_STARTING_S = 0.5
LOOK_WHILE_UP_S = 5.0
MISSES_UNTIL_HUNG = 6
CRASHES_UNTIL_FAILED = 5
"""Crashes in a row, none of them healthy first, after which a row says `failed`; it is still retried."""
GRACE_S = 4.0
HEALTHY = 200


class State(StrEnum):
    """What a managed row says."""

    WAITING = "waiting"
    """Not looked at yet."""
    STARTING = "starting"
    """A process loads the policy; its address and fingerprint stand in the row."""
    UP = "up"
    """It said it is healthy; gateways may prove it."""
    BACKOFF = "backoff"
    """It died, and will be started again; `last_error` says why."""
    FAILED = "failed"
    """As `backoff`, where only a person can help; retried once a minute."""
    STOPPED = "stopped"
    """Not wanted, or the stack is down."""


@dataclass(frozen=True)
class Workshop:
    """What every engine of a stack is made with.

    Attributes:
        home: The data folder.
        settings: The operator's.
        api_key: Key between gateways and engines.
        show: Where its fate is told.
        health: Client that asks engines how they are.
        cores: Chooses cores for an engine that starts now.
        write: Writes columns of a row, in a transaction of its own; raises when the database is away.
        changed: Called when a process was started or has died.
    """

    home: Home
    settings: SupervisorSettings
    api_key: str
    show: Show
    health: httpx.Client
    cores: Callable[[], list[int]]
    write: Callable[[UUID, dict[str, Any]], None]
    changed: Callable[[], None]


@dataclass(frozen=True)
class Wanted:
    """A managed row that is desired `up`.

    Attributes:
        row: Its id.
        policy: `name@version`.
        folder: The policy's artefact.
        context: The policy's context in tokens.
        restarts: How often it was restarted so far.
    """

    row: UUID
    policy: str
    folder: Path
    context: int
    restarts: int


class Engine:
    """Starts, watches and restarts one engine. Its row is told first, so that it never claims too much."""

    def __init__(self, wanted: Wanted, shop: Workshop) -> None:
        self.policy = wanted.policy
        self.child: Child | None = None
        self.state = State.WAITING
        self.cores: list[int] = []
        self.refusal: str | None = None
        self._row = wanted.row
        self._folder = wanted.folder
        self._context = wanted.context
        self._restarts = wanted.restarts
        self._shop = shop
        self._backoff = Backoff()
        self._boot_at = 0.0
        self._look_at = 0.0
        self._misses = 0
        self._url = ""
        self._unsaid: dict[str, Any] | None = None

    def tick(self) -> None:
        """One look, and the step it asks for.

        Raises:
            DatabaseUnavailable: The row could not be told; the same step is tried again at the next tick.
        """
        if self._unsaid is not None:
            self._shop.write(self._row, self._unsaid)
            self._unsaid = None
        if self.child is None:
            if time.monotonic() >= self._boot_at:
                self._boot()
        elif self.child.has_ended():
            self._died(self.child.why())
        elif time.monotonic() >= self._look_at:
            self._look(self.child)

    def stopped(self) -> None:
        """Tells the row that its process was ended on purpose."""
        self.child = None
        self.state = State.STOPPED
        self._shop.write(self._row, {"state": State.STOPPED, "pid": None, "url": None, "fingerprint": None})

    def _boot(self) -> None:
        version = self.policy.rpartition("@")[2]
        name = f"engine-{self.policy}-{self._row.hex[-4:]}"
        boot = vllm.Boot(
            folder=self._folder,
            served=self.policy,
            context=self._context,
            port=ports.free_port(vllm.HOST),
            fingerprint=f"rt-{version}-{secrets.token_hex(4)}",
            cores=tuple(self._shop.cores()),
            api_key=self._shop.api_key,
        )
        try:
            folder.check(self._folder)
            command = Command(
                name=name,
                argv=vllm.command(boot, self._shop.settings),
                env=vllm.variables(boot, self._shop.settings),
                cwd=self._shop.home.run,
                log=self._shop.home.logs / f"{name}.log",
                grace_s=GRACE_S,
            )
        except (PolicyRefused, ConfigError) as error:
            self.refusal = str(error)
            self._wait_again(str(error))
            return
        self.refusal = None
        self._url = f"http://{vllm.HOST}:{boot.port}"
        told = {"state": State.STARTING, "url": self._url, "fingerprint": boot.fingerprint, "pid": None}
        self._shop.write(self._row, told)
        self.state = State.STARTING
        try:
            self.child = Child(command)
        except OSError as error:
            self._died(f"cannot be started: {error}")
            return
        self.cores = list(boot.cores)
        self._misses = 0
        self._unsaid = {"pid": self.child.pid}
        self._shop.changed()
        self._shop.show.wait("engine", f"{self.policy} is loading at {self._url} (log: {command.log})")

    def _look(self, child: Child) -> None:
        healthy = self._is_healthy()
        if self.state is State.STARTING:
            self._look_at = time.monotonic() + LOOK_WHILE_STARTING_S
            if healthy:
                self.state = State.UP
                self._unsaid = {"state": State.UP, "last_error": None}
                self._shop.show.done("engine", f"{self.policy} is up after {child.lived_s():.0f} s")
            elif child.lived_s() > self._shop.settings.engine_start_timeout_s:
                self._died(f"not healthy after {self._shop.settings.engine_start_timeout_s:.0f} s")
            return
        self._look_at = time.monotonic() + LOOK_WHILE_UP_S
        self._misses = 0 if healthy else self._misses + 1
        if self._misses >= MISSES_UNTIL_HUNG:
            self._died(f"no answer from {self._url}/health, {self._misses} times in a row")

    def _is_healthy(self) -> bool:
        try:
            return self._shop.health.get(f"{self._url}/health").status_code == HEALTHY
        except httpx.TransportError:
            return False

    def _died(self, reason: str) -> None:
        if self.child is not None:
            if self.state is State.UP:
                self._backoff.lived(self.child.lived_s())
            self.child.kill()
            self.child = None
            self._shop.changed()
        self._restarts += 1
        self._wait_again(reason)

    def _wait_again(self, reason: str) -> None:
        hopeless = self.refusal is not None or self._backoff.failures >= CRASHES_UNTIL_FAILED
        self.state = State.FAILED if hopeless else State.BACKOFF
        delay = self._backoff.longest if self.refusal is not None else self._backoff.next()
        self._boot_at = time.monotonic() + delay
        self.cores = []
        self._unsaid = {
            "state": self.state, "pid": None, "restarts": self._restarts, "last_error": reason
        }  # fmt: skip
        self._shop.show.trouble("engine", f"{self.policy}: {reason}; again in {delay:.1f} s")
