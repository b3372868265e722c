"""Releases as the command line shows them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.commands.show import print_drill, print_history, print_status

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def release(**changed: Any) -> dict[str, Any]:
    return {
        "policy": "m@2", "baseline": "m@1", "plan": "small", "state": "running", "stage": "half",
        "since": NOON, "started_at": NOON, "waits_for": None, "look": None, "observed": None, "events": [],
        "overridden": False, "selection": "s",
        "shares": [{"arm": "production", "policy": "m@1", "share": 0.5},
                   {"arm": "canary", "policy": "m@2", "share": 0.5}],
        **changed,
    }  # fmt: skip


def look() -> dict[str, Any]:
    metric = {"metric": "errors", "n_baseline": 10, "n_candidate": 9, "baseline": 0.1, "candidate": 0.25,
              "estimate": 0.15, "low": None, "high": 0.3, "decision": "undecided"}  # fmt: skip
    return {"number": 3, "decision": "hold", "reason": "2 of 9 users", "metrics": [metric]}


def test_a_release_with_figures(capsys: pytest.CaptureFixture[str]) -> None:
    print_status([release(look=look()), release(state="preparing", waits_for="its engine is starting")])
    said = capsys.readouterr().out
    assert "m@2 is running at half: m@1 50% (production), m@2 50% (canary)" in said
    assert "look 3: hold: 2 of 9 users" in said
    assert " ".join(said.split()).count("errors 10, 9 0.1 0.25 +15.0% [-, +30.0%] undecided") == 1
    assert "its engine is starting" in said


def test_a_history_with_its_audit_and_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    event = {"at": NOON, "kind": "aborted", "actor": "ada", "reason": "harm"}
    print_history([release(events=[event], observed={"gaps": ["wins: the offline gain did not replicate"]})])
    said = capsys.readouterr().out
    assert "12:00:00  aborted  by ada: harm" in said
    assert "! wins: the offline gain did not replicate" in said


def test_nothing_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_status([])
    print_history([])
    assert capsys.readouterr().out.splitlines() == [
        "no releases; `ratchet release start POLICY` begins one", "no releases"
    ]  # fmt: skip


def test_a_drill_that_went_well_and_one_that_did_not(capsys: pytest.CaptureFixture[str]) -> None:
    print_drill({"state": "good", "switches": 3, "back_p50_ms": 4.2, "back_p99_ms": 9.9, "requests": 70})
    print_drill({"state": "bad", "missed": 1, "failed": 0, "back_p99_ms": 5000.0})
    good, bad = capsys.readouterr().out.splitlines()
    assert (
        good == "good: 3 times there and back; back within 4 ms (median), 10 ms (99 %), seen in 70 requests"
    )
    assert bad == "bad: missed 1, back_p99_ms 5000.0"
