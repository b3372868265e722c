"""Keeps every engine proved: at its start, after any sign of a change, and again after a refutation.

While an engine is proved one connection to it is held, and its health is asked for at each turn: an engine
that went away and came back, even with the same name and fingerprint, has broken that connection and is to be
proved anew.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from uuid import UUID

import aiohttp

from gateway.engines import EnginePool, EngineState, PooledEngine
from gateway.ledger import STAMP_MISMATCH, Ledger
from gateway.metrics import Metrics
from gateway.proof import NoAnswer, Refuted, prove
from gateway.snapshot import ServedPolicy
from gateway.upstream import EngineAnswer
from ratchet.logs import get_logger

HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
LONGEST_WATCH_S = 2.0
"""vLLM closes a connection that was idle for 5 s."""

log = get_logger(__name__)


class Prover:
    """Runs proofs and watches proved engines."""

    def __init__(
        self,
        pool: EnginePool,
        policies: Callable[[], Mapping[str, ServedPolicy]],
        ledger: Ledger,
        metrics: Metrics,
        *,
        tolerance: float,
        watch_s: float,
        api_key: str | None,
    ) -> None:
        self._pool = pool
        self._policies = policies
        self._ledger = ledger
        self._metrics = metrics
        self._tolerance = tolerance
        self._watch_s = min(watch_s, LONGEST_WATCH_S)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspected: set[UUID] = set()

    def wake(self) -> None:
        """Looks again which proofs are due."""
        self._wake.set()

    def start(self) -> None:
        """Begins to prove."""
        self._spawn(self._run())

    async def stop(self) -> None:
        """Ends every proof and watch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mismatch(self, answer: EngineAnswer, policy: str, seen: str | None) -> None:
        """An answer carried another fingerprint than the proved one: no more traffic until proved again."""
        engine = answer.engine
        reason = f"an answer carried the fingerprint {seen!r}, not {answer.fingerprint!r}"
        self._metrics.stamp_mismatch(policy)
        self._pool.suspend(engine, answer.boot, reason)
        self._alarm(engine, reason)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._forget_unwanted()
            for engine in self._pool.due(time.monotonic()):
                boot = self._pool.begin_proof(engine)
                policy = self._policies().get(engine.spec.policy)
                if policy is None:
                    self._pool.fail(engine, boot, "its policy cannot be read", refuted=False)
                else:
                    self._spawn(self._prove(engine, policy, boot))
            due_at = self._pool.next_due()
            wait_s = None if due_at is None else max(due_at - time.monotonic(), 0.05)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)

    def _forget_unwanted(self) -> None:
        for gone in self._suspected - {engine.id for engine in self._pool.engines()}:
            self._suspected.discard(gone)
            self._ledger.clear_alarm(STAMP_MISMATCH, str(gone))

    async def _prove(self, engine: PooledEngine, policy: ServedPolicy, boot: int) -> None:
        trace = aiohttp.TraceConfig()
        connections: list[float] = []

        async def connected(*_: object) -> None:
            connections.append(time.monotonic())

        trace.on_connection_create_end.append(connected)
        connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
        async with aiohttp.ClientSession(
            connector=connector, headers=self._headers, trace_configs=[trace]
        ) as session:
            if not await self._proves(session, engine, policy, boot):
                return
            while engine.state is EngineState.PROVED and engine.boot == boot:
                reason = await self._ill(session, engine)
                if reason is None and len(connections) > 1:
                    reason = "its connection broke, so it may have restarted"
                if reason is not None and engine.boot == boot:
                    log.warning("engine in doubt", engine=str(engine.id), policy=policy.ref, reason=reason)
                    self._pool.doubt(engine, boot, reason)
                    return
                await asyncio.sleep(self._watch_s)

    async def _proves(
        self, session: aiohttp.ClientSession, engine: PooledEngine, policy: ServedPolicy, boot: int
    ) -> bool:
        try:
            proof = await prove(session, engine, policy, self._tolerance)
        except NoAnswer as error:
            self._pool.fail(engine, boot, str(error), refuted=False)
            log.info("engine not proved", engine=str(engine.id), policy=policy.ref, reason=str(error))
            return False
        except Refuted as error:
            self._pool.fail(engine, boot, str(error), refuted=True)
            self._note(engine, policy, ok=False, fingerprint=error.fingerprint,
                       difference=error.difference, reason=str(error))  # fmt: skip
            self._alarm(engine, str(error))
            return False
        if not self._pool.prove(engine, boot, proof.fingerprint, proof.context_length):
            return False
        self._note(engine, policy, ok=True, fingerprint=proof.fingerprint, difference=proof.difference,
                   reason=None)  # fmt: skip
        self._ledger.clear_alarm(STAMP_MISMATCH, str(engine.id))
        self._suspected.discard(engine.id)
        log.info("engine proved", engine=str(engine.id), policy=policy.ref, fingerprint=proof.fingerprint,
                 max_abs_difference=proof.difference)  # fmt: skip
        return True

    async def _ill(self, session: aiohttp.ClientSession, engine: PooledEngine) -> str | None:
        """Why an engine is not well; being slow is no illness."""
        try:
            async with session.get(f"{engine.url}/health", timeout=HEALTH_TIMEOUT) as response:
                await response.read()
                return f"/health answers {response.status}" if response.status >= 500 else None
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError) as error:
            return f"it cannot be reached: {error}"

    def _note(
        self,
        engine: PooledEngine,
        policy: ServedPolicy,
        *,
        ok: bool,
        fingerprint: str | None,
        difference: float | None,
        reason: str | None,
    ) -> None:
        self._ledger.proof(
            engine.id,
            policy.ref,
            ok=ok,
            fingerprint=fingerprint,
            difference=difference,
            tolerance=self._tolerance,
            reason=reason,
        )

    def _alarm(self, engine: PooledEngine, reason: str) -> None:
        detail = {"policy": engine.spec.policy, "url": engine.spec.url, "reason": reason}
        if engine.id not in self._suspected:
            log.error("engine is not the policy it claims to be", engine=str(engine.id), **detail)
        self._suspected.add(engine.id)
        self._ledger.raise_alarm(STAMP_MISMATCH, str(engine.id), detail)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
