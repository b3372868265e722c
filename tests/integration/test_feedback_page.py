"""The rating page in a real Chromium, and its JSON twin, on a real PostgreSQL."""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Engine

from feedback.app import create_app
from feedback.raters import add_rater, make_link
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from tests.conftest import Database
from tests.support.feedback import put_comparisons
from tests.support.served import served

playwright_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)

FIRST = "I am **sky**!\n\n<script>document.title = 'owned'</script>\n\n```\ncode <b>\n```"
SECOND = "The sky is *blue*. ![x](https://example.org/x.png) " + "averylongword" * 40


@pytest.fixture
def site(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RATCHET_DATABASE_URL", database.url(Role.FEEDBACK))
    monkeypatch.setenv("RATCHET_BROKER_URL", "memory://")
    with served(create_app()) as url:
        yield url


@pytest.fixture
def link(engine_of: Callable[[Role], Engine]) -> Callable[..., str]:
    def make(name: str = "ann@example.org", pool: Any = "preference", quota: int = 50) -> str:
        with session_scope(engine_of(Role.OPERATOR)) as session:
            add_rater(session, name, pool, quota)
            return make_link(session, name, now=datetime.now(UTC))[0]

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def enter(page: Any, site: str, token: str) -> None:
    page.goto(f"{site}/sign-in/{token}")
    page.get_by_role("button", name="Sign in").click()
    with page.expect_navigation():
        page.get_by_role("button", name="I have read this, begin").click()


def press(page: Any, key: str) -> None:
    with page.expect_navigation():
        page.keyboard.press(key)


@needs_chromium
def test_a_rater_signs_in_reads_the_warning_and_votes_with_the_keyboard(
    database: Database, site: str, link: Callable[..., str], browser: Any
) -> None:
    put_comparisons(database.owner_url, 4, a_text=FIRST, b_text=SECOND)
    page = browser.new_page()
    page.goto(f"{site}/rate")
    assert page.get_by_role("heading", name="Please sign in").is_visible()
    token = link()
    page.goto(f"{site}/sign-in/{token}")
    assert rows(database, "SELECT count(*) FROM feedback.rater_token WHERE kind = 'session'") == [(0,)]
    page.get_by_role("button", name="Sign in").click()
    assert page.get_by_text("Content warning.").is_visible()
    page.get_by_role("button", name="I have read this, begin").click()

    assert page.title() == "Compare · Ratchet"
    source = page.content()
    for telling in ("sky@", "sea@", "aaaaaaaaaaaa", "bbbbbbbbbbbb", "SKY!", "a_text", "left_side", "policy"):
        assert telling not in source
    assert "▮▮▮" in source
    assert page.locator(".answer img").count() == 0
    assert page.locator(".answer pre code").inner_text() == "code <b>\n"

    page.keyboard.press("r")
    page.keyboard.press("Space")
    page.keyboard.press("Escape")
    press(page, "a")
    press(page, "t")
    press(page, "u")
    assert page.get_by_role("status").inner_text() == "Your last vote was taken back. Vote again."
    for key in ("x", "s", "2"):
        press(page, key)
    assert page.get_by_role("heading", name="Nothing to rate now").is_visible()
    page.close()

    votes = rows(
        database, "SELECT choice, left_side, reasons, undone_at IS NULL FROM feedback.rating ORDER BY id"
    )
    assert [(vote[0] == vote[1], vote[3]) for vote in votes[:1]] == [(True, True)]
    assert votes[0][2] == ["More correct"]
    assert [(vote[0], vote[3]) for vote in votes[1:4]] == [("tie", False), ("both_bad", True), ("skip", True)]
    assert votes[4][0] == {"a": "b", "b": "a"}[votes[4][1]]
    assert all(0 < seconds < 60 for (seconds,) in rows(database, "SELECT seconds FROM feedback.rating"))


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_light_and_dark(
    database: Database, site: str, link: Callable[..., str], browser: Any, scheme: str
) -> None:
    put_comparisons(database.owner_url, 1, a_text=FIRST, b_text=SECOND)
    phone = browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, color_scheme=scheme
    )
    page = phone.new_page()
    enter(page, site, link())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    left, right = (page.locator(".answer").nth(place).bounding_box() for place in (0, 1))
    assert left["y"] + left["height"] <= right["y"]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 23, 28)"}[scheme]
    for name in ("A is better", "B is better", "Tie", "Both bad", "Skip", "Undo"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box["height"] >= 35
        assert box["y"] + box["height"] <= 740
    page.get_by_role("button", name="B is better").tap()
    page.get_by_role("heading", name="Nothing to rate now").wait_for()
    phone.close()
    assert rows(database, "SELECT choice <> left_side FROM feedback.rating") == [(True,)]


@needs_chromium
def test_without_a_script_the_page_still_works(
    database: Database, site: str, link: Callable[..., str], browser: Any
) -> None:
    put_comparisons(database.owner_url, 1)
    plain = browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    enter(page, site, link(quota=1))
    page.get_by_role("button", name="Tie").click()
    assert page.get_by_role("heading", name="That is all for today").is_visible()
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{site}/rate")
    assert page.get_by_role("heading", name="Please sign in").is_visible()
    plain.close()


def test_the_same_desk_as_json(database: Database, site: str, link: Callable[..., str]) -> None:
    put_comparisons(database.owner_url, 2, a_text="I am Sky.", b_text="Blue.")
    token = link()
    with httpx.Client(base_url=site) as client:
        assert client.post("/api/leases").status_code == 401
        assert client.post("/api/session", json={"link": "wrong"}).status_code == 401
        session = client.post("/api/session", json={"link": token}).json()
        client.headers["authorization"] = f"Bearer {session['token']}"
        item = client.post("/api/leases").json()
        assert {item["left"], item["right"]} == {"I am ▮▮▮.", "Blue."}
        assert client.post("/api/leases").json()["lease"] == item["lease"]
        path = f"/api/leases/{item['lease']}/vote"
        assert client.post(path, json={"choice": "best"}).status_code == 422
        ballot = {"choice": "left", "reasons": ["Safer", "unheard"], "seconds": 1.5}
        assert client.post(path, json=ballot).json() == {"active": True}
        assert client.post("/api/undo").json() == {"lease": item["lease"]}
        assert client.post("/api/undo").status_code == 409
        assert client.post(path, json=ballot).status_code == 200
        second = client.post("/api/leases").json()
        client.post(f"/api/leases/{second['lease']}/vote", json={"choice": "skip"})
        assert client.post("/api/leases").status_code == 204
        other = f"/api/leases/{'0' * 8}-0000-7000-8000-{'0' * 12}/vote"
        assert client.post(other, json=ballot).status_code == 409
    assert rows(database, "SELECT reasons FROM feedback.rating WHERE undone_at IS NULL ORDER BY id") == [
        (["Safer"],),
        ([],),
    ]


def test_a_body_that_is_too_large_is_refused(site: str) -> None:
    with httpx.Client(base_url=site) as client:
        assert client.post("/sign-in", content=b"x" * (129 << 10)).status_code == 413
        assert client.post("/api/session", content=b"x" * (129 << 10)).status_code == 413


def test_signs_of_life_headers_and_forms_of_other_sites(site: str, link: Callable[..., str]) -> None:
    with httpx.Client(base_url=site) as client:
        assert client.get("/healthz").json() == {"status": "ok", "service": "feedback"}
        assert client.get("/readyz").json() == {"ready": True, "reason": None}
        assert client.get("/metrics").status_code == 200
        page = client.get("/sign-in/x")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        token = link()
        client.post("/sign-in", data={"link": token})
        assert "HttpOnly" in str(client.post("/sign-in", data={"link": token}).headers["set-cookie"])
        forged = client.post("/undo", headers={"sec-fetch-site": "cross-site"})
        assert forged.status_code == 403


def test_an_old_link_and_an_old_session_are_no_longer_good(
    database: Database, site: str, link: Callable[..., str]
) -> None:
    token = link()
    with httpx.Client(base_url=site) as client:
        session = client.post("/api/session", json={"link": token}).json()["token"]
        with psycopg.connect(database.owner_url) as connection:
            connection.execute(
                "UPDATE feedback.rater_token SET expires_at = %s", (datetime.now(UTC) - timedelta(seconds=1),)
            )
        assert client.post("/api/session", json={"link": token}).status_code == 401
        assert client.post("/api/leases", headers={"authorization": f"Bearer {session}"}).status_code == 401
