"""`ratchet judge`: registered by name and origin, measured over HTTP, refused below the bar."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.home import Home
from ratchet.secrets_store import save_role_urls
from tests.conftest import Database
from tests.support.evaluation import rows
from tests.support.scripted_judge import Script, scripted_judge

ROOT = Path(__file__).resolve().parents[2]
ORIGIN = {"lineage": ["hf:elsewhere/judge"], "training_data": [], "labelling": ["raters:agency"]}


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    save_role_urls(Home(tmp_path).ensure(), database.urls)
    (tmp_path / "origin.json").write_text(json.dumps(ORIGIN))
    lines = [
        {"question": f"Q{place}", "better": "word " * (3 + place % 5) + "GOOD",
         "worse": "word " * (7 - place % 5) + "poor"}
        for place in range(24)
    ]  # fmt: skip
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def ratchet(
    folder: Path, *words: str, url: str = "http://127.0.0.1:9/v1"
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "RATCHET_HOME": str(folder),
        "RATCHET_EVALUATOR_JUDGES": json.dumps({"main": {"url": url, "concurrency": 4, "retries": 2}}),
    }
    command = [sys.executable, "-m", "ratchet.cli", "judge", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def add(folder: Path, name: str = "fair", **changed: str) -> subprocess.CompletedProcess[str]:
    options = {"endpoint": "main", "model": "m", "provenance": f"{folder}/origin.json", **changed}
    words = [word for option, value in options.items() for word in (f"--{option}", value)]
    return ratchet(folder, "add", name, *words, "--json")


def test_a_judge_is_registered_measured_and_shown(database: Database, folder: Path) -> None:
    first, again = (json.loads(add(folder).stdout) for _ in range(2))
    assert (first["created"], again["created"], first["ref"]) == (True, False, again["ref"])
    calibrate = ("calibrate", "fair", "--labels", f"{folder}/labels.jsonl", "--json")
    with scripted_judge(Script()) as url:
        good = ratchet(folder, *calibrate, url=url)
    with scripted_judge(Script(first=1.0)) as url:
        bad = ratchet(folder, *calibrate, url=url)
    assert (good.returncode, bad.returncode) == (0, 1), good.stdout + good.stderr
    figures = json.loads(good.stdout)["figures"]
    assert figures["accuracy"]["estimate"] == 1
    assert figures["position_bias"]["estimate"] == 0
    biased = json.loads(bad.stdout)
    assert biased["figures"]["position_bias"]["estimate"] == 0.5
    assert biased["figures"]["order_disagreement"]["estimate"] == 1
    assert not biased["passed"]
    shown = json.loads(ratchet(folder, "show", "fair", "--json").stdout)
    assert [one["passed"] for one in shown["calibrations"]] == [False, True]
    assert shown["provenance"] == ORIGIN
    listed = ratchet(folder, "list").stdout
    assert "helpfulness: below the bar" in listed
    assert rows(database.owner_url, "SELECT endpoint, model FROM evaluation.judge") == [("main", "m")]


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("fair", {"provenance": "absent.json"}, "cannot read this provenance file"),
        ("fair", {"dimension": "beauty"}, "no prompt comes along for 'beauty'"),
        ("no judge", {}, "is no name"),
    ],
)
def test_a_wrong_judge_is_refused_in_one_line(
    folder: Path, name: str, changed: dict[str, str], words: str
) -> None:
    done = add(folder, name, **changed)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_endpoint_that_the_settings_do_not_know_is_named(folder: Path) -> None:
    add(folder, endpoint="other")
    done = ratchet(folder, "calibrate", "fair", "--labels", f"{folder}/labels.jsonl")
    assert done.returncode == 2
    assert "no judge endpoint 'other' (known: main)" in done.stderr
