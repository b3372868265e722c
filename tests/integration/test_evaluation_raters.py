"""Evaluation raters as a source of verdicts: for a run that asks them, and every week from traffic."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from evaluator.harness import Parts, RunPlan, evaluate
from evaluator.raters import StillRating
from evaluator.repository import TRAFFIC, hold_out
from evaluator.settings import EvaluatorSettings
from evaluator.suites.model import load_suite
from evaluator.weekly import collect_ratings, sample_traffic
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.prompts import Split, hash_of_text, split
from tests.conftest import Database
from tests.support.evaluation import PRODUCTION, candidate, put_engine, put_policy, rows
from tests.support.feedback import put, put_raters, put_votes, response, serve_policy, user
from tests.support.scripted_policy import scripted_policies

HELD = list(
    islice((t for t in map("Held out {}?".format, count()) if split(hash_of_text(t)) is Split.HELDOUT), 6)
)

REFS = (PRODUCTION, candidate(1))


@pytest.fixture
def traffic(database: Database) -> Database:
    """Three held-out prompts that production and a candidate answered, one of them alike; more beside."""
    url = database.owner_url
    for ref in (PRODUCTION, candidate(1)):
        put_policy(url, ref)
    serve_policy(url, "sky", PRODUCTION)
    for number, text in enumerate(HELD[:3]):
        put(
            url,
            response(f"old {number}", messages=user(text), policy=PRODUCTION),
            response(f"{'old' if number == 2 else 'new'} {number}", messages=user(text), policy=candidate(1)),
        )
    put(url, response("alone", messages=user(HELD[3]), policy=PRODUCTION))
    put(
        url,
        response("train old", policy=PRODUCTION),
        response("train new", policy=candidate(1)),
    )
    put(
        url,
        response("probe old", messages=user(HELD[4]), policy=PRODUCTION, probe="benign"),
        response("probe new", messages=user(HELD[4]), policy=candidate(1), probe="benign"),
    )
    return database


def open_items(url: str) -> list[tuple[Any, ...]]:
    return rows(
        url,
        "SELECT id, a_policy, a_text, b_text FROM feedback.comparison"
        " WHERE pool = 'evaluation' AND source = 'candidate' AND wanted = 2 ORDER BY prompt_hash",
    )


def choice_for(text: str, item: tuple[Any, ...]) -> str:
    return "a" if item[2].startswith(text) else "b"


def test_a_weeks_held_out_traffic_is_rated_and_joins_the_harness(
    traffic: Database, engine_of: Callable[[Role], Engine]
) -> None:
    database = engine_of(Role.EVALUATOR)
    now = datetime.now(UTC)
    (run,) = sample_traffic(database, now=now)
    assert sample_traffic(database, now=now) == []
    items = open_items(traffic.owner_url)
    assert {frozenset(item[2:]) for item in items} == {
        frozenset({"old 0", "new 0"}),
        frozenset({"old 1", "new 1"}),
    }
    assert collect_ratings(database) == []

    raters = put_raters(traffic.owner_url, 2, pool="evaluation")
    first, second = items
    put_votes(traffic.owner_url, first[0], *[choice_for("new", first)] * 2, raters=raters)
    assert collect_ratings(database) == []
    put_votes(
        traffic.owner_url, second[0], choice_for("new", second), choice_for("old", second), raters=raters
    )
    assert collect_ratings(database) == [run]
    assert collect_ratings(database) == []

    assert rows(
        traffic.owner_url,
        "SELECT result, agreed, count(*) FROM evaluation.verdict GROUP BY 1, 2 ORDER BY 1, 2",
    ) == [("tie", False, 1), ("tie", True, 1), ("win", True, 1)]
    ((state, summary),) = rows(traffic.owner_url, "SELECT state, summary FROM evaluation.eval_run")
    assert state == "done"
    assert summary["policies"][0]["win_rate"]["estimate"] == pytest.approx(2 / 3)
    assert sorted(
        text for (text,) in rows(traffic.owner_url, "SELECT text FROM feedback.heldout_prompt")
    ) == sorted(HELD[:3])


def test_preference_raters_say_nothing_about_what_is_held_out(
    traffic: Database, engine_of: Callable[[Role], Engine]
) -> None:
    sample_traffic(engine_of(Role.EVALUATOR), now=datetime.now(UTC))
    (item, *_) = open_items(traffic.owner_url)
    (rater,) = put_raters(traffic.owner_url, 1, pool="preference")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        put_votes(traffic.owner_url, item[0], "a", raters=[rater])


def test_whoever_is_forgotten_is_forgotten_here_too(
    traffic: Database, engine_of: Callable[[Role], Engine]
) -> None:
    url = traffic.owner_url
    put(
        url,
        response("old", messages=user(HELD[5]), policy=PRODUCTION, user_id="bob"),
        response("new", messages=user(HELD[5]), policy=candidate(1), user_id="bob"),
    )
    database = engine_of(Role.EVALUATOR)
    (run,) = sample_traffic(database, now=datetime.now(UTC))
    raters = put_raters(url, 2, pool="evaluation")
    for item in open_items(url):
        put_votes(url, item[0], "a", "b", raters=raters)
    assert collect_ratings(database) == [run]

    def left() -> dict[str, int]:
        mine = hash_of_text(HELD[5])
        return {
            table: rows(url, f"SELECT count(*) FROM {table} WHERE {column} = %s", mine)[0][0]  # noqa: S608
            for table, column in (
                ("evaluation.item", "prompt_hash"),
                ("evaluation.answer", "item"),
                ("evaluation.verdict", "prompt_hash"),
                ("feedback.comparison", "prompt_hash"),
                ("feedback.heldout_prompt", "prompt_hash"),
            )
        }

    def kept() -> int:
        return rows(url, "SELECT count(*) FROM evaluation.item")[0][0]

    assert left() == {
        "evaluation.item": 1, "evaluation.answer": 2, "evaluation.verdict": 1, "feedback.comparison": 1,
        "feedback.heldout_prompt": 1,
    }  # fmt: skip
    before = kept()
    rows(traffic.url(Role.OPERATOR), "SELECT feedback.forget_user('bob', now() + interval '1 minute')")
    assert set(left().values()) == {0}
    assert kept() == before - 1


HELD_OUT = """
name = "held-out"
description = "Which answer is better."
skill = "helpfulness"
role = "conduct"
scorer = "judge"
dimension = "helpfulness"
source = { table = "heldout", limit = 10 }
"""


def test_a_forgotten_prompt_goes_however_it_was_asked_and_an_operators_own_stays(
    traffic: Database, engine_of: Callable[[Role], Engine], tmp_path: Path
) -> None:
    """Two prompts of traffic are in the held-out table; one of them an operator had held out too."""
    database, url = engine_of(Role.EVALUATOR), traffic.owner_url
    theirs, both = HELD[0], HELD[1]
    with scripted_policies({ref: lambda text, ref=ref: f"{ref}: {text}" for ref in REFS}) as served:
        for ref in REFS:
            put_engine(url, ref, served.url)
        with session_scope(database) as session:
            hold_out(session, TRAFFIC, [theirs, both])
            hold_out(session, "own", [both])
        path = tmp_path / "suite.toml"
        path.write_text(HELD_OUT)
        plan = RunPlan((candidate(1),), PRODUCTION, (load_suite(path),), raters=2)
        parts = Parts(database, EvaluatorSettings(), "key", lambda _: None, lambda _: None)
        with pytest.raises(StillRating):
            evaluate(plan, parts)

    def left(text: str) -> list[int]:
        mine = hash_of_text(text)
        return [
            rows(url, f"SELECT count(*) FROM {table} WHERE {column} = %s", mine)[0][0]  # noqa: S608
            for table, column in (
                ("evaluation.item", "prompt_hash"), ("evaluation.answer", "item"),
                ("feedback.comparison", "prompt_hash"), ("feedback.heldout_prompt", "prompt_hash"),
            )
        ]  # fmt: skip

    assert (left(theirs), left(both)) == ([1, 2, 1, 1], [1, 2, 1, 2])
    rows(url, "DELETE FROM serving.response RETURNING id")
    assert (left(theirs), left(both)) == ([0, 0, 0, 0], [1, 2, 1, 1])
