"""The release process over HTTP: routes for operators' keys, pages in a real Chromium."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from sqlalchemy import Engine

from gateway.releases import machine
from gateway.releases.app import create_app
from gateway.releases.control import Control
from ratchet import loop
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import AnalysisRow, Look, Release
from ratchet.db.roles import Role
from ratchet.ids import new_id
from ratchet.keys import KeyRole
from ratchet.loop import State, Step, Wish
from tests.conftest import Database
from tests.support.gateway_process import Operator
from tests.support.releases import BY, two_policies, wish
from tests.support.served import served

playwright_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)
OLD, NEW = "m@000000000000", "m@000000000001"


@pytest.fixture
def engine(engine_of: Callable[[Role], Engine]) -> Engine:
    return engine_of(Role.OPERATOR)


@pytest.fixture
def operator(engine: Engine) -> Operator:
    made = Operator(engine)
    two_policies(made, "m")
    return made


@pytest.fixture
def site(database: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RATCHET_DATABASE_URL", database.url(Role.OPERATOR))
    monkeypatch.setenv("RATCHET_RELEASE_GATEWAY_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("RATCHET_RELEASE_TICK_S", "3600")
    with served(create_app()) as url:
        yield url


@pytest.fixture
def release(engine: Engine, operator: Operator) -> Release:
    """A release with half of the users, looked at three times."""
    Control(engine).start(wish(NEW), BY)
    with session_scope(engine) as session:
        found = machine.open_release(session, "m")
        assert found is not None
        machine.enter(session, found, 0, BY)
        machine.enter(session, found, 1, BY)
    for number, width in enumerate((0.4, 0.2, 0.1), 1):
        with session_scope(engine) as session:
            look = Look(
                id=new_id(), release_id=found.id, stage="half", number=number, decision="hold",
                reason="2 of 9 <users>", exposure={"users": 2, "hours": 0.5},
            )  # fmt: skip
            session.add(look)
            session.flush()
            for metric in ("errors", "refusal_benign", "refusal_harmful", "length"):
                session.add(
                    AnalysisRow(
                        look_id=look.id, metric=metric, n_baseline=10, n_candidate=9, baseline=0.1,
                        candidate=0.2, estimate=0.1, low=0.1 - width, high=0.1 + width, decision="undecided",
                        detail={
                            "quantiles": {"baseline": [1, 5, 9, 20, 40], "candidate": [2, 9, 20, 50, 90]}
                        },
                    )
                )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def enter(page: Any, site: str, key: str) -> None:
    page.goto(site)
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Models").wait_for()


@needs_chromium
def test_an_operator_signs_in_reads_the_figures_and_aborts_with_the_keyboard(
    database: Database, site: str, operator: Operator, release: Release, browser: Any
) -> None:
    page = browser.new_page()
    page.goto(f"{site}/releases/{release.id}")
    assert page.get_by_label("API key").is_visible()
    enter(page, site, operator.key(KeyRole.OPERATOR))
    page.get_by_role("link", name=NEW).click()
    assert page.title() == f"{NEW} · Ratchet"
    assert page.locator(".walk .here").inner_text() == "half"
    assert page.locator(".arms li").all_inner_texts() == [
        f"production {OLD} 50% of users", f"canary {NEW} 50% of users"
    ]  # fmt: skip
    assert page.get_by_text("2 of 9 <users>.").is_visible()
    assert page.get_by_role("heading", name="Refusal, split in two").is_visible()
    charts = page.get_by_role("img", name="how much worse the candidate is, over time")
    assert charts.count() == 4
    assert charts.first.locator("polygon.band").get_attribute("points").count(",") == 6
    errors = page.get_by_role("img", name="errors: how much worse")
    assert errors.locator("text.bound").all_text_contents() == ["harm", "margin"]
    lengths = page.get_by_role("img", name="Tokens of an answer, by policy")
    assert lengths.locator("rect").count() == 2
    assert page.locator("tbody tr").count() == 3

    page.get_by_label("Why").focus()
    page.keyboard.type("it rambles")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+Tab")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.locator(".head .state").first.inner_text() == "aborted"
    assert page.get_by_role("button", name="Abort").count() == 0
    page.close()
    assert rows(database, "SELECT state FROM releases.release") == [("aborted",)]
    assert rows(database, "SELECT actor, reason FROM releases.event WHERE kind = 'aborted'") == [
        ("test", "it rambles")
    ]
    assert rows(database, "SELECT cut FROM serving.traffic_plan ORDER BY version DESC LIMIT 1") == [(True,)]


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_a_phone_in_light_and_dark(
    site: str, operator: Operator, release: Release, browser: Any, scheme: str
) -> None:
    phone = browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, color_scheme=scheme
    )
    page = phone.new_page()
    enter(page, site, operator.key(KeyRole.OPERATOR))
    for path in ("/", f"/releases/{release.id}"):
        page.goto(site + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 23, 28)"}[scheme]
    assert page.get_by_role("button", name="Abort").bounding_box()["height"] >= 40
    phone.close()


@needs_chromium
def test_figures_are_shown_anew_without_losing_what_was_typed(
    engine: Engine, site: str, operator: Operator, release: Release, browser: Any
) -> None:
    page = browser.new_page()
    page.clock.install()
    enter(page, site, operator.key(KeyRole.OPERATOR))
    page.goto(f"{site}/releases/{release.id}")
    page.get_by_label("Why").fill("half a sentence")
    with session_scope(engine) as session:
        session.add(
            Look(id=new_id(), release_id=release.id, stage="half", number=4, decision="hold", reason="fresh",
                 exposure={"users": 3, "hours": 1.0})
        )  # fmt: skip
    page.clock.fast_forward(6000)
    page.get_by_text("Look 4").wait_for()
    assert page.get_by_label("Why").input_value() == "half a sentence"
    page.close()


def test_forms_of_other_sites_and_other_sessions_do_nothing(
    database: Database, site: str, operator: Operator, release: Release
) -> None:
    key = operator.key(KeyRole.OPERATOR)
    path = f"/releases/{release.id}/abort"
    with httpx.Client(base_url=site) as client:
        assert client.post(path, data={"reason": "x"}).status_code == 401
        assert client.post("/sign-in", data={"key": operator.key()}).status_code == 401
        signed = client.post("/sign-in", data={"key": key})
        cookie = signed.headers["set-cookie"]
        assert ("HttpOnly" in cookie, "SameSite=strict" in cookie) == (True, True)
        assert client.post(path, data={"reason": "x"}).status_code == 409
        assert client.post(path, data={"reason": "x", "form_token": "0" * 64}).status_code == 409
        strange = client.post(path, data={"reason": "x", "form_token": "ü" * 64})
        assert (strange.status_code, "load the page again" in strange.text) == (409, True)
        forged = client.post(path, data={"reason": "x"}, headers={"sec-fetch-site": "cross-site"})
        assert forged.status_code == 409
        page = client.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
    assert rows(database, "SELECT state FROM releases.release") == [("running",)]


def test_a_button_acts_on_what_its_page_showed(
    database: Database, engine: Engine, site: str, operator: Operator
) -> None:
    control = Control(engine)
    first = UUID(control.start(wish(NEW), BY)["release"])
    with session_scope(engine) as session:
        machine.enter(session, session.get_one(Release, first), 0, BY)
    with httpx.Client(base_url=site) as client:
        client.post("/sign-in", data={"key": operator.key(KeyRole.OPERATOR)})
        page = client.get(f"/releases/{first}").text
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
        assert fields["stage"] == "shadow"
        assert client.post(f"/releases/{first}/promote", data=fields).status_code == 303
        again = client.post(f"/releases/{first}/promote", data=fields)
        assert (again.status_code, "gone on from shadow to half" in again.text) == (409, True)
        assert control.status("m")["stage"] == "half"
        assert client.post(f"/releases/{first}/pause", data=fields).status_code == 409
        assert client.post(f"/releases/{first}/abort", data=fields).status_code == 303
        control.start(wish(NEW), BY)
        for step in ("abort", "promote", "pause", "resume", "close"):
            refused = client.post(f"/releases/{first}/{step}", data=fields)
            assert (refused.status_code, f"release of {NEW} is aborted; open is one" in refused.text) == (
                409,
                True,
            )
    assert control.status("m")["state"] == "preparing"


@needs_chromium
def test_a_turn_of_the_loop_is_read_stopped_and_taken_up_again(
    site: str, engine: Engine, operator: Operator, browser: Any
) -> None:
    wish_of_turn = Wish("m", OLD, "dpo", selection={"suites": []})
    detail = {
        "ledger": {"data": 5, "used": 3, "held_out": 1, "left_out": {"identical": 1}},
        "staleness": {"rows": 3, "by_distance": {"0": 1, "1": 2}, "unspoken": 0},
    }
    with session_scope(engine) as session:
        identity = loop.begin(session, wish_of_turn, by="ann", reason="weekly <pairs>")
        loop.note(session, identity, Step.SNAPSHOT, State.DONE, subject="d" * 64, detail=detail)
    page = browser.new_page()
    enter(page, site, operator.key(KeyRole.OPERATOR))
    page.get_by_role("link", name="Loop").click()
    assert page.locator("tbody td").all_inner_texts()[3:] == ["running", "–", "66.7%", "train is waiting"]
    page.get_by_role("link", name=str(identity)[-12:]).click()
    assert "by ann: weekly <pairs>" in page.locator("main").inner_text()
    ledger = page.locator("section", has=page.get_by_role("heading", name="What became of every datum"))
    assert ledger.locator("tr").all_inner_texts() == [
        "read\t5", "in the snapshot\t3", "held out\t1", "left out: identical\t1"
    ]  # fmt: skip
    page.get_by_label("Why").fill("not now")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped by test: not now").wait_for()
    page.get_by_role("button", name="Retry from where it broke").click()
    page.get_by_text("train is waiting").wait_for()
    with session_scope(engine) as session:
        states = [step.state for step in loop.steps_of(session, identity)]
    assert states == ["done", "waiting", "waiting", "waiting"]
    page.close()


def test_a_session_ends_with_its_key(site: str, operator: Operator) -> None:
    key = operator.key(KeyRole.OPERATOR)
    with httpx.Client(base_url=site) as client:
        client.post("/sign-in", data={"key": key})
        assert client.get("/").status_code == 200
        operator.revoke(key)
        assert client.get("/").status_code == 303


def test_the_same_over_http_for_operators_keys_alone(site: str, operator: Operator) -> None:
    with httpx.Client(base_url=site) as client:
        assert client.get("/admin/releases").status_code == 401
        client.headers["authorization"] = f"Bearer {operator.key()}"
        refused = client.get("/admin/releases")
        assert (refused.status_code, "role client" in refused.json()["error"]) == (401, True)
        client.headers["authorization"] = f"Bearer {operator.key(KeyRole.OPERATOR)}"
        assert client.get("/admin/releases").json() == []
        assert client.get("/admin/releases/m").status_code == 404
        wanted = {"policy": NEW, "plan": "small", "reason": "better", "override": True}
        unchosen = client.post("/admin/releases", json={**wanted, "override": False})
        assert (unchosen.status_code, "no selection chose" in unchosen.json()["error"]) == (409, True)
        assert client.post("/admin/releases", json={**wanted, "plan": "/etc/passwd"}).status_code == 409
        assert client.post("/admin/releases", json={**wanted, "webhook": "http://x"}).status_code == 422
        effect = {"estimate": -0.1, "low": -0.2, "high": 0.0}
        for wrong in ({"low": None}, {"estimate": "much"}, {"more": 1}, {"high": 1e400}):
            predicted = {"errors": {**effect, **wrong}}
            body = json.dumps({**wanted, "predicted": predicted})
            sent = client.post("/admin/releases", content=body, headers={"content-type": "application/json"})
            assert (sent.status_code, "predicted" in sent.text) == (422, True)
        assert (
            client.post(
                "/admin/releases", json={**wanted, "predicted": {"errors": {"estimate": 1.0}}}
            ).status_code
            == 422
        )
        wanted["predicted"] = {"errors": effect}
        started = client.post("/admin/releases", json=wanted)
        assert started.json()["predicted"] == {"errors": effect}
        assert (started.status_code, started.json()["state"]) == (201, "preparing")
        assert client.post("/admin/releases", json=wanted).status_code == 409
        assert client.post("/admin/releases/m/pause", json={"reason": "x"}).status_code == 409
        assert client.post("/admin/releases/m/abort", json={}).status_code == 422
        aborted = client.post("/admin/releases/m/abort", json={"reason": "no", "cut": True})
        assert (aborted.json()["state"], aborted.json()["actor"]) == ("aborted", "test")
        [told] = client.get("/admin/releases/m/history").json()
        assert [event["kind"] for event in told["events"]] == [
            "started", "start-refused", "pause-refused", "aborted"
        ]  # fmt: skip
        assert len(client.get("/admin/releases/m/drills").json()) == 1


def test_a_body_that_is_too_large_is_refused_before_anyone_is_asked_for_a_key(site: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(65):
            yield b"x" * 1024

    with httpx.Client(base_url=site) as client:
        for path in ("/sign-in", "/admin/releases"):
            for content in (b"x" * (65 << 10), pieces()):
                assert client.post(path, content=content).status_code == 413


def test_signs_of_life(site: str) -> None:
    with httpx.Client(base_url=site) as client:
        assert client.get("/healthz").json() == {"status": "ok", "service": "releases"}
        assert client.get("/readyz").json() == {"ready": True, "reason": None}
        assert client.get("/metrics").status_code == 200
