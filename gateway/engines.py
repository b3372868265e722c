"""The engines of each policy: which are proved, and which of those has the least to do.

unproved --> proving --> proved
    ^           |  |        |
    |  no answer|  |refuted |  connection lost, restarted
    +-----------+  v        |
    ^         suspended <---+  an answer with another fingerprint
    |             |
    +-- retry ----+
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from gateway.snapshot import EngineSpec, Snapshot

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
PROOF_GRACE_S = 5.0
"""A request is held so long for a proof that is under way."""


class EngineState(StrEnum):
    """How far an engine is trusted."""

    ABSENT = "absent"
    """Nothing to talk to: it is starting, backing off, or has no address."""
    UNPROVED = "unproved"
    """Reachable as far as its row says; a proof is due."""
    PROVING = "proving"
    PROVED = "proved"
    """Takes traffic."""
    SUSPENDED = "suspended"
    """It was seen not to be the policy it claims to be; a proof is due after a while."""


AWAITING = (EngineState.UNPROVED, EngineState.SUSPENDED)
"""States in which a proof is due, now or after a while."""


@dataclass(eq=False, slots=True)
class PooledEngine:
    """One engine as this process sees it.

    Attributes:
        spec: Its row.
        state: How far it is trusted.
        proved_fingerprint: What its answers must carry while it is proved.
        context_length: Tokens of prompt and answer together, as it reported at its proof.
        reason: Why it takes no traffic.
        in_flight: Requests of ours it is answering.
        failures: Proofs that failed in a row.
        due_at: Monotonic time of the next proof.
        boot: Counts its restarts as far as seen: what was begun in an earlier boot decides nothing.
    """

    spec: EngineSpec
    state: EngineState = EngineState.UNPROVED
    proved_fingerprint: str | None = None
    context_length: int | None = None
    reason: str | None = "not proved yet"
    in_flight: int = 0
    failures: int = 0
    due_at: float = field(default_factory=time.monotonic)
    boot: int = 0

    @property
    def id(self) -> UUID:
        """Its row's id."""
        return self.spec.id

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.spec.url or ""


class EnginePool:
    """Every wanted engine. Not thread-safe: it lives on the event loop."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Args:
        on_change: Called when a proof may be due or is no longer needed.
        """
        self._engines: dict[UUID, PooledEngine] = {}
        self._by_policy: dict[str, list[PooledEngine]] = {}
        self._on_change = on_change
        self._news = asyncio.Event()

    def engines(self) -> list[PooledEngine]:
        """All of them."""
        return list(self._engines.values())

    def of_policy(self, policy: str) -> list[PooledEngine]:
        """Those of one policy."""
        return self._by_policy.get(policy, [])

    def follow(self, snapshot: Snapshot) -> None:
        """Takes over the rows: new engines are to be proved, restarted ones again."""
        wanted = {spec.id: spec for spec in snapshot.engines}
        for gone in self._engines.keys() - wanted.keys():
            engine = self._engines.pop(gone)
            self._lose(engine, EngineState.ABSENT, "no longer wanted")
        for spec in wanted.values():
            known = self._engines.get(spec.id)
            if known is None:
                known = self._engines[spec.id] = PooledEngine(spec)
                known.state = EngineState.ABSENT
            self._update(known, spec)
        grouped: defaultdict[str, list[PooledEngine]] = defaultdict(list)
        for engine in self._engines.values():
            grouped[engine.spec.policy].append(engine)
        self._by_policy = dict(grouped)
        self._tell()

    def pick(self, policy: str, avoid: Collection[UUID] = ()) -> PooledEngine | None:
        """The proved engine of a policy with the fewest requests in flight."""
        proved = [
            engine
            for engine in self.of_policy(policy)
            if engine.state is EngineState.PROVED and engine.id not in avoid
        ]
        return min(proved, key=lambda engine: engine.in_flight, default=None)

    async def settled(self, policy: str) -> None:
        """Waits while no engine of a policy is proved but a proof is under way, 5 s at most."""
        if self.is_served(policy):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROOF_GRACE_S):
                while not self.is_served(policy) and self._is_being_proved(policy):
                    await self._news.wait()

    def is_served(self, policy: str) -> bool:
        """Whether at least one engine of this policy is proved."""
        return any(engine.state is EngineState.PROVED for engine in self.of_policy(policy))

    def room(self, policy: str) -> int | None:
        """Context length every proved engine of a policy has; None when none said."""
        lengths = [
            engine.context_length
            for engine in self.of_policy(policy)
            if engine.state is EngineState.PROVED and engine.context_length
        ]
        return min(lengths, default=None)

    def why_not(self, policy: str) -> str:
        """Why no engine of a policy takes traffic."""
        engines = self.of_policy(policy)
        if not engines:
            return "no engine is wanted for it"
        return "; ".join(f"engine {engine.id} is {describe(engine)}" for engine in engines)

    def due(self, now: float) -> list[PooledEngine]:
        """Engines whose proof is due."""
        return [engine for engine in self.engines() if engine.state in AWAITING and engine.due_at <= now]

    def next_due(self) -> float | None:
        """Monotonic time of the next proof; None when none is to come."""
        return min((engine.due_at for engine in self.engines() if engine.state in AWAITING), default=None)

    def begin_proof(self, engine: PooledEngine) -> int:
        """Marks a proof as begun.

        Returns:
            The boot it speaks of; to be given back with its outcome.
        """
        engine.state = EngineState.PROVING
        return engine.boot

    def prove(
        self, engine: PooledEngine, boot: int, fingerprint: str | None, context_length: int | None
    ) -> bool:
        """The proof held: the engine takes traffic, unless it restarted meanwhile.

        Returns:
            Whether it takes traffic.
        """
        if engine.boot != boot or engine.state is not EngineState.PROVING:
            return False
        engine.state = EngineState.PROVED
        engine.proved_fingerprint = fingerprint
        engine.context_length = context_length
        engine.reason = None
        engine.failures = 0
        self._tell()
        return True

    def fail(self, engine: PooledEngine, boot: int, reason: str, *, refuted: bool) -> None:
        """The proof did not hold, or could not be made; the next is due after a growing while.

        Args:
            refuted: The engine answered, and is not the policy.
        """
        if engine.boot != boot or engine.state is not EngineState.PROVING:
            return
        engine.failures += 1
        engine.state = EngineState.SUSPENDED if refuted else EngineState.UNPROVED
        engine.reason = reason
        engine.due_at = time.monotonic() + retry_after(engine.failures)
        self._tell()

    def doubt(self, engine: PooledEngine, boot: int, reason: str) -> None:
        """The engine may not be the one that was proved any more: no traffic until it is proved again."""
        if engine.boot == boot and engine.state in (EngineState.PROVED, EngineState.PROVING):
            self._lose(engine, EngineState.UNPROVED, reason)
            self._tell()

    def suspend(self, engine: PooledEngine, boot: int, reason: str) -> None:
        """The engine was seen not to be the policy: no traffic until it is proved again."""
        if engine.boot == boot and engine.state is not EngineState.ABSENT:
            self._lose(engine, EngineState.SUSPENDED, reason)
            self._tell()

    def _update(self, engine: PooledEngine, spec: EngineSpec) -> None:
        before, engine.spec = engine.spec, spec
        if not spec.reachable:
            self._lose(engine, EngineState.ABSENT, None)
        elif engine.state is EngineState.ABSENT:
            self._lose(engine, EngineState.UNPROVED, "not proved yet")
        elif (before.url, before.fingerprint, before.policy) != (spec.url, spec.fingerprint, spec.policy):
            self._lose(engine, EngineState.UNPROVED, "restarted, not proved yet")

    def _is_being_proved(self, policy: str) -> bool:
        now = time.monotonic()
        return any(
            engine.state is EngineState.PROVING or (engine.state in AWAITING and engine.due_at <= now)
            for engine in self.of_policy(policy)
        )

    def _tell(self) -> None:
        self._news.set()
        self._news.clear()
        self._on_change()

    def _lose(self, engine: PooledEngine, state: EngineState, reason: str | None) -> None:
        engine.state = state
        engine.reason = reason
        engine.proved_fingerprint = None
        engine.boot += 1
        engine.failures = 0
        engine.due_at = time.monotonic()


def retry_after(failures: int) -> float:
    """Seconds until the next proof after so many failed in a row: 0.5, 1, 2, ... at most 30."""
    return min(FIRST_RETRY_S * 2 ** min(failures - 1, 10), LONGEST_RETRY_S)


def describe(engine: PooledEngine) -> str:
    """An engine's state in words, for people."""
    spec = engine.spec
    if engine.state is EngineState.ABSENT:
        last = f", last error: {spec.last_error}" if spec.last_error else ""
        return f"{spec.state}{last}"
    return f"{engine.state}: {engine.reason}" if engine.reason else engine.state.value
