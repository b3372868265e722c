"""Shadow answers: the candidate is asked what a user just asked; what it says is recorded, and nobody is
shown it.

A copy is made after the user's answer has left, from a budget of its own: places, connections, and only
while neither the process nor the spool is half full. Whatever a copy does, its request is over.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway import decode_pin, stamp
from gateway.admission import Admission
from gateway.ask import Ask
from gateway.asking import PATHS, engine_request
from gateway.engines import EnginePool
from gateway.errors import ApiError, unavailable
from gateway.fields import Kind
from gateway.keys_cache import KnownKey
from gateway.prover import Prover
from gateway.snapshot import Snapshot
from gateway.stamp import StampMismatch
from gateway.traffic import Route, bucket
from gateway.trail import Trail, Witnesses
from gateway.upstream import Upstream
from gateway.whole import WholeAnswer
from ratchet.logs import get_logger
from ratchet.plan import Arm, Enforcement, Plan

COPIED = "copied"
DROPPED = "dropped"
FULL_ENOUGH = 0.5

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Original:
    """A request that was answered well.

    Attributes:
        kind: Which endpoint.
        ask: What was asked.
        key: Who asked.
        trail: What it left behind.
        route: Where it went.
    """

    kind: Kind
    ask: Ask
    key: KnownKey
    trail: Trail
    route: Route


class Shadow:
    """Makes copies.

    Args:
        snapshot: Gives the rows in force.
        pool: The engines.
        prover: Told of engines that are not what they claim.
        upstream: Connections of its own.
        witnesses: Where copies leave their trail.
        admission: How busy the process is.
        places: Copies under way at most.
        timeout_s: Seconds a copy may take.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        pool: EnginePool,
        prover: Prover,
        upstream: Upstream,
        witnesses: Witnesses,
        admission: Admission,
        *,
        places: int,
        timeout_s: float,
    ) -> None:
        self._snapshot = snapshot
        self._pool = pool
        self._prover = prover
        self._upstream = upstream
        self._witnesses = witnesses
        self._admission = admission
        self._places = places
        self._timeout_s = timeout_s
        self._copies: dict[asyncio.Task[None], tuple[str, str]] = {}

    def offer(self, original: Original) -> None:
        """Copies a request if the plan wants it and there is room; takes microseconds and never fails it."""
        plan = None if original.route.pinned else self._snapshot().plans.get(original.ask.model)
        if plan is None or original.trail.probe is not None:
            return
        policy = _chosen(plan, str(original.trail.id))
        if policy is None:
            return
        if not self._has_room(policy):
            self._witnesses.metrics.shadowed(policy, DROPPED)
            return
        self._witnesses.metrics.shadowed(policy, COPIED)
        task = asyncio.create_task(self._copy(original, plan, policy))
        self._copies[task] = (plan.model, policy)
        task.add_done_callback(self._copies.pop)

    def follow(self, snapshot: Snapshot) -> None:
        """Ends copies for policies that are no shadow any more."""
        for task, (model, policy) in self._copies.items():
            plan = snapshot.plans.get(model)
            if plan is None or policy not in {arm.policy for arm in plan.arms if arm.arm is Arm.SHADOW}:
                task.cancel()

    async def stop(self) -> None:
        """Ends every copy."""
        copies = list(self._copies)
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        await self._upstream.close()

    def _has_room(self, policy: str) -> bool:
        return (
            len(self._copies) < self._places
            and not self._admission.half_taken
            and self._witnesses.recorder.filled < FULL_ENOUGH
            and self._pool.is_served(policy)
        )

    async def _copy(self, original: Original, plan: Plan, ref: str) -> None:
        policy = self._snapshot().policies.get(ref)
        if policy is None:
            return
        kind, ask = original.kind, original.ask
        trail = Trail(self._witnesses, kind, original.key, None)
        route = Route(ref, Arm.SHADOW, plan.stage, plan.version, False, plan.enforcement)
        trail.shadows(original.trail, route, policy)
        request = decode_pin.pin(
            kind, ask.fields.values, policy.decode, Enforcement.REPLACE, self._pool.room(ref)
        )
        trail.pinned(request)
        whole = WholeAnswer(kind, trail)
        try:
            trail.open()
            async with (
                asyncio.timeout(self._timeout_s),
                self._upstream.ask(ref, PATHS[kind], engine_request(ask, ref, request), whole) as answer,
            ):
                whole.document()
                try:
                    trail.end_well(stamp.check(ref, answer.fingerprint, whole.fingerprint))
                except StampMismatch as mismatch:
                    self._prover.mismatch(answer, ref, mismatch.seen)
                    raise
        except TimeoutError:
            late = f"the shadow's answer was not whole within {self._timeout_s:g} s"
            trail.end_badly(ApiError(504, "engine_timeout", late), started=False)
        except ApiError as error:
            trail.end_badly(error, started=False)
        except asyncio.CancelledError:
            ended = unavailable("shadow_ended", "the shadow was taken back", retry_after_s=0, refused=True)
            trail.end_badly(ended, started=False)
            raise


def _chosen(plan: Plan, request: str) -> str | None:
    """The shadow's policy, for the plan's share of requests."""
    for arm in plan.arms:
        if arm.arm is Arm.SHADOW and bucket(plan.salt, request) < arm.share:
            return arm.policy
    return None
