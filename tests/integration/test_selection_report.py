"""The report on a selection in a real Chromium, from the one file that it is."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.report.page import render
from tests.support.selection_report import BASELINE, NASTY, found

playwright_api = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Any, folder: Path, **context: Any) -> tuple[Any, list[str]]:
    file = folder / "selection.html"
    file.write_text(render(found()))
    page = browser.new_context(**context).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    return page, asked


def test_a_reader_who_was_not_there_sees_what_was_chosen_and_why(browser: Any, tmp_path: Path) -> None:
    page, asked = opened(browser, tmp_path, viewport={"width": 1200, "height": 900})
    assert len(asked) == 1
    assert page.title() == "Selection · Ratchet"
    assert page.get_by_role("heading", level=1).inner_text() == "sky@000000000002 is proposed"
    sections = ("Decision", "Frontier", "Proxy", "Win rate by length", "Refusal", "Tasks and floors",
                "Lengths", "Judge", "Sample answers")  # fmt: skip
    assert all(page.get_by_role("region", name=name, exact=True).is_visible() for name in sections)
    frontier = page.get_by_role("region", name="Frontier").locator("svg")
    assert frontier.locator("circle").count() == 3
    assert frontier.locator(".chosen circle").count() == 1
    heights = [float(frontier.locator("circle").nth(place).get_attribute("cy")) for place in range(3)]
    assert heights[1] < heights[0] < heights[2]
    assert page.get_by_text("reward hacking: at step 30").is_visible()
    refusal = page.get_by_role("region", name="Refusal").locator("tbody tr").first.inner_text()
    assert "10.0% [4.0%, 16.0%]" in refusal
    assert "60.0%" in refusal
    assert page.locator(".question").first.inner_text() == NASTY
    assert page.locator(".answer").nth(1).inner_text().startswith(f"{BASELINE} (production)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_a_phone_in_light_and_dark(browser: Any, tmp_path: Path, scheme: str) -> None:
    page, _ = opened(browser, tmp_path, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 23, 28)"}[scheme]
    for name in ("Frontier", "Lengths"):
        box = page.get_by_role("region", name=name).locator("svg").bounding_box()
        assert box["width"] > 250
        assert box["height"] > 80


def test_no_choice_and_nothing_measured_are_said(tmp_path: Path) -> None:
    bare = found(chosen=False)
    bare["proxy"], bare["judge_health"], bare["samples"], bare["record"]["judge"] = None, None, [], None
    bare["record"]["note"] = "no judge"
    for one in bare["record"]["candidates"]:
        one["primary"], one["judged"] = None, []
    page = render(bare)
    for words in (
        "No candidate is proposed",
        "Nothing could be measured.",
        "has a reward to join",
        "No judge compared answers",
        "ranked by task metrics alone",
        "same as production's",
    ):
        assert words in page
