"""Which policy answers: the pinned version, or the plan's shares, the same for a user each time."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gateway.errors import unknown_model
from ratchet.plan import Arm, Enforcement, Plan, PlannedArm


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes.

    Attributes:
        policy: `name@version`.
        arm: The part that policy plays; of a pinned request always production, so that canary figures never
            hold traffic that chose its own version.
        stage: Where the release of this name stands; None of a pinned version whose name has no plan.
        plan_version: The plan that decided; None likewise.
        pinned: The client named the version.
        enforcement: What becomes of differing decode values.
    """

    policy: str
    arm: Arm
    stage: str | None
    plan_version: int | None
    pinned: bool
    enforcement: Enforcement


def bucket(salt: str, unit: str) -> float:
    """A place in [0, 1) that is the same for a unit as long as the salt is, and uniform over units."""
    digest = hashlib.sha256(f"{salt}\0{unit}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)


def sticky_unit(*, user: str | None, session: str | None, key: str) -> str:
    """What stays on one arm: the user, where the client names one, else the session, else the API key."""
    if user:
        return f"user:{user}"
    return f"session:{session}" if session else f"key:{key}"


def pick(plan: Plan, unit: str) -> Route:
    """The arm of a unit. A growing canary share only ever moves units from production to the canary.

    The canary has the lowest buckets and the holdback the highest: who was in the canary is not held back.
    """
    chosen = PlannedArm(Arm.PRODUCTION, plan.production, 1.0)
    if len(plan.arms) > 1:
        place = bucket(plan.salt, unit)
        for arm in plan.arms:
            if (arm.arm is Arm.CANARY and place < arm.share) or (
                arm.arm is Arm.HOLDBACK and place >= 1 - arm.share
            ):
                chosen = arm
    return Route(chosen.policy, chosen.arm, plan.stage, plan.version, False, plan.enforcement)


def route(
    plans: Mapping[str, Plan],
    served: Collection[str],
    model: str,
    *,
    user: str | None,
    session: str | None,
    key: str,
) -> Route:
    """Decides where a request for `model` goes.

    Args:
        plans: The plan in force for each name.
        served: Policies that engines are wanted for.
        model: A name, or `name@version`.
        user: The client's name for the end user.
        session: The client's name for the session.
        key: Id of the API key.

    Raises:
        ApiError: 404 when nothing of that name is served.
    """
    plan = plans.get(model)
    if plan is not None:
        return pick(plan, sticky_unit(user=user, session=session, key=key))
    if model not in served:
        raise unknown_model(model)
    plan = plans.get(model.partition("@")[0])
    if plan is None:
        return Route(model, Arm.PRODUCTION, None, None, True, Enforcement.REPLACE)
    return Route(model, Arm.PRODUCTION, plan.stage, plan.version, True, plan.enforcement)
