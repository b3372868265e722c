"""The way of a release in PostgreSQL: what each step changes, what is refused, and who is told."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Engine, func, select, update
from sqlalchemy.dialects.postgresql import insert

from gateway.releases import machine, repository
from gateway.releases.audit import By, Refused
from gateway.releases.control import Control
from gateway.releases.drill import end_lost, run_drill
from gateway.releases.engines import DRAIN, let_engines_go
from ratchet.db.engine import session_scope
from ratchet.db.models.registry import EngineRow
from ratchet.db.models.releases import Drill, OfflineAbort, Release
from ratchet.db.roles import Role
from ratchet.errors import NotFound, UsageError
from ratchet.ids import new_id
from ratchet.plan import Arm, PlannedArm, current_plan
from tests.support.gateway_process import Operator
from tests.support.releases import BY, add_drill, two_policies, wish

OLD, NEW = "m@000000000000", "m@000000000001"


@pytest.fixture
def engine(engine_of: Callable[[Role], Engine]) -> Engine:
    return engine_of(Role.OPERATOR)


@pytest.fixture
def control(engine: Engine) -> Control:
    assert two_policies(Operator(engine), "m") == (OLD, NEW)
    return Control(engine)


def arms(engine: Engine) -> tuple[PlannedArm, ...]:
    with session_scope(engine) as session:
        plan = current_plan(session, "m")
        assert plan is not None
        return plan.arms


def begin(control: Control, engine: Engine, stages: int = 1, **changed: Any) -> None:
    """Starts a release and takes it so many stages on."""
    control.start(wish(NEW, **changed), BY)
    with session_scope(engine) as session:
        release = machine.open_release(session, "m")
        assert release is not None
        machine.enter(session, release, 0, BY)
    for _ in range(stages - 1):
        control.promote("m", BY)


def test_a_release_walks_from_shadow_to_production_and_is_closed(control: Control, engine: Engine) -> None:
    started = control.start(wish("m"), BY)
    assert (started["state"], started["policy"], started["baseline"]) == ("preparing", NEW, OLD)
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0),)
    control.abort("m", BY)

    begin(control, engine)
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0), PlannedArm(Arm.SHADOW, NEW, 1.0))
    assert control.promote("m", BY)["stage"] == "half"
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 0.5), PlannedArm(Arm.CANARY, NEW, 0.5))
    assert control.promote("m", BY)["state"] == "promoted"
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, NEW, 1.0),)
    with session_scope(engine) as session:
        plan = current_plan(session, "m")
        assert plan is not None
        assert (plan.fallback, set(plan.policies)) == (OLD, {OLD, NEW})
    with pytest.raises(Refused, match=r"promoted and cannot be promoted"):
        control.promote("m", BY)

    closed = control.close("m", By("bea", "a good week"))
    assert (closed["state"], closed["ended_at"] is None) == ("closed", False)
    [told, aborted] = control.history("m")
    assert [event["kind"] for event in aborted["events"]] == ["started", "aborted"]
    assert [(event["kind"], event["actor"]) for event in told["events"]] == [
        ("started", "ada"), ("advanced", "ada"), ("advanced", "ada"), ("promoted", "ada"),
        ("promote-refused", "ada"), ("closed", "bea"),
    ]  # fmt: skip
    advanced = told["events"][2]
    assert advanced["before"] == {"state": "running", "stage": "shadow"}
    assert advanced["after"]["arms"] == {
        "production": {"policy": OLD, "share": 0.5}, "canary": {"policy": NEW, "share": 0.5}
    }  # fmt: skip
    assert advanced["after"]["plan_version"] == advanced["plan_version"]


def test_the_salt_stays_within_a_release_and_differs_between_two(control: Control, engine: Engine) -> None:
    salts: list[str] = []
    for _ in range(2):
        begin(control, engine, stages=2)
        control.abort("m", BY)
        with session_scope(engine) as session:
            plan = current_plan(session, "m")
            assert plan is not None
            salts.append(plan.salt)
    with psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(False)) as connection:
        of_each = connection.execute(
            "SELECT salt, count(*) FROM serving.traffic_plan WHERE salt = ANY (%s) GROUP BY salt", (salts,)
        ).fetchall()
    assert sorted(of_each) == sorted((salt, 3) for salt in salts)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_an_abort_sends_everyone_back_from_any_stage(control: Control, engine: Engine, stages: int) -> None:
    begin(control, engine, stages)
    assert control.abort("m", By("ada", "it rambles"), cut=True)["state"] == "aborted"
    with session_scope(engine) as session:
        plan = current_plan(session, "m")
    assert plan is not None
    assert (plan.arms, plan.fallback, plan.cut) == ((PlannedArm(Arm.PRODUCTION, OLD, 1.0),), None, True)
    with pytest.raises(Refused, match=rf"no release of m is open; that of {NEW} was aborted at"):
        control.abort("m", BY)


def test_a_holdback_keeps_the_previous_policy_for_some(control: Control, engine: Engine) -> None:
    begin(control, engine, stages=3, holdback={"share": 0.1, "days": 3})
    assert control.status("m")["stage"] == "holdback"
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, NEW, 0.9), PlannedArm(Arm.HOLDBACK, OLD, 0.1))
    control.close("m", BY)
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, NEW, 1.0),)


def test_one_release_of_a_model_at_a_time(control: Control, engine: Engine) -> None:
    begin(control, engine)
    with pytest.raises(Refused, match=rf"a release of {NEW} is running \(stage shadow\)"):
        control.start(wish(NEW), BY)
    with pytest.raises(psycopg.errors.UniqueViolation), _connected(engine) as connection:
        connection.execute(
            "INSERT INTO releases.release (id, model, policy, baseline, plan_name, plan, salt, state, stage,"
            " stage_number, engine_id, engine_own, actor, reason, overridden)"
            " SELECT gen_random_uuid(), model, policy, baseline,"
            " plan_name, plan, salt, state, stage, stage_number, engine_id, engine_own, actor, reason, true"
            " FROM releases.release"
        )


def test_a_start_that_makes_no_sense_is_refused_with_the_mend(control: Control, engine: Engine) -> None:
    with pytest.raises(Refused, match=r"m@000000000000 is in production already"):
        control.start(wish(OLD), BY)
    with pytest.raises(NotFound):
        control.start(wish("m@nothing"), BY)
    Operator(engine).policy("fresh")
    with pytest.raises(Refused, match=r"no policy in production yet"):
        control.start(wish("fresh"), BY)


def test_a_start_needs_a_young_drill_that_went_well(engine: Engine) -> None:
    operator = Operator(engine)
    old, new = operator.policy("m"), operator.policy("m", weights=1)
    operator.plan("m", old)
    control = Control(engine)
    with pytest.raises(Refused, match=r"never been tried well: `ratchet release drill m`"):
        control.start(wish(new), BY)
    add_drill(engine, "m", state="bad")
    with pytest.raises(Refused, match=r"never been tried well"):
        control.start(wish(new), BY)
    add_drill(engine, "m", days_ago=8)
    with pytest.raises(Refused, match=r"8\.0 days old, and the plan allows 7"):
        control.start(wish(new), BY)
    add_drill(engine, "m", days_ago=6)
    assert control.start(wish(new), BY)["state"] == "preparing"


def test_a_paused_release_keeps_its_share_and_its_clock_stands_still(
    control: Control, engine: Engine
) -> None:
    begin(control, engine, stages=2)
    assert control.pause("m", BY)["state"] == "paused"
    assert arms(engine)[1].share == 0.5
    with session_scope(engine) as session:
        session.execute(
            update(Release).values(
                paused_at=func.now() - timedelta(hours=2), stage_since=func.now() - timedelta(hours=3)
            )
        )
    with pytest.raises(Refused, match=r"is paused and cannot be paused"):
        control.pause("m", BY)
    assert control.resume("m", BY)["state"] == "running"
    with session_scope(engine) as session:
        [since] = session.scalars(select(Release.stage_since))
    assert 0.99 < (datetime.now(UTC) - since) / timedelta(hours=1) < 1.01


def test_an_engine_is_wanted_at_the_start_and_let_go_after_the_end(control: Control, engine: Engine) -> None:
    control.start(wish(NEW), BY)
    with session_scope(engine) as session:
        [row] = session.scalars(select(EngineRow).where(EngineRow.policy == NEW))
        assert (row.managed, row.desired, row.state) == (True, "up", "waiting")
    with session_scope(engine) as session:
        machine.fail(session, "m", By("walker", "its engine never became ready"))
        assert let_engines_go(session, datetime.now(UTC)) == []
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0),)
    later = datetime.now(UTC) + DRAIN + timedelta(seconds=1)
    with session_scope(engine) as session:
        assert let_engines_go(session, later) == [NEW]
        assert let_engines_go(session, later) == []
        [row] = session.scalars(select(EngineRow).where(EngineRow.policy == NEW))
        assert row.desired == "down"
    with pytest.raises(Refused, match=r"was failed at"):
        control.promote("m", BY)


def test_an_engine_that_somebody_else_wanted_before_stays(control: Control, engine: Engine) -> None:
    with session_scope(engine) as session:
        session.add(EngineRow(id=new_id(), policy=NEW, managed=True, desired="up", state="up"))
    begin(control, engine)
    control.abort("m", BY)
    with session_scope(engine) as session:
        assert let_engines_go(session, datetime.now(UTC) + timedelta(days=1)) == []


def test_a_drill_whose_process_was_killed_is_ended(control: Control, engine: Engine) -> None:
    operator = Operator(engine)
    operator.plan("m", OLD, canary=(NEW, 0.05), stage="drill")
    hours_ago = datetime.now(UTC) - timedelta(hours=2)
    with session_scope(engine) as session:
        session.add(
            Drill(id=new_id(), model="m", production=OLD, other=NEW, actor="ada", state="running",
                  started_at=hours_ago)
        )  # fmt: skip
    with pytest.raises(Refused, match=r"a drill of m is under way"):
        control.start(wish(NEW), BY)
    for _ in range(2):
        with session_scope(engine) as session:
            end_lost(session, datetime.now(UTC))
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0),)
    with session_scope(engine) as session:
        assert [told["state"] for told in repository.drills(session, "m")] == ["bad", "good"]
    assert control.start(wish(NEW), BY)["state"] == "preparing"


def test_a_drill_sends_users_only_to_a_policy_of_the_model_that_an_engine_was_proved_for(
    control: Control, engine: Engine, database: Any
) -> None:
    Operator(engine).policy("n")
    where = "http://127.0.0.1:9"

    def refused(other: str) -> str:
        with pytest.raises(UsageError) as error:
            run_drill(engine, "m", BY, where, other=other)
        return str(error.value)

    assert "n@000000000000 is no policy of m" in refused("n@000000000000")
    assert "m@nothing" in refused("m@nothing")
    assert refused(NEW).endswith("no engine serves it")
    wanted = EngineRow(id=new_id(), policy=NEW, managed=False, desired="up", state="up", url=where)
    with session_scope(engine) as session:
        session.add(wanted)
    assert refused(NEW).endswith("no gateway has proved its engine yet")
    with psycopg.connect(database.owner_url) as connection:
        connection.execute(
            "INSERT INTO registry.engine_proof (id, engine_id, policy, gateway, ok, tolerance, reason)"
            " VALUES (gen_random_uuid(), %s, %s, 'g', false, 1, 'other weights')",
            (wanted.id, NEW),
        )
    assert refused(NEW).endswith("its engine is not the policy: other weights")
    with session_scope(engine) as session:
        assert [told["state"] for told in repository.drills(session, "m")] == ["good"]
        plan = current_plan(session, "m")
    assert plan is not None
    assert (plan.stage, plan.arms) == ("production", (PlannedArm(Arm.PRODUCTION, OLD, 1.0),))
    with _connected(engine) as connection:
        assert connection.execute("SELECT count(*) FROM serving.traffic_plan").fetchall() == [(1,)]


def test_the_previous_engine_stays_until_the_release_is_closed(control: Control, engine: Engine) -> None:
    with session_scope(engine) as session:
        session.add(EngineRow(id=new_id(), policy=OLD, managed=True, desired="up", state="up"))
    begin(control, engine, stages=3)
    later = datetime.now(UTC) + timedelta(days=3)
    with session_scope(engine) as session:
        assert let_engines_go(session, later) == []
    control.close("m", BY)
    with session_scope(engine) as session:
        assert let_engines_go(session, later) == [OLD]


def test_of_an_abort_and_a_promotion_in_the_same_moment_the_audit_says_what_became(
    control: Control, engine: Engine
) -> None:
    begin(control, engine)
    told: list[str] = []
    both = threading.Barrier(2)

    def try_it(word: str, step: Callable[[], object]) -> None:
        both.wait()
        try:
            step()
            told.append(f"{word} went")
        except Refused:
            told.append(f"{word} was refused")

    threads = [
        threading.Thread(target=try_it, args=("abort", lambda: control.abort("m", By("ada", "harm")))),
        threading.Thread(
            target=try_it, args=("promote", lambda: control.promote("m", By("bea", "fine"), to_end=True))
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "abort went" in told
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0),)
    kinds = [(event["kind"], event["actor"]) for event in control.history("m")[0]["events"]][2:]
    if "promote went" in told:
        assert kinds == [("promoted", "bea"), ("aborted", "ada")]
    else:
        assert sorted(kinds) == [("aborted", "ada")]
        with _connected(engine) as connection:
            [(refused, why)] = connection.execute(
                "SELECT actor, after ->> 'refused' FROM releases.event WHERE kind = 'promote-refused'"
            ).fetchall()
        assert (refused, "no release of m is open" in why) == ("bea", True)


def test_a_step_decided_at_another_stage_is_refused(control: Control, engine: Engine) -> None:
    begin(control, engine, stages=2)
    with pytest.raises(Refused, match=r"has meanwhile gone on to half"), session_scope(engine) as session:
        machine.advance(session, "m", BY, seen=0)
    with pytest.raises(Refused, match=r"has meanwhile gone on from shadow to half"):
        control.promote("m", BY, seen="shadow")
    with pytest.raises(Refused, match=r"there is no release .*; open is one of m@000000000001"):
        control.abort("m", BY, release=new_id())
    assert control.promote("m", BY, seen="half")["stage"] == "production"


def test_a_switch_thrown_offline_becomes_the_plan_of_everyone(
    control: Control, engine: Engine, engine_of: Callable[[Role], Engine]
) -> None:
    begin(control, engine, stages=2)
    thrown = insert(OfflineAbort).values(
        id=new_id(), model="m", actor="eve", reason="no database", switched_at=datetime.now(UTC), gateway="g",
        cut=True,
    )  # fmt: skip
    for _ in range(2):
        with session_scope(engine_of(Role.GATEWAY)) as session:
            session.execute(thrown.on_conflict_do_nothing(index_elements=["id"]))
    with session_scope(engine) as session:
        [told] = session.scalars(select(OfflineAbort).where(OfflineAbort.settled_at.is_(None)))
        machine.settle_offline(session, told)
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0),)
    [release] = control.history("m")
    assert (release["state"], release["events"][-1]["actor"]) == ("aborted", "eve")
    assert "switched offline at" in release["events"][-1]["reason"]
    with session_scope(engine) as session:
        plan = current_plan(session, "m")
    assert plan is not None
    assert plan.cut


def test_an_offline_switch_spares_a_release_that_was_started_after_it(
    control: Control, engine: Engine, engine_of: Callable[[Role], Engine]
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    begin(control, engine, stages=2)
    _throw_offline(engine, engine_of, before)
    assert control.status("m")["state"] == "running"
    assert arms(engine)[1] == PlannedArm(Arm.CANARY, NEW, 0.5)
    event = control.history("m")[0]["events"][-1]
    assert (event["kind"], event["actor"]) == ("abort-skipped", "eve")
    assert event["reason"].endswith("this release was started since then")


def test_an_offline_switch_without_an_open_release_is_in_the_audit(
    control: Control, engine: Engine, engine_of: Callable[[Role], Engine]
) -> None:
    Operator(engine).plan("m", OLD, canary=(NEW, 0.05), stage="drill")
    _throw_offline(engine, engine_of, datetime.now(UTC))
    assert arms(engine) == (PlannedArm(Arm.PRODUCTION, OLD, 1.0),)
    with _connected(engine) as connection:
        [(actor, before, after)] = connection.execute(
            "SELECT actor, before, after FROM releases.event WHERE kind = 'withdrawn'"
        ).fetchall()
    assert actor == "eve"
    assert before["arms"]["canary"] == {"policy": NEW, "share": 0.05}
    assert after["arms"] == {"production": {"policy": OLD, "share": 1.0}}


def _throw_offline(engine: Engine, engine_of: Callable[[Role], Engine], moment: datetime) -> None:
    with session_scope(engine_of(Role.GATEWAY)) as session:
        session.execute(
            insert(OfflineAbort).values(
                id=new_id(), model="m", actor="eve", reason="no database", switched_at=moment, gateway="g",
                cut=False,
            )
        )  # fmt: skip
    with session_scope(engine) as session:
        [told] = session.scalars(select(OfflineAbort))
        machine.settle_offline(session, told)
        assert told.settled_at is not None


def test_a_release_rests_on_the_selection_that_chose_its_policy(
    control: Control, engine: Engine, database: Any
) -> None:
    unchosen = replace(wish(NEW), override=False)
    with pytest.raises(Refused, match=f"no selection chose {NEW}.*--override"):
        control.start(unchosen, BY)
    overridden = control.start(wish(NEW), BY)
    assert (overridden["overridden"], overridden["selection"]) == (True, None)
    control.abort("m", BY)
    [told] = control.history("m")
    assert told["events"][0]["reason"] == "because; overridden: no selection chose it"
    gain = {"estimate": 0.1, "low": 0.05, "high": 0.2}
    record = {"candidates": [{"policy": NEW, "primary": None, "changes": [{"name": "math", "gain": gain}]}]}
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "INSERT INTO evaluation.selection"
            " (id, round_id, run_id, candidates, chosen, reason, record, digest)"
            " VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '[]', %s, 'best', %s, 'd')",
            (NEW, Jsonb(record)),
        )
    chosen = control.start(unchosen, BY)
    predicted = chosen["predicted"]
    assert chosen["overridden"] is False
    assert predicted["task:math"]["source"] == f"selection {chosen['selection']}"
    assert (predicted["task:math"]["estimate"], predicted["task:math"]["high"]) == (-0.1, -0.05)


def test_the_audit_is_append_only(control: Control, engine: Engine, database: Any) -> None:
    begin(control, engine)
    for statement in ("UPDATE releases.event SET actor = 'x'", "DELETE FROM releases.event"):
        with (
            psycopg.connect(database.owner_url) as connection,
            pytest.raises(psycopg.errors.RestrictViolation),
        ):
            connection.execute(statement)


def test_documents_of_unknown_things_say_so(control: Control, engine: Engine) -> None:
    with pytest.raises(NotFound, match=r"never had a release"):
        control.status("m")
    with session_scope(engine) as session, pytest.raises(NotFound, match=r"no release has the id"):
        repository.by_id(session, new_id())
    assert control.everything() == []
    with pytest.raises(UsageError):
        control.pause("m", BY)


def _connected(engine: Engine) -> psycopg.Connection[Any]:
    return psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))


@pytest.fixture(autouse=True)
def _engines_close(engine: Engine) -> Iterator[None]:
    yield
    engine.dispose()
