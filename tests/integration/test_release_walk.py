"""Releases walked on real gateways with stub engines: to production, back, and nowhere."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update

from gateway.releases.audit import Refused
from gateway.releases.control import Control
from gateway.releases.drill import run_drill
from gateway.releases.probes import Trickle, load_probes
from gateway.releases.settings import ReleaseSettings
from gateway.releases.walker import Walker
from gateway.releases.webhook import Webhook
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import Release
from ratchet.home import Home
from ratchet.keys import KeyRole
from ratchet.secrets_store import save_role_urls
from tests.conftest import Database
from tests.support.gateway_process import (
    GatewayProcess,
    Operator,
    Scene,
    operator_of,
    running_gateway,
    running_stub,
    scene_of,
    wait_until,
)
from tests.support.releases import BY, add_drill, wish

NUMBERS = count()


@pytest.fixture(scope="module")
def operator(module_database: Database) -> Iterator[Operator]:
    with operator_of(module_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def gateway(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(module_database, tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.fixture
def scene(gateway: GatewayProcess, operator: Operator) -> Iterator[Scene]:
    with scene_of(gateway, operator, operator.key(), f"w{next(NUMBERS)}") as made:
        add_drill(operator.engine, made.model)
        yield made.serve()


@pytest.fixture
def told() -> list[dict[str, Any]]:
    """What the webhook was told."""
    return []


@pytest.fixture
def hook(told: list[dict[str, Any]]) -> Iterator[str]:
    """A webhook that fails once."""

    class Handler(BaseHTTPRequestHandler):
        failed = False

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            first = not Handler.failed
            Handler.failed = True
            self.send_response(500 if first else 204)
            self.end_headers()
            if not first:
                told.append(json.loads(body))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@contextmanager
def walking(engine: Engine, url: str, operator: Operator, **settings: Any) -> Iterator[Walker]:
    """A walker whose rounds the test calls."""
    given = ReleaseSettings(database_url="unused", release_gateway_url=url, release_probe_s=0, **settings)  # type: ignore[arg-type]
    trickle = Trickle(url, operator.key(KeyRole.SERVICE), load_probes(None))
    webhook = Webhook(lambda *_: None, first_wait_s=0.01)
    yield Walker(engine, given, trickle, webhook)
    trickle.close()
    webhook.stop()


def until(walker: Walker, holds: Callable[[], Any], what: str) -> Any:
    def look() -> Any:
        walker.round()
        return holds()

    return wait_until(look, what)


def traffic(scene: Scene, users: int = 40) -> None:
    """One request of each of so many users, stored."""
    answers = [scene.ask(stream=False, user=f"u{number}", max_tokens=4) for number in range(users)]
    last = answers[-1][2]["x-ratchet-response-id"]
    wait_until(lambda: scene.gateway.rows("WHERE id = %s", last), "the rows are stored")


def test_a_good_candidate_reaches_production_and_an_abort_an_hour_later_works(scene: Scene) -> None:
    new = scene.operator.policy(scene.model, weights=1)
    control = Control(scene.operator.engine)
    stages = [
        {"name": "shadow", "kind": "shadow", "share": 1.0, "users": 2},
        {"name": "half", "kind": "canary", "share": 0.5, "users": 5},
    ]
    with (
        running_stub(new, weights=1, fingerprint="stub-new") as engine,
        walking(scene.operator.engine, scene.gateway.url, scene.operator) as walker,
    ):
        control.start(wish(new, engine.url, look_seconds=0.001, stages=stages), BY)
        before = scene.ask(stream=False)[2]["x-ratchet-policy"]
        stage = until(walker, lambda: _is_at(control, scene, "shadow"), "the engine is proved and warm")
        assert (before, stage["state"]) == (scene.policy, "running")
        warm = "WHERE policy = %s AND probe = 'warm' AND status = 'ok'"
        wait_until(lambda: len(scene.gateway.rows(warm, new)) >= 8, "the rows of its warming are stored")

        traffic(scene, 6)
        until(walker, lambda: _is_at(control, scene, "half"), "the shadow was long enough")
        for _ in range(4):
            traffic(scene, 60)
        promoted = until(walker, lambda: _is_at(control, scene, "production"), "it is promoted")
        assert (promoted["state"], promoted["look"]["decision"]) == ("promoted", "done")
        wait_until(lambda: scene.ask(stream=False)[2]["x-ratchet-policy"] == new, "everyone has it")

        with session_scope(scene.operator.engine) as session:
            session.execute(
                update(Release).where(Release.policy == new).values(
                    stage_since=datetime.now(UTC) - timedelta(hours=1)
                )
            )  # fmt: skip
        walker.round()
        control.abort(scene.model, BY)
        wait_until(lambda: scene.ask(stream=False)[2]["x-ratchet-policy"] == scene.policy, "all are back")
    scene.operator.dismiss(new)


def test_a_failing_candidate_is_aborted_while_the_stage_waits_and_the_webhook_is_told(
    scene: Scene, hook: str, told: list[dict[str, Any]]
) -> None:
    new = scene.operator.policy(scene.model, weights=1)
    control = Control(scene.operator.engine)
    stages = [{"name": "half", "kind": "canary", "share": 0.5, "users": 1000, "hours": 100}]
    with (
        running_stub(new, weights=1, fingerprint="stub-new") as engine,
        walking(scene.operator.engine, scene.gateway.url, scene.operator) as walker,
    ):
        control.start(wish(new, engine.url, look_seconds=0.001, stages=stages, webhook=hook), BY)
        until(walker, lambda: _is_at(control, scene, "half"), "the canary has begun")
        engine.tell(status=500)
        traffic(scene, 120)
        aborted = until(walker, lambda: _ended(control, scene), "it is aborted")
        wait_until(lambda: told, "the webhook is told in the second attempt")
    assert aborted["state"] == "aborted"
    assert (told[0]["event"], told[0]["policy"], told[0]["state"]) == ("release_aborted", new, "aborted")
    assert "errors: worse by" in told[0]["reason"]
    [alarm] = scene.gateway.query(
        "SELECT * FROM operations.alarm WHERE kind = 'release_aborted' AND subject = %s", told[0]["release"]
    )
    assert alarm["cleared_at"] is None
    events = control.history(scene.model)[0]["events"]
    assert (events[-1]["kind"], events[-1]["actor"]) == ("aborted", "walker")
    scene.operator.dismiss(new)


def test_an_engine_that_never_becomes_ready_fails_the_release_before_any_traffic(scene: Scene) -> None:
    new = scene.operator.policy(scene.model, weights=1)
    control = Control(scene.operator.engine)
    with (
        running_stub(new, weights=2, fingerprint="stub-wrong") as engine,
        walking(scene.operator.engine, scene.gateway.url, scene.operator, release_ready_s=1) as walker,
    ):
        control.start(wish(new, engine.url), BY)
        failed = until(walker, lambda: _ended(control, scene), "it has failed")
    assert failed["state"] == "failed"
    reason = control.history(scene.model)[0]["events"][-1]["reason"]
    assert "not ready within 1 s: its engine is not the policy" in reason
    assert scene.gateway.rows("WHERE policy = %s AND probe IS NULL", new) == []
    assert scene.gateway.query("SELECT 1 FROM serving.traffic_plan WHERE model = %s", scene.model) == [
        {"?column?": 1}
    ]
    scene.operator.dismiss(new)


def test_a_drill_pulls_the_switch_on_live_traffic_and_leaves_the_plan_as_it_was(scene: Scene) -> None:
    drill = run_drill(scene.operator.engine, scene.model, BY, scene.gateway.url, switches=3)
    assert (drill["state"], drill["switches"], drill["failed"], drill["missed"]) == ("good", 3, 0, 0)
    assert drill["requests"] > 10
    plans = scene.gateway.query(
        "SELECT stage, arms, actor FROM serving.traffic_plan WHERE model = %s ORDER BY version", scene.model
    )
    assert [plan["stage"] for plan in plans] == ["production", *["drill", "production"] * 3]
    assert plans[0]["arms"] == plans[-1]["arms"]
    rows = scene.gateway.rows("WHERE model = %s", scene.model)
    assert {row["probe"] for row in rows} == {"drill"}
    audit = scene.gateway.query(
        "SELECT DISTINCT kind, actor FROM releases.event WHERE model = %s", scene.model
    )
    assert audit == [{"kind": "drill", "actor": "ada"}]
    keys = scene.gateway.query(
        "SELECT revoked_at FROM serving.api_key WHERE name = %s", f"drill of {scene.model}"
    )
    assert [key["revoked_at"] is None for key in keys] == [False]


def test_a_drill_takes_another_policy_that_was_proved(scene: Scene) -> None:
    new = scene.operator.policy(scene.model, weights=1)
    with running_stub(new, weights=1, fingerprint="stub-new") as engine:
        scene.operator.add_engine(new, engine.url)
        proved = "SELECT 1 FROM registry.engine_proof WHERE policy = %s AND ok"
        wait_until(lambda: scene.gateway.query(proved, new), "the other policy is proved")
        drill = run_drill(scene.operator.engine, scene.model, BY, scene.gateway.url, other=new, switches=1)
    assert (drill["other"], drill["missed"]) == (new, 0)
    scene.operator.dismiss(new)


def test_a_drill_is_refused_while_a_release_is_open(scene: Scene) -> None:
    new = scene.operator.policy(scene.model, weights=1)
    Control(scene.operator.engine).start(wish(new), BY)
    with pytest.raises(Refused, match="drill before it starts"):
        run_drill(scene.operator.engine, scene.model, BY, scene.gateway.url)
    scene.operator.dismiss(new)


def test_the_commands_do_the_same(scene: Scene, module_database: Database, tmp_path: Path) -> None:
    home = Home(tmp_path).ensure()
    save_role_urls(home, module_database.urls)
    new = scene.operator.policy(scene.model, weights=1)

    def ratchet(*words: str, root: Path = home.root) -> tuple[int, Any, str]:
        done = subprocess.run(
            [sys.executable, "-m", "ratchet.cli", "release", *words, "--data-dir", str(root), "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    code, _, said = ratchet("start", new, "--plan", "small")
    assert (code, "no selection chose" in said, said.count("\n")) == (2, True, 1)
    code, started, _ = ratchet("start", new, "--plan", "small", "--override", "--reason", "better")
    assert (code, started["state"], started["plan"]) == (0, "preparing", "small")
    assert (started["overridden"], started["selection"]) == (True, None)
    code, _, said = ratchet("promote", scene.model)
    assert (code, "cannot be promoted" in said, said.count("\n")) == (2, True, 1)
    assert ratchet("status", scene.model)[1]["policy"] == new
    code, aborted, _ = ratchet("abort", scene.model, "--cut", "--reason", "no")
    assert (code, aborted["state"]) == (0, "aborted")
    history = ratchet("history", scene.model)[1]
    assert [event["kind"] for event in history[0]["events"]] == ["started", "promote-refused", "aborted"]
    assert history[0]["events"][0]["reason"] == "better; overridden: no selection chose it"
    code, _, said = ratchet("abort", scene.model, "--offline", "--reason", "away")
    assert (code, f"no gateway follows {home.switch}" in said, said.count("\n")) == (2, True, 1)
    [left] = home.switch.glob("*.json")
    assert left.name in said
    missing = tmp_path / "missing"
    code, _, said = ratchet("abort", scene.model, "--offline", root=missing)
    assert (code, "there is no data folder" in said, missing.exists()) == (2, True, False)
    assert ratchet("abort", "--offline")[0] == 2
    assert ratchet("start", new, "--plan", "nothing")[0] == 2
    scene.operator.dismiss(new)


def _is_at(control: Control, scene: Scene, stage: str) -> dict[str, Any] | None:
    found = control.status(scene.model)
    return found if found["stage"] == stage else None


def _ended(control: Control, scene: Scene) -> dict[str, Any] | None:
    found = control.status(scene.model)
    return found if found["ended_at"] else None
