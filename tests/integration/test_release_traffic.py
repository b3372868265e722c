"""Releases as gateways serve them: sticky canaries, shadows that touch nothing, switches that reach
everyone."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from feedback.comparisons import Plan, make_comparisons
from gateway.switch import is_followed, throw
from gateway.traffic import bucket
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.roles import Role
from ratchet.embedded import EmbeddedPostgres
from ratchet.keys import KeyRole
from ratchet.plan import Arm, PlannedArm, publish
from ratchet.prompts import Split, hash_of_text, split
from tests.conftest import Database
from tests.support.gateway_process import (
    GatewayProcess,
    Operator,
    operator_of,
    running_gateway,
    running_stub,
    wait_until,
)
from tests.support.stub_engine import StubEngine

CHAT = "/v1/chat/completions"
NUMBERS = count()


@dataclass
class Stage:
    """A model with a policy in production and a candidate, each with a stub engine."""

    gateway: GatewayProcess
    operator: Operator
    key: str
    model: str
    old: str
    new: str
    old_engine: StubEngine
    new_engine: StubEngine

    def plan(self, *arms: tuple[Arm, str, float], cut: bool = False, fallback: str | None = None) -> int:
        with session_scope(self.operator.engine) as session:
            return publish(
                session, model=self.model, stage="s", arms=tuple(PlannedArm(*arm) for arm in arms),
                actor="test", reason="test", salt="salt", cut=cut, fallback=fallback,
            )  # fmt: skip

    def follow(self, version: int) -> None:
        """Waits until the gateway follows a plan."""
        wait_until(
            lambda: self.gateway.metric("ratchet_plan_version", gen_ai_request_model=self.model) == version,
            "the plan is followed",
        )

    def ask(
        self, user: str = "ada", *, stream: bool = False, **fields: Any
    ) -> tuple[int, Any, dict[str, str]]:
        document = {
            "model": self.model, "messages": [{"role": "user", "content": "Hello"}], "stream": stream,
            "user": user, **fields,
        }  # fmt: skip
        return self.gateway.post(CHAT, document, self.key)

    def rows(self, condition: str = "", *values: Any) -> list[dict[str, Any]]:
        return self.gateway.rows(f"WHERE policy IN (%s, %s) {condition}", self.old, self.new, *values)


@pytest.fixture(scope="module")
def operator(module_database: Database) -> Iterator[Operator]:
    with operator_of(module_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def gateway(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(
        module_database, folder, switch_dir=folder / "switch", shadow_places=3, upstream_timeout_s=20
    ) as started:
        yield started


@pytest.fixture
def stage(gateway: GatewayProcess, operator: Operator) -> Iterator[Stage]:
    model = f"r{next(NUMBERS)}"
    old, new = operator.policy(model), operator.policy(model, weights=1)
    with (
        running_stub(old, text="old{} ", tokens=4) as old_engine,
        running_stub(new, text="new{} ", tokens=4, weights=1, fingerprint="stub-new") as new_engine,
    ):
        made = Stage(gateway, operator, operator.key(), model, old, new, old_engine, new_engine)
        operator.plan(model, old)
        for policy, engine in ((old, old_engine), (new, new_engine)):
            operator.add_engine(policy, engine.url)
        for policy in (old, new):
            wait_until(
                lambda policy=policy: gateway.post(
                    CHAT, {"model": policy, "messages": [{"role": "user", "content": "x"}]}, made.key
                )[0] == 200,
                "its engine is proved",
            )  # fmt: skip
        yield made
        operator.dismiss(old)
        operator.dismiss(new)


def _good(answer: tuple[int, Any, dict[str, str]]) -> tuple[int, Any, dict[str, str]] | None:
    return answer if answer[0] == 200 else None


def canary_user(share: float) -> str:
    return next(f"user{n}" for n in range(10_000) if bucket("salt", f"user:user{n}") < share)


def test_a_tenth_of_a_thousand_users_are_in_the_canary_each_always_on_one_arm(stage: Stage) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.9), (Arm.CANARY, stage.new, 0.1)))
    arms: defaultdict[str, set[str]] = defaultdict(set)

    async def ask_all() -> None:
        gate = asyncio.Semaphore(64)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {stage.key}"}) as session:

            async def ask(user: str) -> None:
                document = {
                    "model": stage.model, "messages": [{"role": "user", "content": "x"}], "user": user,
                    "max_tokens": 1,
                }  # fmt: skip
                async with gate, session.post(stage.gateway.url + CHAT, json=document) as answer:
                    assert answer.status == 200
                    arms[user].add(answer.headers["x-ratchet-arm"])

            for _ in range(5):
                await asyncio.gather(*(ask(f"u{number}") for number in range(200)))

    asyncio.run(ask_all())
    assert all(len(seen) == 1 for seen in arms.values())
    of_gateway = {user for user, seen in arms.items() if seen == {"canary"}}
    everyone = {f"u{number}" for number in range(1000) if bucket("salt", f"user:u{number}") < 0.1}
    assert of_gateway == everyone & arms.keys()
    assert 70 < len(everyone) < 130


def test_a_growing_share_keeps_its_users_and_a_holdback_takes_none_of_them(stage: Stage) -> None:
    users = [f"u{number}" for number in range(30)]

    def arms() -> dict[str, str]:
        return {user: stage.ask(user, max_tokens=1)[2]["x-ratchet-policy"] for user in users}

    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.5), (Arm.CANARY, stage.new, 0.5)))
    half = {user for user, policy in arms().items() if policy == stage.new}
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.2), (Arm.CANARY, stage.new, 0.8)))
    most = {user for user, policy in arms().items() if policy == stage.new}
    stage.follow(
        stage.plan((Arm.PRODUCTION, stage.new, 0.8), (Arm.HOLDBACK, stage.old, 0.2), fallback=stage.old)
    )
    assert half < most
    assert {user for user, policy in arms().items() if policy == stage.new} == most


def test_a_pinned_request_never_enters_the_canary(stage: Stage) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.0), (Arm.CANARY, stage.new, 1.0)))
    assert stage.ask()[2]["x-ratchet-arm"] == "canary"
    for policy in (stage.old, stage.new):
        _, _, headers = stage.ask(model=policy)
        assert (headers["x-ratchet-policy"], headers["x-ratchet-arm"]) == (policy, "production")


@pytest.mark.parametrize("stream", [True, False])
def test_a_shadow_answers_too_and_nobody_is_shown_it(stage: Stage, stream: bool) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 1.0), (Arm.SHADOW, stage.new, 1.0)))
    status, body, headers = stage.ask(stream=stream)
    assert status == 200
    assert "new0" not in json.dumps(body)
    [copy] = wait_until(
        lambda: stage.rows("AND pair_of = %s", headers["x-ratchet-response-id"]), "the copy is stored"
    )
    assert (copy["arm"], copy["policy"], copy["status"], copy["stamp"]) == (
        "shadow", stage.new, "ok", "verified"
    )  # fmt: skip
    assert copy["output"] == "new0 new1 new2 new3 "
    assert (copy["user_id"], copy["stream"], copy["output_tokens"]) == ("ada", stream, 4)
    original = stage.gateway.row(headers["x-ratchet-response-id"])
    assert original["output"] == "old0 old1 old2 old3 "
    same = ("prompt_hash", "history_hash", "conversation_id", "plan_version", "messages")
    assert [copy[name] for name in same] == [original[name] for name in same]


def test_a_shadow_and_the_answer_it_is_a_copy_of_are_compared_by_raters(
    stage: Stage, module_database: Database
) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 1.0), (Arm.SHADOW, stage.new, 1.0)))
    prompt = next(text for n in range(100) if split(hash_of_text(text := f"question {n}")) is Split.TRAIN)
    _, _, headers = stage.ask(messages=[{"role": "user", "content": prompt}])
    identity = headers["x-ratchet-response-id"]
    [copy] = wait_until(lambda: stage.rows("AND pair_of = %s", identity), "the copy is stored")
    engine = open_engine(module_database.url(Role.FEEDBACK), application="test", pool_size=1)
    with session_scope(engine) as session:
        made = make_comparisons(session, Plan(1_000, 2, ("policy",)), now=datetime.now(UTC))
    engine.dispose()
    assert made >= 1
    found = stage.gateway.query(
        "SELECT source, a_answer, b_answer, a_policy, b_policy FROM feedback.comparison WHERE %s IN"
        " (a_answer, b_answer)",
        identity,
    )
    [row] = found
    assert row["source"] == "shadow"
    assert {row["a_answer"], row["b_answer"]} == {identity, str(copy["id"])}
    assert {row["a_policy"], row["b_policy"]} == {stage.old, stage.new}


def test_completions_are_copied_and_answers_that_failed_are_not(stage: Stage) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 1.0), (Arm.SHADOW, stage.new, 1.0)))
    stage.old_engine.tell(status=500)
    assert stage.ask()[0] == 502
    stage.old_engine.tell(status=200)
    before = len(stage.new_engine.state()["requests"])
    document = {"model": stage.model, "prompt": "Once", "max_tokens": 2}
    status, _, headers = stage.gateway.post("/v1/completions", document, stage.key)
    assert status == 200
    [copy] = wait_until(
        lambda: stage.rows("AND pair_of = %s", headers["x-ratchet-response-id"]), "the copy is stored"
    )
    assert (copy["kind"], copy["output"]) == ("completion", "new0 new1 ")
    assert len(stage.new_engine.state()["requests"]) == before + 1


@pytest.mark.parametrize("fault", ["hang", "die", "garbage"])
def test_a_shadow_that_breaks_changes_nothing_for_users(stage: Stage, fault: str) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 1.0), (Arm.SHADOW, stage.new, 1.0)))
    stage.new_engine.tell(fault=fault, fault_after=1)
    answers = [stage.ask(f"u{number}", stream=number % 2 == 0) for number in range(8)]
    assert [status for status, _, _ in answers] == [200] * 8
    originals = [stage.gateway.row(headers["x-ratchet-response-id"]) for _, _, headers in answers]
    assert {row["output"] for row in originals} == {"old0 old1 old2 old3 "}
    if fault == "hang":
        assert stage.new_engine.state()["in_flight"] == 3
        dropped = stage.gateway.metric(
            "ratchet_shadow_requests_total", gen_ai_response_model=stage.new, ratchet_status="dropped"
        )
        assert dropped == 5
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 1.0)))
    wait_until(lambda: stage.new_engine.process is None or fault == "die" or
               stage.new_engine.state()["in_flight"] == 0, "the copies are ended")  # fmt: skip
    copies = stage.rows("AND pair_of IS NOT NULL")
    assert {row["status"] for row in copies} <= {"error", "rejected"}


def test_a_cut_ends_the_streams_of_the_bad_policy_alone(stage: Stage) -> None:
    user = canary_user(0.5)
    other = next(f"user{n}" for n in range(10_000) if bucket("salt", f"user:user{n}") >= 0.5)
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.5), (Arm.CANARY, stage.new, 0.5)))
    for engine in (stage.old_engine, stage.new_engine):
        engine.tell(tokens=30, gap_s=0.1)

    async def story() -> list[str]:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {stage.key}"}) as session:
            document = {
                "model": stage.model, "messages": [{"role": "user", "content": "x"}], "stream": True,
                "max_tokens": 30,
            }  # fmt: skip
            bad = await session.post(stage.gateway.url + CHAT, json={**document, "user": user})
            good = await session.post(stage.gateway.url + CHAT, json={**document, "user": other})
            whole = asyncio.ensure_future(
                session.post(stage.gateway.url + CHAT, json={**document, "user": user, "stream": False})
            )
            while stage.new_engine.state()["in_flight"] < 2:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(stage.plan, (Arm.PRODUCTION, stage.old, 1.0), cut=True)
            texts = [await bad.text(), await (await whole).text(), await good.text()]
            assert (await whole).status == 503
            return texts

    bad, whole, good = asyncio.run(story())
    assert json.loads(bad.strip().splitlines()[-1][6:])["error"]["code"] == "policy_withdrawn"
    assert json.loads(whole)["error"]["code"] == "policy_withdrawn"
    assert good.endswith("data: [DONE]\n\n")
    rows = wait_until(lambda: stage.rows("AND error_code = 'policy_withdrawn'"), "the rows are stored")
    assert {row["policy"] for row in rows} == {stage.new}
    wait_until(lambda: stage.new_engine.state()["cancelled"] == 2, "the engine was stopped")


def test_the_offline_switch_works_without_a_database_and_is_told_to_it_later(
    cluster: EmbeddedPostgres, stage: Stage
) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.new, 1.0), fallback=stage.old))
    assert stage.ask()[2]["x-ratchet-policy"] == stage.new
    folder: Path = stage.gateway.settings["switch_dir"]
    cluster.stop()
    try:
        thrown = throw(folder, stage.model, "it rambles", cut=False)
        assert is_followed(folder, thrown)
        wait_until(lambda: stage.ask()[2]["x-ratchet-policy"] == stage.old, "the switch works")
    finally:
        cluster.start()
    told = wait_until(
        lambda: stage.gateway.query("SELECT * FROM releases.offline_abort WHERE id = %s", thrown.id),
        "the database is told",
    )
    assert (told[0]["model"], told[0]["reason"]) == (stage.model, "it rambles")
    assert told[0]["cut"] is False
    assert stage.ask()[2]["x-ratchet-policy"] == stage.old
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.5), (Arm.CANARY, stage.new, 0.5)))
    assert {stage.ask(user=f"u{n}")[2]["x-ratchet-policy"] for n in range(20)} == {stage.old}
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 1.0)))
    wait_until(lambda: list(folder.iterdir()) == [], "the switch is put away")
    stage.follow(stage.plan((Arm.PRODUCTION, stage.new, 1.0)))
    wait_until(lambda: stage.ask()[2]["x-ratchet-policy"] == stage.new, "later plans are followed")


def test_probes_are_marked_only_for_keys_of_our_own(stage: Stage) -> None:
    service = stage.operator.key(KeyRole.SERVICE)
    document = {"model": stage.new, "messages": [{"role": "user", "content": "x"}]}
    marks: list[str | None] = []
    for key in (service, stage.key):
        _, _, headers = wait_until(
            lambda key=key: _good(stage.gateway.post(CHAT, document, key, **{"x-ratchet-probe": "benign:3"})),
            "the key is known",
        )
        marks.append(stage.gateway.row(headers["x-ratchet-response-id"])["probe"])
    assert marks == ["benign:3", None]


def test_a_restarted_gateway_keeps_everyone_on_their_arm(
    stage: Stage, module_database: Database, tmp_path: Path
) -> None:
    stage.follow(stage.plan((Arm.PRODUCTION, stage.old, 0.5), (Arm.CANARY, stage.new, 0.5)))
    users = [f"u{number}" for number in range(20)]
    before = {user: stage.ask(user, max_tokens=1)[2]["x-ratchet-arm"] for user in users}
    with running_gateway(module_database, tmp_path) as other:
        stage.gateway = other
        wait_until(lambda: stage.ask(users[0])[0] == 200, "the other gateway serves")
        wait_until(
            lambda: stage.ask(canary_user(0.5))[2].get("x-ratchet-arm") == "canary", "the canary is proved"
        )
        after = {user: stage.ask(user, max_tokens=1)[2]["x-ratchet-arm"] for user in users}
    assert before == after
    assert set(before.values()) == {"production", "canary"}
