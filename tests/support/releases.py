"""Releases in tests: two policies of a model, a plan with small numbers, a drill that went well."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from gateway.releases.audit import By
from gateway.releases.machine import Wish
from gateway.releases.plan import ReleasePlan
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import Drill
from ratchet.ids import new_id
from tests.support.gateway_process import Operator

BY = By("ada", "because")
PLAN: dict[str, Any] = {
    "name": "test",
    "look_seconds": 0.5,
    "drill_max_age_days": 7,
    "stages": [
        {"name": "shadow", "kind": "shadow", "share": 1.0, "users": 1},
        {"name": "half", "kind": "canary", "share": 0.5, "users": 2},
    ],
    "metrics": {"errors": {"measure": "share", "worse": "higher", "margin": 0.2, "harm": 0.2, "users": 2}},
}


def plan(**changed: Any) -> ReleasePlan:
    """The test's plan with some values changed."""
    return ReleasePlan.parse({**PLAN, **changed}, source="test")


def add_drill(engine: Engine, model: str, *, days_ago: float = 0.0, state: str = "good") -> None:
    """A drill that was."""
    moment = datetime.now(UTC) - timedelta(days=days_ago)
    with session_scope(engine) as session:
        session.add(
            Drill(
                id=new_id(), model=model, production="p", other="p", actor="ada", state=state,
                started_at=moment, finished_at=moment, result={},
            )
        )  # fmt: skip


def two_policies(operator: Operator, model: str) -> tuple[str, str]:
    """A policy in production and a candidate, with a drill that went well."""
    old, new = operator.policy(model), operator.policy(model, weights=1)
    operator.plan(model, old)
    add_drill(operator.engine, model)
    return old, new


def wish(policy: str, url: str | None = None, **changed: Any) -> Wish:
    """What an operator starts, of a policy that no selection chose."""
    return Wish(policy, plan(**changed), url, override=True)


Step = Callable[[], object]
