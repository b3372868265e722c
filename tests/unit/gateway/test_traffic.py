"""Who goes where: sticky, in proportion, and only ever towards a growing canary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.traffic import bucket, pick, route, sticky_unit
from ratchet.plan import WITHDRAWN, Arm, Enforcement, Plan, PlannedArm

NAMES = st.text(min_size=1, max_size=30)


def plan(share: float, *, salt: str = "salt", model: str = "m") -> Plan:
    arms = (PlannedArm(Arm.PRODUCTION, "m@old", 1 - share), PlannedArm(Arm.CANARY, "m@new", share))
    return Plan(7, model, "canary-5", arms, Enforcement.REPLACE, salt)


@given(NAMES, NAMES)
def test_a_bucket_lies_in_the_unit_interval_and_never_moves(salt: str, unit: str) -> None:
    place = bucket(salt, unit)
    assert 0 <= place < 1
    assert place == bucket(salt, unit)


def test_a_bucket_is_the_same_on_every_machine_for_ever() -> None:
    """`printf 'salt\\0user:ada' | sha256sum` begins with the digits below; the first 53 bits count."""
    assert bucket("salt", "user:ada") == (0x57B79E703D968183 >> 11) / 2**53


@given(NAMES, st.floats(0, 1), st.floats(0, 1))
def test_a_growing_canary_never_sends_a_unit_back(unit: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    if pick(plan(small), unit).arm is Arm.CANARY:
        assert pick(plan(large), unit).arm is Arm.CANARY


@given(NAMES)
def test_the_ends_of_the_scale_are_exact(unit: str) -> None:
    assert pick(plan(0.0), unit).policy == "m@old"
    assert pick(plan(1.0), unit).policy == "m@new"


def test_shares_are_kept_over_many_units_and_another_salt_draws_others() -> None:
    """Binomial(20000, 0.05): mean 1000, standard deviation 30.8; five of them on each side."""
    units = [f"user:{number}" for number in range(20_000)]
    chosen = {unit for unit in units if pick(plan(0.05), unit).arm is Arm.CANARY}
    others = {unit for unit in units if pick(plan(0.05, salt="other"), unit).arm is Arm.CANARY}
    assert 846 < len(chosen) < 1154
    assert len(chosen & others) < 100


def test_a_tenth_of_a_thousand_users_stay_in_the_canary_for_fifty_requests_each() -> None:
    """Binomial(1000, 0.1): mean 100, standard deviation 9.5; four of them on each side."""
    plans = {"m": plan(0.1)}
    keys = [f"key-{number}" for number in range(5)]
    seen: dict[str, set[str]] = {}
    for request in range(50):
        for number in range(1000):
            user, key = f"u{number}", keys[(request + number) % 5]
            found = route(plans, (), "m", user=user, session=f"s{request}", key=key)
            seen.setdefault(user, set()).add(found.policy)
    assert all(len(policies) == 1 for policies in seen.values())
    assert 62 < sum(policies == {"m@new"} for policies in seen.values()) < 138


def test_a_shadow_takes_no_answer() -> None:
    arms = (PlannedArm(Arm.PRODUCTION, "m@old", 1.0), PlannedArm(Arm.SHADOW, "m@new", 1.0))
    chosen = pick(Plan(1, "m", "shadow", arms, Enforcement.REPLACE, "s"), "user:ada")
    assert (chosen.policy, chosen.arm) == ("m@old", Arm.PRODUCTION)


def test_the_user_comes_before_the_session_and_that_before_the_key() -> None:
    assert sticky_unit(user="u", session="s", key="k") == "user:u"
    assert sticky_unit(user=None, session="s", key="k") == "session:s"
    assert sticky_unit(user=None, session=None, key="k") == "key:k"


def test_a_pinned_version_stays_out_of_the_canary() -> None:
    chosen = route({"m": plan(1.0)}, {"m@new"}, "m@new", user="u", session=None, key="k")
    assert (chosen.policy, chosen.arm, chosen.pinned) == ("m@new", Arm.PRODUCTION, True)
    assert (chosen.stage, chosen.plan_version) == ("canary-5", 7)


def test_a_pinned_version_needs_no_plan() -> None:
    chosen = route({}, {"x@1"}, "x@1", user=None, session=None, key="k")
    assert (chosen.policy, chosen.stage, chosen.plan_version) == ("x@1", None, None)


@pytest.mark.parametrize("model", ["x", "m@unserved", "@", "m@"])
def test_what_nobody_serves_is_not_found(model: str) -> None:
    with pytest.raises(ApiError) as refused:
        route({"m": plan(0.5)}, {"m@old"}, model, user=None, session=None, key="k")
    assert (refused.value.status, refused.value.code, refused.value.param) == (
        404,
        "model_not_found",
        "model",
    )


@given(NAMES, NAMES, st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_who_was_in_the_canary_is_not_held_back(unit: str, salt: str, canary: float, held: float) -> None:
    before = plan(canary, salt=salt)
    arms = (PlannedArm(Arm.PRODUCTION, "m@new", 1 - held), PlannedArm(Arm.HOLDBACK, "m@old", held))
    after = Plan(8, "m", "holdback", arms, Enforcement.REPLACE, salt, fallback="m@old")
    if pick(before, unit).arm is Arm.CANARY:
        assert pick(after, unit).policy == "m@new"
    assert pick(after, unit).policy == ("m@old" if bucket(salt, unit) >= 1 - held else "m@new")


@given(NAMES)
def test_a_withdrawn_plan_sends_everyone_to_the_last_good_policy(unit: str) -> None:
    arms = (PlannedArm(Arm.PRODUCTION, "m@new", 0.9), PlannedArm(Arm.HOLDBACK, "m@old", 0.1))
    promoted = Plan(8, "m", "holdback", arms, Enforcement.REPLACE, "s", fallback="m@old")
    assert promoted.policies == ("m@new", "m@old")
    for before, policy in ((promoted, "m@old"), (plan(0.7), "m@old")):
        chosen = pick(before.withdrawn(), unit)
        assert (chosen.policy, chosen.arm, chosen.stage) == (policy, Arm.PRODUCTION, WITHDRAWN)
