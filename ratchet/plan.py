"""The traffic plan: which policy answers under a model name. Versions are only ever added."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ratchet.db.models.serving import TrafficPlan
from ratchet.errors import ConfigError

PLAN_COLUMNS = ("version", "model", "stage", "arms", "enforcement", "salt", "fallback", "cut")
WITHDRAWN = "withdrawn"
"""Stage of a plan whose release was taken back on a gateway's host, before the rows say so."""


class Arm(StrEnum):
    """The part a policy plays in a plan."""

    PRODUCTION = "production"
    CANARY = "canary"
    HOLDBACK = "holdback"
    """Users who stay on the previous policy for a while after a promotion."""
    SHADOW = "shadow"


class Enforcement(StrEnum):
    """What becomes of a client value that differs from the pinned decode config."""

    REPLACE = "replace"
    """The pinned value is used, and a response header names the field."""
    REFUSE = "refuse"
    """The request gets 400."""


@dataclass(frozen=True)
class PlannedArm:
    """One policy's part.

    Attributes:
        arm: Its part.
        policy: `name@version`.
        share: Share of users in [0, 1]; of a shadow, the share of requests that are copied.
    """

    arm: Arm
    policy: str
    share: float


@dataclass(frozen=True)
class Plan:
    """A version of the plan of one model name.

    Attributes:
        version: Grows with each change of any plan.
        model: The name clients ask for.
        stage: Where a release stands, `production` when there is none.
        arms: Exactly one production arm, at most one of each other.
        enforcement: What becomes of differing client values.
        salt: Decides the buckets of the sticky canary; constant within a release.
        fallback: Policy that traffic returns to when the one in production is taken back; its engine stays
            warm.
        cut: Answers under way of policies that this version serves no more are ended.
    """

    version: int
    model: str
    stage: str
    arms: tuple[PlannedArm, ...]
    enforcement: Enforcement
    salt: str
    fallback: str | None = None
    cut: bool = False

    @property
    def production(self) -> str:
        """The policy in production."""
        return next(arm.policy for arm in self.arms if arm.arm is Arm.PRODUCTION)

    @property
    def policies(self) -> tuple[str, ...]:
        """Every policy the plan needs an engine for."""
        named = [arm.policy for arm in self.arms] + ([self.fallback] if self.fallback else [])
        return tuple(dict.fromkeys(named))

    def withdrawn(self) -> "Plan":
        """The same plan with everyone on the last good policy: no canary, no shadow, no holdback."""
        arms = (PlannedArm(Arm.PRODUCTION, self.fallback or self.production, 1.0),)
        return replace(self, stage=WITHDRAWN, arms=arms, fallback=None)


def check_arms(arms: tuple[PlannedArm, ...]) -> None:
    """Refuses a set of arms that no gateway could serve.

    Raises:
        ConfigError: Not one production arm, an arm twice, or shares that do not add up.
    """
    kinds = [arm.arm for arm in arms]
    if kinds.count(Arm.PRODUCTION) != 1 or len(set(kinds)) != len(kinds):
        raise ConfigError("a traffic plan needs exactly one production arm, and each other arm at most once")
    if any(not 0 <= arm.share <= 1 for arm in arms):
        raise ConfigError("shares lie between 0 and 1")
    served = sum(arm.share for arm in arms if arm.arm is not Arm.SHADOW)
    if abs(served - 1) > 1e-9:
        raise ConfigError(f"the shares of production, canary and holdback add up to {served:g}, not 1")


def publish(
    session: Session,
    *,
    model: str,
    stage: str,
    arms: tuple[PlannedArm, ...],
    actor: str,
    reason: str,
    enforcement: Enforcement = Enforcement.REPLACE,
    salt: str | None = None,
    fallback: str | None = None,
    cut: bool = False,
) -> int:
    """Adds a version, which every gateway follows once the transaction commits.

    Returns:
        The new version's number.

    Raises:
        ConfigError: No gateway could serve these arms.
    """
    check_arms(arms)
    row = TrafficPlan(
        model=model,
        stage=stage,
        arms=[{"arm": arm.arm.value, "policy": arm.policy, "share": arm.share} for arm in arms],
        enforcement=enforcement.value,
        salt=salt or secrets.token_hex(8),
        actor=actor,
        reason=reason,
        fallback=fallback,
        cut=cut,
    )
    session.add(row)
    session.flush()
    return row.version


def current_plans(session: Session) -> dict[str, Plan]:
    """The plan in force for each model name."""
    newest = select(func.max(TrafficPlan.version)).group_by(TrafficPlan.model)
    rows = session.scalars(select(TrafficPlan).where(TrafficPlan.version.in_(newest)))
    return {row.model: _parse(row) for row in rows}


def current_plan(session: Session, model: str) -> Plan | None:
    """The plan in force for one model name."""
    newest = (
        select(TrafficPlan).where(TrafficPlan.model == model).order_by(TrafficPlan.version.desc()).limit(1)
    )
    row = session.scalars(newest).first()
    return None if row is None else _parse(row)


def parse_plan(row: Mapping[str, Any]) -> Plan:
    """A plan from the columns `PLAN_COLUMNS` of its row, however they were read."""
    return Plan(
        version=row["version"],
        model=row["model"],
        stage=row["stage"],
        arms=tuple(
            PlannedArm(Arm(arm["arm"]), str(arm["policy"]), float(arm["share"])) for arm in row["arms"]
        ),
        enforcement=Enforcement(row["enforcement"]),
        salt=row["salt"],
        fallback=row["fallback"],
        cut=row["cut"],
    )


def _parse(row: TrafficPlan) -> Plan:
    return parse_plan({name: getattr(row, name) for name in PLAN_COLUMNS})
