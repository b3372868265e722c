"""A round's candidates, evaluated and selected on real rows, with policies and judges of known answers."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

from evaluator.calibrate import calibrate_judge
from evaluator.engines import served_policy
from evaluator.generation import GenerationFailed
from evaluator.harness import ONLY_TASKS, Parts, RunPlan, evaluate
from evaluator.judge.calibration import LabelledPair
from evaluator.judge.pairwise import JudgeFailed
from evaluator.judge.templates import TEMPLATES
from evaluator.judges import JudgeVersion, NewJudge, add_judge
from evaluator.provenance import Declared, JudgeRefused
from evaluator.raters import StillRating
from evaluator.records import read_selection, select_for_round
from evaluator.report.gather import gather
from evaluator.report.page import render
from evaluator.repository import RoundRow, read_round
from evaluator.settings import EvaluatorSettings, JudgeAddress
from evaluator.suites.model import Suite, load_suite
from evaluator.watching import Look, Watch, floored, look
from ratchet.db.engine import session_scope
from ratchet.db.models.evaluation import SelectionRow
from ratchet.db.roles import Role
from ratchet.errors import ConfigError, StampMismatch, UsageError
from ratchet.home import Home
from ratchet.prompts import hash_of_text
from ratchet.secrets_store import save_role_urls
from tests.conftest import Database
from tests.support.evaluation import (
    DECODE,
    PRODUCTION,
    candidate,
    put_checkpoint,
    put_policy,
    put_reward_model,
    put_round,
    rows,
)
from tests.support.feedback import put_raters, put_votes, serve_policy
from tests.support.scripted_judge import Script, scripted_judge
from tests.support.scripted_policy import FINGERPRINT, ScriptedPolicies, scripted_policies

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = [f"Question number {place}: what is it?" for place in range(40)]
POLITE = """
name = "polite"
description = "Says please."
skill = "manners"
role = "in_distribution"
scorer = "instructions"
constraints = [{ kind = "mentions", phrase = "please", times = 1 }]
source = { table = "heldout", limit = 40 }
"""
SUMS = """
name = "sums"
description = "Sums."
skill = "arithmetic"
role = "regression"
floor = 0.5
margin = 0.9
scorer = "math"
items = [{ prompt = "What is 1 + 1?", expected = "2" }, { prompt = "What is 2 + 2?", expected = "4" }]
"""
HELPFUL = """
name = "helpful"
description = "Which answer is better."
skill = "helpfulness"
role = "conduct"
scorer = "judge"
dimension = "helpfulness"
source = { table = "heldout", limit = 40 }
"""


def polite_on(share: float, sums: bool = True) -> Callable[[str], str]:
    """A policy that says please, and gives a GOOD answer, on about this share of the questions."""

    def says(prompt: str) -> str:
        if "+" in prompt:
            number = int(prompt.split()[2])
            return f"It is {2 * number if sums else 7}."
        place = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4]) / 2**32
        return "Here you are, please: a GOOD answer." if place < share else "Here you are, a poor answer."

    return says


SAYS = {
    PRODUCTION: polite_on(0.3),
    candidate(1): polite_on(0.5),
    candidate(2): polite_on(0.9),
    candidate(3): polite_on(0.95, sums=False),
}
KL = {candidate(1): 1.0, candidate(2): 4.0, candidate(3): 9.0}


@dataclass
class Ground:
    """A round with three candidates, and what a run on it needs."""

    database: Database
    policies: ScriptedPolicies
    parts: Parts
    round_id: UUID
    folder: Path

    @property
    def home(self) -> Home:
        return Home(self.folder / "home").ensure()

    def suite(self, text: str) -> Suite:
        path = self.folder / f"{hash_of_text(text)[:8]}.toml"
        path.write_text(text)
        return load_suite(path)

    def round(self) -> RoundRow:
        with session_scope(self.parts.database) as session:
            return read_round(session, str(self.round_id))

    def plan(self, *texts: str, judge: JudgeVersion | None = None) -> RunPlan:
        found = self.round()
        return RunPlan(
            policies=tuple(one.policy for one in found.candidates),
            baseline=found.production,
            suites=tuple(self.suite(text) for text in texts),
            round_id=found.id,
            reference=found.reference,
            judge=judge,
        )

    def select(self, plan: RunPlan) -> SelectionRow:
        return select_for_round(plan, self.round(), self.parts)

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return rows(self.database.owner_url, statement, *values)

    def judge(self, url: str, *, calibrate: bool = True, **declared: list[str]) -> JudgeVersion:
        settings = EvaluatorSettings(
            evaluator_judges={"main": JudgeAddress(url=url, concurrency=4, retries=0)}
        )
        self.parts = replace(self.parts, settings=settings)
        origin = {"lineage": ["hf:elsewhere/judge"], "training_data": [], "labelling": [], **declared}
        new = NewJudge("fair", "main", "scripted", [TEMPLATES["helpfulness"]], Declared(**origin))
        with session_scope(self.parts.database) as session:
            judge, _ = add_judge(session, self.home, new)
        if calibrate:
            pairs = [
                LabelledPair(f"p{place}", f"Q{place}", "word " * (3 + place % 5) + "GOOD",
                             "word " * (7 - place % 5) + "poor")
                for place in range(30)
            ]  # fmt: skip
            calibrate_judge(self.parts.database, settings, judge, "helpfulness", pairs, labels="made")
        return judge


@pytest.fixture
def ground(database: Database, engine_of: Callable[[Role], Engine], tmp_path: Path) -> Iterator[Ground]:
    url = database.owner_url
    with scripted_policies(SAYS) as policies:
        for ref in SAYS:
            parent = None if ref == PRODUCTION else PRODUCTION
            put_policy(url, ref, parent=parent, engine=policies.url, fingerprint=FINGERPRINT, snapshot="s")
        round_id = put_round(url)
        for step, (ref, kl) in enumerate(KL.items(), 1):
            put_checkpoint(url, round_id, 10 * step, kl, ref, reward=float(step))
        with engine_of(Role.OPERATOR).begin() as connection:
            for text in QUESTIONS:
                connection.exec_driver_sql(
                    "INSERT INTO feedback.heldout_prompt (suite, prompt_hash, text) VALUES ('own', %s, %s)",
                    (hash_of_text(text), text),
                )
        settings = EvaluatorSettings(evaluator_concurrency=4)
        parts = Parts(engine_of(Role.EVALUATOR), settings, "key", lambda _: None, lambda _: None)
        yield Ground(database, policies, parts, round_id, tmp_path)


def test_the_best_candidate_that_keeps_its_floors_is_proposed_once_and_for_all(ground: Ground) -> None:
    plan = ground.plan(POLITE, SUMS)
    row = ground.select(plan)
    assert row.chosen == candidate(2)
    record = row.record
    assert record["note"] == ONLY_TASKS
    assert record["judge"] is None
    assert [one["policy"] for one in record["candidates"]] == list(KL)
    assert [one["kl"] for one in record["candidates"]] == [1.0, 4.0, 9.0]
    assert [one["floors_passed"] for one in record["candidates"]] == [True, True, False]
    assert "floor sums 0.000, at least 0.5 is asked" in record["candidates"][2]["refused"]
    right = {policy: sum("please" in says(text) for text in QUESTIONS) for policy, says in SAYS.items()}
    assert record["production"]["metrics"]["polite"]["right"] == right[PRODUCTION]
    best = record["candidates"][1]
    assert best["primary"]["name"] == "gain in polite"
    assert best["primary"]["estimate"] == pytest.approx((right[candidate(2)] - right[PRODUCTION]) / 40)
    assert "reward" not in json.dumps(record)

    asked = len(ground.policies.requests)
    assert asked == 4 * 42
    body = ground.policies.requests[0]
    assert (body["temperature"], body["max_completion_tokens"], body["stop"], body["top_k"]) == (
        DECODE.temperature, DECODE.max_tokens, list(DECODE.stop), DECODE.top_k,
    )  # fmt: skip
    assert ground.query("SELECT text FROM feedback.heldout_prompt WHERE suite = 'suite:sums' ORDER BY 1") == [
        ("What is 1 + 1?",), ("What is 2 + 2?",),
    ]  # fmt: skip
    again = ground.select(plan)
    assert (again.id, again.digest) == (row.id, row.digest)
    assert len(ground.policies.requests) == asked
    assert ground.query("SELECT state FROM evaluation.eval_run") == [("done",)]
    serve_policy(ground.database.owner_url, "sky", candidate(2))
    promoted = ground.plan(POLITE, SUMS)
    assert promoted.baseline == candidate(2)
    later = ground.select(promoted)
    assert (later.id, later.record["baseline"]) == (row.id, PRODUCTION)
    assert len(ground.policies.requests) == asked
    assert ground.query(
        "SELECT outcome, count(*) FROM evaluation.outcome WHERE policy = %s AND metric = 'sums' GROUP BY 1",
        candidate(3),
    ) == [("wrong", 2)]


def test_a_run_that_died_goes_on_where_it_was(ground: Ground) -> None:
    plan = ground.plan(POLITE, SUMS)
    ground.policies.fail_from = 60
    with pytest.raises(GenerationFailed, match="told to fail"):
        evaluate(plan, ground.parts)
    ((state, error),) = ground.query("SELECT state, error FROM evaluation.eval_run")
    assert state == "failed"
    assert "gave no answer" in error
    kept = ground.query("SELECT count(*) FROM evaluation.answer")[0][0]
    assert 42 <= kept <= 60
    ground.policies.fail_from = None
    before = len(ground.policies.requests)
    assert ground.select(plan).chosen == candidate(2)
    assert len(ground.policies.requests) - before == 4 * 42 - kept
    assert ground.query("SELECT count(*) FROM evaluation.eval_run") == [(1,)]


def test_an_engine_that_is_another_one_now_is_not_believed(ground: Ground) -> None:
    ground.policies.fingerprint = "rt-other"
    with pytest.raises(StampMismatch, match="rt-other"):
        evaluate(ground.plan(SUMS), ground.parts)


def test_a_calibrated_judge_ranks_by_verdicts_in_both_orders(ground: Ground) -> None:
    with scripted_judge(Script(first=0.2)) as url:
        judge = ground.judge(url)
        row = ground.select(ground.plan(HELPFUL, SUMS, judge=judge))
    assert row.chosen == candidate(2)
    record = row.record
    assert record["judge"]["ref"] == judge.ref
    assert record["note"] is None
    found = record["candidates"][1]
    assert found["primary"]["name"] == "win rate (helpful)"
    assert found["primary"]["estimate"] > 0.6
    (judged,) = found["judged"]
    assert judged["wins"] + judged["ties"] + judged["losses"] == 40
    assert judged["unscored"] == 0
    same = sum(SAYS[candidate(2)](text) == SAYS[PRODUCTION](text) for text in QUESTIONS)
    ((unasked,),) = ground.query(
        "SELECT count(*) FROM evaluation.verdict WHERE candidate = %s AND shown_first IS NULL", candidate(2)
    )
    assert unasked == same
    disagreeing = ground.query(
        "SELECT result FROM evaluation.verdict WHERE shown_first = shown_second AND shown_first <> 'tie'"
    )
    assert len(disagreeing) > 0
    assert {result for (result,) in disagreeing} == {"tie"}


def test_a_reference_that_is_not_in_production_is_compared_too_and_all_are_ranked(
    ground: Ground, engine_of: Callable[[Role], Engine]
) -> None:
    with scripted_judge(Script()) as url:
        judge = ground.judge(url)
        plan = replace(
            ground.plan(HELPFUL, judge=judge), reference=candidate(1), policies=(candidate(2), candidate(3))
        )
        row = ground.select(plan)
    best = next(one for one in row.record["candidates"] if one["policy"] == candidate(2))
    rates = {one["against"]: one["win_rate"]["estimate"] for one in best["judged"]}
    good = {ref: {text for text in QUESTIONS if "GOOD" in SAYS[ref](text)} for ref in SAYS}
    expected = {
        other: 0.5 + (len(good[candidate(2)]) - len(good[other])) / 80 for other in (PRODUCTION, candidate(1))
    }
    assert rates == pytest.approx(expected)
    (group,) = row.record["ranking"]["helpful"]["groups"]
    assert not group["separable"]
    strength = {one["policy"]: one["strength"]["estimate"] for one in group["strengths"]}
    assert strength[PRODUCTION] < strength[candidate(1)] < strength[candidate(2)] < strength[candidate(3)]
    with session_scope(engine_of(Role.REPORT)) as session:
        points = gather(session, str(row.id))["proxy"]["points"]
    assert points[0]["judged"]["estimate"] == pytest.approx(expected[candidate(1)] - 0.5)


def test_a_judge_is_refused_that_shares_anything_or_was_not_shown_good(ground: Ground) -> None:
    taste = put_reward_model(ground.database.owner_url, PRODUCTION, "s", labelling=["raters:agency"])

    def refusal(judge: JudgeVersion) -> str:
        with pytest.raises(JudgeRefused) as refused:
            evaluate(ground.plan(HELPFUL, judge=judge), ground.parts)
        return str(refused.value)

    with scripted_judge(Script(first=1.0)) as url:
        assert "was never calibrated for helpfulness" in refusal(ground.judge(url, calibrate=False))
        assert "position bias 50.0%" in refusal(ground.judge(url))
        assert f"lineage sky with {PRODUCTION}" in refusal(ground.judge(url, lineage=["sky"]))
        assert f"training data s with {candidate(1)}" in refusal(ground.judge(url, training_data=["s"]))
        assert f"labelling raters:agency with reward model {taste}" in refusal(
            ground.judge(url, labelling=["raters:Agency"])
        )
        assert "labelling raters:preference" in refusal(ground.judge(url, labelling=["raters:preference"]))
    assert ground.policies.requests == []
    assert ground.query("SELECT count(*) FROM evaluation.eval_run") == [(0,)]


def test_a_judge_that_dies_fails_the_run_and_the_next_try_asks_what_is_left(ground: Ground) -> None:
    with scripted_judge(Script()) as url:
        judge = ground.judge(url)
    plan = ground.plan(HELPFUL, SUMS, judge=judge)
    with pytest.raises(JudgeFailed, match="comparisons have no verdict"):
        ground.select(plan)
    ((state,),) = ground.query("SELECT state FROM evaluation.eval_run")
    assert state == "failed"
    assert ground.query("SELECT count(*) FROM evaluation.selection") == [(0,)]
    with scripted_judge(Script()) as url:
        ground.judge(url, calibrate=False)
        assert ground.select(plan).chosen == candidate(2)
    assert ground.query("SELECT count(*) FROM evaluation.verdict WHERE result IS NULL") == [(0,)]


def test_the_report_joins_rewards_and_names_reward_hacking(
    ground: Ground, engine_of: Callable[[Role], Engine]
) -> None:
    ground.policies.says = dict.fromkeys(SAYS, SAYS[PRODUCTION])
    row = ground.select(ground.plan(POLITE, SUMS))
    assert row.chosen is None
    with session_scope(engine_of(Role.REPORT)) as session:
        found = gather(session, str(ground.round_id))
        assert read_selection(session, str(row.id)).digest == row.digest
    assert found["proxy"]["reward_hacking"]
    assert [point["proxy"] for point in found["proxy"]["points"]] == [1.0, 2.0, 3.0]
    page = render(found)
    assert "No candidate is proposed" in page
    assert "reward hacking: at step 30" in page
    assert page.count("<svg") == 3
    assert "http" not in page.replace("http-equiv", "")


def test_select_and_report_as_commands(ground: Ground) -> None:
    save_role_urls(ground.home, ground.database.urls)
    for name, text in (("polite", POLITE), ("sums", SUMS)):
        (ground.folder / f"{name}.toml").write_text(text)

    def ratchet(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "RATCHET_HOME": str(ground.home.root)}
        command = [sys.executable, "-m", "ratchet.cli", *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    suites = ("--suite", f"{ground.folder}/polite.toml", "--suite", f"{ground.folder}/sums.toml")
    page = ground.folder / "report.html"
    done = ratchet("select", "--round", str(ground.round_id), *suites, "--report", str(page), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["chosen"] == candidate(2)
    assert f"{candidate(2)} is proposed" in page.read_text()
    said = ratchet("chat", candidate(2), "--vs", PRODUCTION, "--prompt", "What is 2 + 2?", "--json")
    assert [one["text"] for one in json.loads(said.stdout)["turns"][0]["answers"]] == ["It is 4.", "It is 4."]
    for of in (candidate(3), str(ground.round_id)):
        lineage = json.loads(ratchet("lineage", of, "--json").stdout)
        assert [one["digest"] for one in lineage["selections"]] == [document["digest"]]
    (ground.folder / "held.txt").write_text('Plain one?\n{"prompt": "Two?"}\n\nPlain one?\n')
    held = ratchet("evaluate", "hold", f"{ground.folder}/held.txt", "--suite", "more", "--json")
    assert json.loads(held.stdout) == {"suite": "more", "prompts": 3, "new": 2}
    for name in ("traffic", "suite:sums"):
        reserved = ratchet("evaluate", "hold", f"{ground.folder}/held.txt", "--suite", name)
        assert (reserved.returncode, "take another name" in reserved.stderr) == (2, True)
    wrong = ratchet("select", "--round", "nonsense", "--json")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("ratchet: 'nonsense' is no round id")


def test_a_run_that_can_measure_nothing_is_refused_before_anything_is_asked(ground: Ground) -> None:
    with scripted_judge(Script()) as url:
        both = replace(ground.plan(HELPFUL, judge=ground.judge(url, calibrate=False)), raters=1)
    for plan, words in (
        (ground.plan(HELPFUL), "every one of these suites needs verdicts"),
        (both, "from a judge or from raters"),
        (replace(ground.plan(SUMS), policies=()), "no candidate"),
        (ground.plan(SUMS, SUMS), "each suite once"),
    ):
        with pytest.raises(UsageError, match=words):
            evaluate(plan, ground.parts)
    assert ground.policies.requests == []


def test_an_engine_put_up_for_a_run_is_let_go_after_it_and_another_is_not(ground: Ground) -> None:
    with psycopg.connect(ground.database.owner_url) as connection:
        connection.execute(
            "UPDATE registry.engine SET managed = true, desired = 'down' WHERE policy = %s", (candidate(2),)
        )
    for policy in (candidate(1), candidate(2)):
        with served_policy(ground.parts.database, policy, lambda _: None) as served:
            assert (served.url, served.fingerprint) == (ground.policies.url, FINGERPRINT)
            assert ground.query("SELECT desired FROM registry.engine WHERE policy = %s", policy) == [("up",)]
    desired = "SELECT desired FROM registry.engine WHERE policy IN (%s, %s) ORDER BY policy"
    assert ground.query(desired, candidate(1), candidate(2)) == [("up",), ("down",)]
    assert ground.query("SELECT 1 FROM evaluation.engine_wish") == []


def test_evaluation_raters_stand_in_the_place_of_a_judge(ground: Ground) -> None:
    few = HELPFUL.replace("limit = 40", "limit = 12")
    plan = replace(ground.plan(few, SUMS), raters=1, policies=(candidate(2),))
    with pytest.raises(StillRating, match="wait in the queue of the evaluation raters"):
        ground.select(plan)
    assert ground.query("SELECT state FROM evaluation.eval_run") == [("waiting",)]
    url = ground.database.owner_url
    (rater,) = put_raters(url, 1, pool="evaluation")
    waiting = ground.query("SELECT id, a_policy, a_text FROM feedback.comparison WHERE pool = 'evaluation'")
    assert len(waiting) > 3
    for identity, _, text in waiting:
        put_votes(url, identity, "a" if "GOOD" in text else "b", raters=[rater])
    record = ground.select(plan).record
    assert (record["judge"], record["raters"], record["note"]) == (None, 1, None)
    (judged,) = record["candidates"][0]["judged"]
    assert (judged["source"], judged["wins"], judged["losses"]) == ("raters", len(waiting), 0)
    assert judged["ties"] == 12 - len(waiting)


def test_a_floor_that_breaks_while_a_round_trains_stops_it(ground: Ground) -> None:
    def state(word: str) -> None:
        with psycopg.connect(ground.database.owner_url) as connection:
            connection.execute(
                "UPDATE training.training_round SET state = %s, worker = 'w', beat_at = now()", (word,)
            )

    state("running")
    watch = Watch(str(ground.round_id), floored((ground.suite(SUMS),)), every=10)
    assert [one.step for one in ground.round().candidates] == [10, 20, 30]
    good = Look(candidate(2), 20, ())
    watch, goes_on = look(replace(watch, last=good, good=good), ground.parts)
    assert not goes_on
    assert watch.last is not None
    assert [floor.name for floor in watch.last.breached] == ["sums"]
    assert ground.query("SELECT word, who, why FROM training.round_control") == [
        (
            "stop",
            "evaluator",
            "floor breached at step 30: sums 0.000, at least 0.5 is asked."
            f" Restart from step 20 ({candidate(2)}) with a larger beta",
        )
    ]
    assert ground.policies.asked_of(PRODUCTION) == []
    again, _ = look(watch, ground.parts)
    assert again is watch
    with pytest.raises(ConfigError, match="none of these suites has a floor"):
        floored((ground.suite(POLITE),))
