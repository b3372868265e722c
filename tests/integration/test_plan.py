"""The traffic plan in PostgreSQL: only ever added to, the newest in force."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.errors import ConfigError
from ratchet.plan import Arm, PlannedArm, check_arms, current_plans, publish


def test_the_newest_version_of_each_model_is_in_force(engine_of: Callable[[Role], Engine]) -> None:
    engine = engine_of(Role.OPERATOR)
    for model, policy in (("a", "a@1"), ("b", "b@1"), ("a", "a@2")):
        with session_scope(engine) as session:
            arms = (PlannedArm(Arm.PRODUCTION, policy, 1.0),)
            publish(session, model=model, stage="production", arms=arms, actor="test", reason="test")
    with session_scope(engine) as session:
        plans = current_plans(session)
    assert {name: plan.production for name, plan in plans.items()} == {"a": "a@2", "b": "b@1"}
    assert plans["a"].version > plans["b"].version


@pytest.mark.parametrize(
    ("arms", "reason"),
    [
        ((), "exactly one production"),
        ((PlannedArm(Arm.CANARY, "p", 1.0),), "exactly one production"),
        ((PlannedArm(Arm.PRODUCTION, "p", 0.9), PlannedArm(Arm.CANARY, "c", 0.2)), "add up to 1.1"),
        ((PlannedArm(Arm.PRODUCTION, "p", 1.5),), "between 0 and 1"),
    ],
)
def test_arms_no_gateway_could_serve_are_refused(arms: tuple[PlannedArm, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_arms(arms)
