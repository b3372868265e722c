"""The drill: the switch that takes a policy back, pulled on live traffic and undone, and timed as clients
see it.

A drill gives some users a canary arm and takes it away again, several times, by the same rows that a
release writes. Requests of its own, labelled as a probe, ask all the while as a user of that arm; the arm
that each answer names says which plan its gateway process followed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import aiohttp
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from gateway.releases import machine
from gateway.releases.audit import By, Refused
from gateway.releases.readiness import why_not_served
from gateway.releases.repository import Document, drills
from gateway.timing import quantile
from gateway.traffic import bucket
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import Drill, ReleaseEvent
from ratchet.errors import EnvironmentFault
from ratchet.ids import new_id
from ratchet.keys import KeyRole, create_key, revoke_key
from ratchet.plan import Arm, Plan, PlannedArm, current_plan, publish
from ratchet.registry import resolve

STAGE = "drill"
SHARE = 0.05
SWITCHES = 10
ASKERS = 4
SETTLE_S = 0.3
"""After a switch was seen to work, it is watched so long for answers that contradict it."""
SEEN_WITHIN_S = 5.0
GOOD_WITHIN_MS = 1000.0
LOST_AFTER = timedelta(hours=1)
PROBE_HEADER = "x-ratchet-probe"


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer.

    Attributes:
        asked_at: Monotonic time when it was asked for.
        arm: Which arm its gateway says it is of; None where it failed.
    """

    asked_at: float
    arm: str | None


@dataclass(slots=True)
class Watch:
    """What the drill's own requests saw, in order of their answers."""

    answers: list[Seen] = field(default_factory=list[Seen])
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, seen: Seen) -> None:
        """One more."""
        self.answers.append(seen)
        self.news.set()

    async def until(self, arm: Arm, since: float) -> bool:
        """Waits for an answer of this arm that was asked for since; False where none comes in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_WITHIN_S):
                while not any(seen.arm == arm and seen.asked_at >= since for seen in self.answers):
                    self.news.clear()
                    await self.news.wait()
                return True
        return False

    def delay_ms(self, arm: Arm, since: float) -> float:
        """Milliseconds from a switch to the last request that still went to the other arm."""
        late = [
            seen.asked_at for seen in self.answers if seen.asked_at >= since and seen.arm not in (arm, None)
        ]
        return max((moment - since for moment in late), default=0.0) * 1000


def run_drill(
    engine: Engine,
    model: str,
    by: By,
    gateway_url: str,
    *,
    other: str | None = None,
    switches: int = SWITCHES,
) -> Document:
    """Pulls the switch and undoes it, and stores what was seen; the plan is as before in the end.

    Args:
        engine: As the operator.
        model: Whose switch.
        by: Who, and why.
        gateway_url: Where clients ask.
        other: Policy of the drill's canary; None takes the one in production.
        switches: How often.

    Raises:
        NotFound: The other policy is not registered.
        Refused: A release or another drill is open, nothing is in production, or the other policy is of
            another model or has no engine that was proved.
        EnvironmentFault: The gateway cannot be asked.
    """
    drill, plan = _begin(engine, model, by, other)
    key = ""
    result: dict[str, Any] = {}
    try:
        with session_scope(engine) as session:
            _, key = create_key(session, KeyRole.SERVICE, f"drill of {model}")
        result = asyncio.run(_pull(engine, plan, drill, by, gateway_url, key, switches))
    finally:
        with session_scope(engine) as session:
            if key:
                revoke_key(session, key)
            machine.lock(session, model)
            if (now := current_plan(session, model)) is not None and now.stage == STAGE:
                _publish(session, plan, plan.arms, plan.stage, by)
            row = session.get_one(Drill, drill.id)
            row.state = "good" if result.get("good") else "bad"
            row.finished_at = datetime.now(UTC)
            row.result = result or {"trouble": "it was broken off"}
    with session_scope(engine) as session:
        return next(told for told in drills(session, model) if told["drill"] == str(drill.id))


def end_lost(session: Session, now: datetime) -> None:
    """Ends drills whose process was killed: their plan is withdrawn, and they count as bad."""
    lost = select(Drill).where(Drill.finished_at.is_(None), Drill.started_at < now - LOST_AFTER)
    for drill in session.scalars(lost).all():
        machine.lock(session, drill.model)
        plan = current_plan(session, drill.model)
        if plan is not None and plan.stage == STAGE:
            by = By(drill.actor, "its process ended before it did")
            _publish(session, plan, plan.withdrawn().arms, machine.PRODUCTION, by)
        drill.state, drill.finished_at = "bad", now
        drill.result = {"trouble": "its process ended before it did"}


@dataclass(frozen=True, slots=True)
class _Drill:
    id: UUID
    other: str


def _begin(engine: Engine, model: str, by: By, other: str | None) -> tuple[_Drill, Plan]:
    with session_scope(engine) as session:
        machine.lock(session, model)
        plan = current_plan(session, model)
        if plan is None:
            raise Refused(f"{model} has no policy in production, so there is no traffic to switch")
        release = machine.open_release(session, model)
        if release is not None:
            raise Refused(f"a release of {release.policy} is {release.state}: drill before it starts")
        if any(told["state"] == "running" for told in drills(session, model, most=1)):
            raise Refused(f"another drill of {model} is under way")
        drill = _Drill(new_id(), _target(session, model, other) if other else plan.production)
        session.add(
            Drill(id=drill.id, model=model, production=plan.production, other=drill.other, actor=by.actor,
                  state="running")
        )  # fmt: skip
    return drill, plan


def _target(session: Session, model: str, other: str) -> str:
    """The policy that users of the drill's canary are sent to.

    Raises:
        NotFound: It is not registered.
        Refused: It is of another model, or no engine is ready for it.
    """
    policy = resolve(session, other)
    if policy.name != model:
        raise Refused(f"{policy.ref} is no policy of {model}: users of a drill stay with their model")
    reason = why_not_served(session, policy.ref)
    if reason is not None:
        raise Refused(f"a drill cannot send users to {policy.ref}: {reason}")
    return policy.ref


async def _pull(
    engine: Engine, plan: Plan, drill: _Drill, by: By, gateway_url: str, key: str, switches: int
) -> dict[str, Any]:
    held = PlannedArm(Arm.PRODUCTION, plan.production, 1 - SHARE), PlannedArm(Arm.CANARY, drill.other, SHARE)
    watch = Watch()
    there: list[float] = []
    back: list[float] = []
    missed = 0
    user = _of_the_canary(plan.salt)
    async with _askers(gateway_url, key, plan.model, user, watch):
        if not await watch.until(Arm.PRODUCTION, 0.0):
            raise EnvironmentFault(
                f"{gateway_url} does not answer as {plan.model}: is that where clients ask?"
            )
        for _ in range(switches):
            for arms, stage, arm, delays in (
                (held, STAGE, Arm.CANARY, there), (plan.arms, plan.stage, Arm.PRODUCTION, back),
            ):  # fmt: skip
                await asyncio.to_thread(_switch, engine, plan, arms, stage, by)
                since = time.monotonic()
                missed += not await watch.until(arm, since)
                await asyncio.sleep(SETTLE_S)
                delays.append(watch.delay_ms(arm, since))
    failed = sum(seen.arm is None for seen in watch.answers)
    return {
        "switches": switches,
        "requests": len(watch.answers),
        "failed": failed,
        "missed": missed,
        "there_p50_ms": quantile(there, 0.5),
        "back_p50_ms": quantile(back, 0.5),
        "back_p99_ms": quantile(back, 0.99),
        "good": missed == 0 and failed == 0 and max(back) <= GOOD_WITHIN_MS,
    }


def _of_the_canary(salt: str) -> str:
    """A user whose bucket is among those of the drill's canary."""
    names = (f"drill-{number}" for number in range(100_000))
    return next(name for name in names if bucket(salt, f"user:{name}") < SHARE)


@contextlib.asynccontextmanager
async def _askers(url: str, key: str, model: str, user: str, watch: Watch) -> AsyncGenerator[None]:
    """Asks all the while, each time on a new connection, so that every gateway process has its turn."""
    body = {"model": model, "messages": [{"role": "user", "content": "Ping."}], "max_tokens": 1, "user": user}
    headers = {"Authorization": f"Bearer {key}", PROBE_HEADER: "drill"}
    connector = aiohttp.TCPConnector(force_close=True, limit=ASKERS)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=30)
    ) as session:

        async def ask() -> None:
            known = False
            while True:
                asked_at = time.monotonic()
                try:
                    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                        await answer.read()
                        good = answer.status == 200
                        known = known or answer.status != 401
                except (aiohttp.ClientError, OSError, TimeoutError):
                    good, answer = False, None
                if known:
                    watch.add(
                        Seen(asked_at, answer.headers.get("x-ratchet-arm") if answer and good else None)
                    )
                if not good:
                    await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(ask()) for _ in range(ASKERS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _switch(engine: Engine, plan: Plan, arms: tuple[PlannedArm, ...], stage: str, by: By) -> None:
    with session_scope(engine) as session:
        machine.lock(session, plan.model)
        _publish(session, plan, arms, stage, by)


def _publish(session: Session, plan: Plan, arms: tuple[PlannedArm, ...], stage: str, by: By) -> None:
    reason = f"drill: {by.reason}"
    version = publish(session, model=plan.model, stage=stage, arms=arms, actor=by.actor, reason=reason,
                      enforcement=plan.enforcement, salt=plan.salt, fallback=plan.fallback)  # fmt: skip
    session.add(
        ReleaseEvent(
            id=new_id(),
            model=plan.model,
            kind=STAGE,
            actor=by.actor,
            reason=reason,
            after={"stage": stage, "arms": {arm.arm.value: arm.share for arm in arms}},
            plan_version=version,
        )
    )
